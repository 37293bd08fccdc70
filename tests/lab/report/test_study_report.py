"""The page of studies: what stands in it, that it is whole, that text is escaped."""

import dataclasses
import math
import re
import subprocess
import sys

import pytest
from lab.report.parsed_page import Page
from lab.report.run_folders import add_attention, make_run
from lab.report.sample_sections import verdict
from lab.report.sample_studies import (
    ACTIVATIONS,
    EVIL,
    LENGTHS,
    STUDIES,
    hostile,
    make_studies,
    qk_norm,
    scaling,
)

from flashpoint.lab.report.curves import MOST_RUNS
from flashpoint.lab.report.html import join
from flashpoint.lab.report.study_report import MOST_MAPS, MOST_ROWS, report_studies
from flashpoint.lab.report.verdicts import describe_region, strip, value_cell, verdict_card
from flashpoint.lab.runs.findings import RULE, DataTable, Findings, Series
from flashpoint.lab.runs.run_files import read_runs
from flashpoint.lab.study.verdict import LEAST_SEEDS, LEVEL


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    return make_studies(tmp_path_factory.mktemp("studies"))


@pytest.fixture(scope="module")
def text(studies):
    return report_studies(studies, title="All studies")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def one_study(**changes):
    if "runs" in changes:
        changes.setdefault("factors", [{"seed": i} for i in range(len(changes["runs"]))])
    return dataclasses.replace(qk_norm(), **changes)


def test_page_has_claims_studies_environment_and_commands(page, studies):
    assert page.of("h1", "title") == ["All studies", "All studies"]
    questions = [study.question for study in studies]
    assert page.of("h2") == ["Claims", *questions, "Environment", "To repeat it"]
    said = "12 studies. 8 of 18 claims are supported, 5 are contradicted, 5 are undecided."
    assert said in page.of("li")


@pytest.mark.parametrize(
    ("source", "heading"),
    [
        ("paper 1, figure 3", "The claim"),
        ("open", "What one would expect"),
        ("open in paper 1", "What one would expect"),
    ],
)
def test_what_no_paper_says_is_called_no_claim(source, heading):
    page = Page(report_studies([one_study(source=source)], title="t"))
    assert page.of("h3")[0] == heading


def test_every_link_has_its_place(page, text):
    links = [address for address in page.addresses if address.startswith("#")]
    ids = re.findall(r'<section id="([^"]*)"', text)
    assert len(ids) == len(set(ids)) == 3 + len(STUDIES)
    assert {f"#{name}" for name in ids} == set(links)


def test_every_claim_stands_in_the_table_and_in_its_study(text, studies):
    claims, _, rest = text.partition('id="study-scaling"')
    for study in studies:
        for found in study.findings.verdicts:
            assert found.claim in claims
            assert found.claim in rest


def test_verdict_is_a_word_with_numbers_and_region(text):
    claims = text.partition('id="study-scaling"')[0]
    row = re.search(r"<tr><th[^>]*><a[^>]*>qk-norm</a>.*?</tr>", claims).group()
    assert "</span> supports</span>" in row
    assert "<strong>0.42</strong>" in row
    assert "points of top-1" in row
    assert "0.04 to 0.80" in row
    assert "at most 1" in row
    assert "<svg" in row


def test_claim_without_numbers_is_shown_with_its_reason(text):
    body = text.partition('id="study-speed"')[2]
    assert "No benchmark of this machine is stored." in body
    assert "a ViT at 4096 tokens trains 10% faster" in body


def test_study_opens_with_conclusions_and_one_figure(text):
    body = text.partition('id="study-scaling"')[2].partition("</section>")[0]
    before, folded, rest = body.partition("<details")
    assert before.index('class="conclusions"') < before.index('class="chart"')
    assert before.index('class="chart"') < before.index('class="verdict"')
    assert before.count('class="chart"') == 1
    assert "One more figure" in folded + rest
    assert rest.index("How it was run") < rest.index("Models are smaller")


