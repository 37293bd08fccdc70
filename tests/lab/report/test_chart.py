"""Charts as figures: intervals, axes, categories and colors."""

import dataclasses
import math

import pytest

from flashpoint.lab.report.chart import (
    assign_places,
    chart_figure,
    legend_of,
    positions_of,
    tick_label,
    ticks_of,
)
from flashpoint.lab.report.figure import NUM_SERIES, SERIES, Line, line_figure
from flashpoint.lab.runs.findings import Chart, Series


def make_chart(*series, **more):
    plain = {"name": "c", "title": "t", "caption": "", "x_title": "x", "y_title": "y"}
    return Chart(**{**plain, **more}, series=series)


def line(name, x=(1.0, 2.0), y=(3.0, 4.0), **more):
    return Series(name=name, x=x, y=y, **more)


def draw(chart):
    return chart_figure(chart, assign_places([chart]))


def places(*names, dashed=()):
    series = [line(name) for name in names] + [line(name, is_dashed=True) for name in dashed]
    return assign_places([make_chart(*series)])


def test_softmax_and_relu_keep_their_colors_in_every_study():
    alone, among = places("softmax"), places("gate", "relu / L", "softmax", "other")
    assert alone["softmax"] == among["softmax"] == 1
    assert among["relu / L"] == places("relu")["relu"] == 0
    assert len(set(among.values())) == 4


def test_others_take_relus_and_softmax_s_colors_last():
    found = places(*(f"n{i}" for i in range(NUM_SERIES)))
    assert list(found.values())[-2:] == [0, 1]
    assert sorted(found.values()) == list(range(NUM_SERIES))


def test_more_names_than_colors_share_some():
    found = places(*(f"n{i}" for i in range(NUM_SERIES + 3)))
    assert max(found.values()) < NUM_SERIES


def test_theory_has_the_color_of_what_it_is_beside():
    found = places("relu", "relu2", dashed=["relu2, theory", "relu, theory", "limit"])
    assert found["relu, theory"] == found["relu"]
    assert found["relu2, theory"] == found["relu2"]
    assert found["limit"] not in (found["relu"], found["relu2"])


def test_names_that_share_a_color_are_in_different_charts():
    many = make_chart(*(line(f"n{i}") for i in range(NUM_SERIES - 1)), line("softmax"))
    few = make_chart(line("softmax"), line("relu, alpha 0.5"), line("relu, alpha 1"))
    found = assign_places([many, few])
    for chart in (many, few):
        assert len({found[one.name] for one in chart.series}) == len(chart.series)
    assert found["relu, alpha 0.5"] == places("relu")["relu"]


def test_theory_beside_what_was_measured_has_no_entry_in_the_legend():
    chart = make_chart(
        line("relu"), *(line(n, is_dashed=True) for n in ("relu, theory", "a guess"))
    )
    assert [trace["showlegend"] for trace in draw(chart).traces] == [True, False, True]
    assert [one.name for one in legend_of(chart)] == ["relu", "a guess"]


def test_colors_hold_over_all_charts_of_a_study():
    found = assign_places([make_chart(line("a"), line("b")), make_chart(line("b"), line("c"))])
    assert list(found) == ["a", "b", "c"]
    assert len(set(found.values())) == 3


def test_few_points_have_bars_with_their_interval():
    (trace,) = draw(make_chart(line("a", low=(2.5, 3.0), high=(3.25, 6.0)))).traces
    assert trace["error_y"]["array"] == [0.25, 2.0]
    assert trace["error_y"]["arrayminus"] == [0.5, 1.0]
    assert trace["text"] == ["3 (2.5 to 3.25)", "4 (3 to 6)"]
    assert trace["line"]["dash"] == "solid"


def test_many_points_have_a_band():
    x = tuple(range(20))
    y = [float(v) for v in x]
    low, high = [v - 1 for v in y], [v + 2 for v in y]
    band, trace = draw(make_chart(line("a", x, y, low=low, high=high))).traces
    assert band["fill"] == "toself"
    assert band["x"] == [*x, *reversed(x)]
    assert band["y"] == [*high, *reversed(low)]
    assert band["fillcolor"] == trace["line"]["color"] in SERIES
    assert "error_y" not in trace


