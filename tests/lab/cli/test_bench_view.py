"""Tables fit a terminal and say what is missing."""

from dataclasses import replace

import pytest
from lab.bench.samples import draw, make_gpu_result, make_result, make_row

from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.memory import Peak
from flashpoint.lab.runs.formats import brief


@pytest.mark.parametrize("width", [80, 120])
def test_table_fits_the_terminal_without_cutting(width):
    tiny = Case(shape=Shape(1, 1, 16, 16), dtype="fp32", mode="recording")
    row = make_row()
    overhead = replace(row, is_overhead=True, case=tiny, measurements=row.measurements[:2])
    rows = (row, make_row(99.4e-6, 12.0), overhead)
    text = draw(make_result(*rows), width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for part in (
        "1, 8, 16384, 64",
        "bf16 training",
        "call overhead, L 16",
        "12.1 ms",
        "10.9-13.3",
    ):
        assert part in text
    assert "No plain: its L x L matrix takes 8.6 GB (1, 8, 16384, 64)." in text


@pytest.mark.parametrize("width", [80, 120])
def test_gpu_table_fits_too(width):
    text = draw(make_gpu_result(), width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for part in ("16, 32/8, 1:131072, 128", "bf16 causal backward", "cudnn", "GB/s", "80%"):
        assert part in text
    assert "flex_log" in text
    assert "6.00x >=5.00" in text
    assert "Bytes kept for backward, over those of sdpa_flash: 0.74." in text


def test_table_marks_limits_without_color():
    assert ">=1.54" in draw(make_result(make_row()))
    assert "<1.54" in draw(make_result(make_row(ours_s=1.0)))


def test_aim_is_shown_where_it_is_reached():
    forward, backward = make_gpu_result("long").rows[:2]  # 1.50x, aims 1.4 and 1.2
    text = draw(make_result(forward, backward))
    assert ">=1.40" in text
    assert ">=1.20" in text


def test_wrong_rival_is_named():
    row = make_gpu_result("vit").rows[0]
    found = tuple(
        replace(one, relative_error=0.5) if one.provider == "sdpa_cudnn" else one
        for one in row.measurements
    )
    text = draw(make_result(replace(row, measurements=found)))
    assert "sdpa_cudnn is wrong, its error is 5.0e-01 (1024, 6, 49, 64)." in text
    assert "2.00x" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.2e-7, "0.32 us"),
        (5.65e-6, "5.65 us"),
        (9.999e-4, "1000 us"),
        (0.1234, "123 ms"),
        (13.25, "13.2 s"),
    ],
)
def test_seconds_have_three_digits_and_a_unit(seconds, text):
    assert brief(seconds) == text


def test_reason_for_missing_memory_is_shown_once():
    row = make_row()
    missing = tuple(replace(found, peak=Peak(None, "no Linux")) for found in row.measurements[:2])
    row = replace(row, measurements=(*missing, row.measurements[2]))
    assert draw(make_result(row, row)).count("No memory of sdpa: no Linux") == 1