def test_what_is_folded_is_printed_but_for_curves_and_long_tables(text):
    printed = re.findall(r'<details class="printed"><summary>(.*?)</summary>', text)
    others = re.findall(r"<details><summary>(.*?)</summary>", text)
    assert {"How it was run", "One more figure", "What the gate costs"} <= set(printed)
    assert {"<h2>Environment</h2>", "<h2>To repeat it</h2>"} <= set(printed)
    assert {"Curves", "All 312 trials", f"Every draw, {4 * len(LENGTHS)} rows"} <= set(others)


def test_many_claims_are_folded_into_one_table():
    claims = [verdict(f"claim {i}", "supports", 1.0, 0.5, (0, 2)) for i in range(MOST_ROWS + 1)]
    findings = Findings(verdicts=claims, charts=[], tables=[])
    page = Page(report_studies([one_study(findings=findings)], title=""))
    assert f"All {MOST_ROWS + 1} claims in one table" in page.of("summary")


def test_rule_is_stated_once_and_is_the_one_that_is_used(page, text):
    assert page.of("p").count(RULE) == 1
    assert text.count("drawn again with replacement") == 1
    assert f"{LEVEL:.0%}" in RULE
    assert LEAST_SEEDS == 3
    assert "fewer than three seeds" in RULE


def test_charts_and_captions_are_all_there(page, studies):
    charts = [chart for study in studies for chart in study.findings.charts]
    assert len(charts) == 15
    for chart in charts:
        assert chart.title in page.of("figcaption")
        assert chart.caption in page.of("p")


def test_tables_and_notes_and_trials_are_there(page, text):
    assert "What the gate costs" in page.of("summary")
    assert "Models are smaller than the paper's" in text.replace("&#x27;", "'")
    assert "All 312 trials" in page.of("summary")
    assert 'data-file="length-power-trials.csv"' in text
    assert 'data-file="gate-cost.csv"' in text


def test_long_tables_start_folded(page, text):
    assert f"Every draw, {4 * len(LENGTHS)} rows" in page.of("summary")
    assert "relu, alpha 1" in page.of("summary")
    assert "<details open" not in text


def test_trials_are_counted_by_status(page):
    facts = "length-power \u00b7 paper 1, figure 2 \u00b7 trials: 250 finished, 62 failed"
    assert facts in page.of("p")
    bare = one_study(trials=DataTable(name="t", title="t", head=("trial",), rows=[("a",)]))
    assert "1 trials" in report_studies([bare], title="")


def test_every_study_says_what_was_trained_on_what(page, text):
    assert page.of("p").count(scaling().scope) == len(STUDIES)
    departed = text.partition('id="study-scaling"')[2].partition("</section>")[0]
    assert "Not as the paper has it. </strong>At small: images of 32 x 32.</p>" in departed
    assert text.count("Not as the paper has it.") == 1


def test_curves_of_many_runs_are_thin_lines_by_activation(page):
    many = [f for f in page.figures if len(f["data"]) == MOST_RUNS]
    assert len(many) == 6  # 3 quantities, 2 axes
    first = many[0]["data"]
    named = [trace for trace in first if trace["showlegend"]]
    assert [trace["name"] for trace in named] == list(ACTIVATIONS[:6])
    assert len({trace["line"]["color"] for trace in first}) == 6
    assert all(len(trace["x"]) <= 80 for trace in first)
    assert first[0]["text"] == "relu-0"


def test_runs_that_are_validated_once_have_no_empty_charts(tmp_path):
    runs = [make_run(tmp_path / f"run-{i}", steps=100, seed=i) for i in range(3)]
    page = Page(report_studies([one_study(runs=read_runs(runs))], title=""))
    drawn = [f for f in page.figures if [t["text"] for t in f["data"]][:1] == ["run-0"]]
    assert len(drawn) == 2  # training, 2 axes
    assert all(len(trace["x"]) > 1 for figure in drawn for trace in figure["data"])