def test_points_without_an_interval_have_none():
    (trace,) = draw(make_chart(line("a", low=(None, None), high=(None, None)))).traces
    assert "error_y" not in trace


def test_what_has_no_place_is_left_out():
    y = (1.0, None, math.nan, math.inf, 0.0, -1.0)
    series = line("a", x=(1, 2, 3, 4, 5, 6), y=y)
    (trace,) = draw(make_chart(series)).traces
    assert (trace["x"], trace["y"]) == ([1, 5, 6], [1.0, 0.0, -1.0])
    (trace,) = draw(make_chart(series, y_is_log=True)).traces
    assert (trace["x"], trace["y"]) == ([1], [1.0])
    assert draw(make_chart(line("a", y=(None, None)))).traces == []


def test_theory_is_a_dashed_line_below_the_points():
    measured, theory = draw(
        make_chart(line("a", has_line=False), line("b", is_dashed=True))
    ).traces
    assert (measured["mode"], theory["mode"]) == ("markers", "lines")
    assert theory["line"]["dash"] == "dash"
    assert theory["zorder"] < measured["zorder"]


def test_series_of_one_point_is_seen():
    (trace,) = draw(make_chart(line("a", x=(1,), y=(2.0,), is_dashed=True))).traces
    assert trace["mode"] == "markers"


def test_logarithmic_axis_is_marked_at_the_points_unless_they_crowd():
    chart = make_chart(line("a", (64, 128, 3072, 4096), (1, 2, 3, 4)), x_is_log=True)
    assert ticks_of(chart) == [64, 128, 4096]
    assert draw(chart).layout["xaxis"]["ticktext"] == ["64", "128", "4096"]
    crowd = tuple(range(1, 30))
    assert ticks_of(make_chart(line("a", crowd, crowd), x_is_log=True)) == []
    assert "tickvals" not in draw(make_chart(line("a"))).layout["xaxis"]
    places = (2e15, 1234.5, 131.349, 46.92, 1.25)
    assert [tick_label(x) for x in places] == ["2 P", "1234", "131", "46.9", "1.25"]


def test_ticks_stand_apart_by_a_label_of_a_narrow_chart():
    chart = make_chart(line("a", (42.2, 46.9, 65.9, 92.4, 103, 131), range(6)), x_is_log=True)
    assert ticks_of(chart) == [42.2, 65.9, 92.4, 131]


def test_a_legend_of_long_names_makes_a_chart_higher_line_by_line():
    short, long = (
        make_chart(*(line(f"{number}{name}", y=(1, 2)) for number in range(6)))
        for name in ("a", ", forward, head dim 64, qk-norm")
    )
    alone = make_chart(line("a"))
    assert [draw(chart).height for chart in (alone, short, long)] == [
        300,
        300 + 2 * 29,
        300 + 6 * 29,
    ]


def test_many_decades_are_marked_by_powers():
    axis = draw(make_chart(line("a", y=(1e-5, 1e3)), y_is_log=True)).layout["yaxis"]
    assert axis["tickvals"][0] == pytest.approx(1e-5)
    assert axis["ticktext"][0] == "10<sup>-5</sup>"
    assert axis["type"] == "log"


def test_shares_are_percent():
    figure = draw(make_chart(line("a", y=(0.915, 0.92)), y_format="percent"))
    assert figure.layout["yaxis"]["tickformat"] == "~%"
    assert figure.traces[0]["text"] == ["91.50%", "92.00%"]


def test_intervals_of_shares_end_at_none_and_at_all():
    series = line("a", y=(0.1, 0.75), low=(-0.2, 0.5), high=(0.2, 1.75))
    (trace,) = draw(make_chart(series, y_format="percent")).traces
    assert trace["text"] == ["10.00% (0.00% to 20.00%)", "75.00% (50.00% to 100.00%)"]
    (trace,) = draw(make_chart(series)).traces
    assert trace["text"] == ["0.1 (-0.2 to 0.2)", "0.75 (0.5 to 1.75)"]