def legend_of_curves(tmp_path, factors):
    """What the first chart of curves calls its lines, with the note above it."""
    runs = [make_run(tmp_path / f"run-{i}") for i in range(len(factors))]
    text = report_studies([one_study(runs=read_runs(runs), factors=factors)], title="")
    traces = next(f["data"] for f in Page(text).figures if f["data"][0]["text"] == "run-0")
    named = {trace["name"]: trace["line"]["color"] for trace in traces if trace["showlegend"]}
    return named, re.search(r"Colored by ([^;]*);|A line names", text).group(1)


def test_curves_are_told_apart_by_all_that_is_varied_but_the_seed(tmp_path):
    factors = [
        {"attention": attention, "length": length, "tokens": 64, "seed": seed}
        for attention in ("relu", "softmax")
        for length in (256, 512)
        for seed in (0, 1)
    ]
    named, by = legend_of_curves(tmp_path, factors)
    assert list(named) == [
        *("relu, length 256", "relu, length 512"),
        *("softmax, length 256", "softmax, length 512"),
    ]
    assert len(set(named.values())) == 4
    assert by == "attention and length"


def test_curves_leave_out_factors_for_which_colors_do_not_suffice(tmp_path):
    factors = [{"kind": f"k{i}", "alpha": a} for i in range(5) for a in (0.5, 1.0)]
    named, by = legend_of_curves(tmp_path, factors)
    assert list(named) == ["k0", "k1", "k2", "k3", "k4"]
    assert len(set(named.values())) == 5
    assert by == "kind"


def test_curves_of_seeds_alone_have_one_color(tmp_path):
    named, by = legend_of_curves(tmp_path, [{"seed": 0}, {"seed": 1}])
    assert list(named) == ["all"]
    assert by is None


def test_color_of_an_attention_is_that_of_its_charts(page):
    chart = next(f for f in page.figures if len(f["data"]) == 8)
    curves = next(f for f in page.figures if len(f["data"]) == MOST_RUNS)
    charted = {trace["name"]: trace["line"]["color"] for trace in chart["data"]}
    for trace in curves["data"]:
        assert trace["line"]["color"] == charted[trace["name"]]


def test_attention_is_shown_for_a_few_runs(studies, tmp_path):
    runs = [add_attention(make_run(tmp_path / f"run-{i}")) for i in range(MOST_MAPS + 5)]
    page = Page(report_studies([one_study(runs=read_runs(runs))], title=""))
    assert f"{MOST_MAPS} of {MOST_MAPS + 5} runs that have them." in page.of("p")
    assert sum(address.startswith("data:image/png") for address in page.addresses) == MOST_MAPS


def test_environments_are_told_apart_with_their_studies(text):
    body = text.partition('id="environment"')[2]
    assert re.search(r"<th[^>]*>torch</th><td[^>]*>2\.13\.0</td>", body)
    assert re.search(r"an H200</th><td>56</td><td[^>]*>scaling, length-power</td>", body)
    assert re.search(r"a CPU</th><td>6</td><td[^>]*>length-power</td>", body)
    assert "2026-11-15 18:09" in body


def test_commands_repeat_every_study(page, studies):
    *blocks, last = page.of("code")
    assert [block.splitlines() for block in blocks] == [list(s.commands) for s in studies]
    assert set(page.of("h3")) >= {study.name for study in studies}
    assert last.startswith("flashpoint train ")


def test_page_is_small_but_for_plotly(text):
    assert text.count("plotly.js v") == 1
    from plotly.offline import get_plotlyjs

    assert len(text) - len(get_plotlyjs()) < 1_500_000


def test_nothing_is_fetched(page):
    assert all(address.startswith(("#", "data:")) for address in page.addresses)


def test_study_that_found_nothing_yet_is_shown():
    empty = Findings(verdicts=[], charts=[], tables=[])
    trials = DataTable(name="trials", title="", head=("trial", "status"), rows=[])
    page = Page(report_studies([one_study(findings=empty, trials=trials)], title=""))
    assert "Nothing yet." in page.of("p")
    assert "1 study, no verdict yet." in page.of("div")
    assert "No study has a trial that says where it was made." in page.of("p")


def test_numbers_that_are_not_finite_do_not_break_the_page():
    series = [Series(name="a", x=(1.0, math.inf), y=(math.nan, math.inf), low=(math.nan,) * 2)]
    study = scaling()
    charts = [dataclasses.replace(chart, series=series) for chart in study.findings.charts]
    verdicts = [verdict("c", "undecided", math.nan, math.inf, (0, math.inf))]
    rows = [("a", math.nan), ("b", math.inf)]
    tables = [DataTable(name="t", title="t", head=("x", "y"), rows=rows)]
    findings = Findings(verdicts=verdicts, charts=charts, tables=tables)
    text = report_studies([dataclasses.replace(study, findings=findings)], title="")
    assert 'data-value="Infinity">inf</td>' in text
    Page(text)


def test_text_of_users_is_escaped():
    text = report_studies([hostile()], title=EVIL)
    assert EVIL not in text
    page = Page(text)
    assert EVIL in page.of("h2")
    assert EVIL in page.of("blockquote")
    (commands,) = page.of("code")
    assert commands == EVIL
    ids = re.findall(r'<section id="([^"]*)"', text)
    assert {a[1:] for a in page.addresses if a.startswith("#")} == set(ids)


@pytest.mark.parametrize(
    ("region", "said"),
    [
        ((0, math.inf), "at least 0"),
        ((-math.inf, 1.5), "at most 1.5"),
        ((-1, 1), "from -1 to 1"),
        ((2, 2), "exactly 2"),
        ((-math.inf, math.inf), "any value"),
    ],
)
def test_region_is_said_in_words(region, said):
    assert describe_region(region) == said


def test_strip_shows_the_interval_where_it_lies():
    inside = strip(verdict("", "supports", 2.0, 1.0, (0, 4)))
    left, width = map(float, re.search(r'rect x="([\d.]+)".*?width="([\d.]+)"', inside).groups())
    low, high = map(float, re.search(r'd="M([\d.]+) 11H([\d.]+)" class="int', inside).groups())
    assert left < low < float(re.search(r'cx="([\d.]+)"', inside).group(1)) < high < left + width
    outside = strip(verdict("", "contradicts", 9.0, 1.0, (-math.inf, 4)))
    left, width = map(float, re.search(r'rect x="([\d.]+)".*?width="([\d.]+)"', outside).groups())
    low = float(re.search(r'd="M([\d.]+) 11H[\d.]+" class="int', outside).group(1))
    assert left == 0.0
    assert left + width < low


def test_strip_is_left_out_without_numbers():
    assert strip(verdict("", "undecided", None, 0, (0, 1))) == ""
    assert strip(verdict("", "undecided", math.nan, 1.0, (0, 1))) == ""


def test_value_without_an_interval_is_shown_alone():
    bare = dataclasses.replace(verdict("", "undecided", 0.123456, 0, (0, 1)), low=None, high=None)
    assert "<strong>0.1235</strong>" in join([value_cell(bare).shown])
    assert " to -" not in verdict_card(bare)


def test_report_imports_neither_torch_nor_matplotlib():
    code = (
        "import sys; import flashpoint.lab.report.study_report;"
        "sys.exit(bool({'torch', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_number_is_rounded_onto_the_bound_that_it_misses():
    missed = dataclasses.replace(
        verdict("", "undecided", -1.049, 1.0, (-1, math.inf)), low=-7.449, high=2.21
    )
    assert "-1.05" in verdict_card(missed)
    assert ": -7.4 to 2.2." in verdict_card(dataclasses.replace(missed, region=(-2, math.inf)))