def test_categories_stand_side_by_side_and_apart_by_series():
    names = ("relu", "softmax")
    chart = make_chart(*(line(n, names, has_line=False) for n in ("with", "without")))
    left, right = (positions_of(series, chart) for series in chart.series)
    assert left == [-0.125, 0.875]
    assert right == [0.125, 1.125]
    axis = draw(chart).layout["xaxis"]
    assert (axis["tickvals"], axis["ticktext"]) == ([0, 1], ["relu", "softmax"])
    assert draw(chart).traces[0]["text"][1] == "with, softmax: 4"


def test_long_categories_are_broken_into_lines_with_room_for_them():
    names = ("softmax", "relu, no factor", "relu, factor, <b> from 1", "relu", "factor")
    chart = make_chart(line("a", names, range(5), has_line=False))
    few = make_chart(line("a", names[:1], (0.0,), has_line=False))
    texts = draw(chart).layout["xaxis"]["ticktext"]
    assert texts[:2] == ["softmax", "relu, no<br>factor"]
    assert texts[2] == "relu,<br>factor,<br>&lt;b&gt; from 1"
    assert draw(chart).height == draw(few).height + 2 * 15


def test_words_too_long_for_a_category_break_behind_a_slash():
    names = ("relu4/sum", "relu4/sum, qk-norm", "a", "b", "c", "d", "e")
    many, few = (
        draw(make_chart(line("a", some, range(len(some)), has_line=False))).layout["xaxis"]
        for some in (names, names[:3])
    )
    assert many["ticktext"][:2] == ["relu4/<br>sum", "relu4/<br>sum,<br>qk-norm"]
    assert few["ticktext"][:2] == ["relu4/sum", "relu4/sum,<br>qk-norm"]


def test_category_of_one_series_is_not_moved_and_needs_no_legend():
    chart = make_chart(*(line(n, (n,), (1.0,), has_line=False) for n in ("a", "b")))
    assert [positions_of(series, chart) for series in chart.series] == [[0.0], [1.0]]
    assert draw(chart).layout["showlegend"] is False


def test_markup_in_names_is_text_for_plotly():
    evil = '<a href="javascript:alert(1)">%{x}</a>'
    chart = make_chart(line(evil), line("b"), x_title=evil, y_title=evil)
    figure = draw(chart)
    shown = [figure.traces[0]["name"], figure.layout["xaxis"]["title"]["text"]]
    assert all("<" not in text for text in shown)
    assert figure.traces[0]["hovertemplate"] == "%{text}"


def test_pointer_names_a_series_once():
    names = ("softmax", "relu")
    alone = make_chart(*(line(name, x=(name,), y=(1.0,), has_line=False) for name in names))
    assert {trace["hovertemplate"] for trace in draw(alone).traces} == {"%{text}<extra></extra>"}
    assert [trace["text"] for trace in draw(alone).traces] == [["softmax: 1"], ["relu: 1"]]
    crossed = make_chart(*(line(name, x=("with", "without")) for name in names))
    assert draw(crossed).traces[1]["text"] == ["relu, with: 3", "relu, without: 4"]
    beside = make_chart(line("a"), line("b"))
    assert {trace["hovertemplate"] for trace in draw(beside).traces} == {"%{text}"}


@pytest.mark.parametrize(("number", "place"), [(2, ""), (2 * NUM_SERIES + 1, "step %{x}: ")])
def test_pointer_on_curves_gives_run_and_place_once(number, place):
    plain = [Line(name=f"r{i}", x=[1], y=[0.5], color=SERIES[0]) for i in range(number)]
    grouped = [dataclasses.replace(one, group="relu") for one in plain]
    first, *_ = line_figure("t", plain, x_title="step", y_title="loss").traces
    assert first["hovertemplate"] == f"{place}%{{y:.4g}}"
    assert "hoverinfo" not in first
    axes = {"x_title": "step", "y_title": "top-1", "y_format": ".0%"}
    first, *_ = line_figure("t", grouped, **axes).traces
    assert first["hovertemplate"] == f"%{{text}}, {place}%{{y:.2%}}<extra></extra>"
