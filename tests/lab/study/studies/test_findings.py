"""What findings make of outcomes: verdicts in both directions, and of what is missing, none."""

import math
import re
from dataclasses import replace

import pytest
from lab.study.studies.cases import CASES, NO, OPEN, YES, gate, samples, scaling, variance
from lab.study.studies.outcomes import findings, planned, words

from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.registry import STUDIES

every_study = pytest.mark.parametrize("name", STUDIES)


@pytest.mark.parametrize(
    ("name", "numbers", "expected"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)]
)
def test_verdicts_follow_from_the_numbers(name, numbers, expected):
    assert words(name, numbers) == expected


@every_study
def test_every_verdict_has_cases_in_both_directions(name):
    for found in zip(*(expected for case, _, expected in CASES if case == name), strict=True):
        assert {YES, NO} <= set(found)


@every_study
def test_findings_draw_what_there_is(name):
    found = STUDIES[name].findings(samples(name))
    assert found.charts
    assert found.tables
    for chart in found.charts:
        assert chart.name.startswith(name)
        assert any(series.y for series in chart.series), chart.name
        for series in chart.series:
            assert len(series.x) == len(series.y)
            assert len(series.low) == len(series.high)
            assert len(series.low) in (0, len(series.y))
    for table in found.tables:
        assert table.rows
        assert all(len(row) == len(table.head) for row in table.rows)
    names = [thing.name for thing in (*found.charts, *found.tables)]
    assert len({chart.name for chart in found.charts}) == len(found.charts)
    assert len({table.name for table in found.tables}) == len(found.tables)
    assert all(" " not in name for name in names)


@every_study
def test_nothing_gives_findings_without_a_verdict(name):
    found = STUDIES[name].findings([])
    assert found.verdicts
    assert all(verdict.word == OPEN for verdict in found.verdicts)
    assert any("Nothing has been run" in note for note in found.notes)


@every_study
def test_trials_that_wait_or_failed_give_no_verdict_and_are_said(name):
    waiting = [Outcome(name=t.name, factors=t.factors, status="waiting") for t in planned(name)]
    failed = replace(waiting[0], status="failed", reason="out of memory.")
    found = STUDIES[name].findings([failed, *waiting[1:]])
    assert all(verdict.word == OPEN for verdict in found.verdicts)
    assert any("out of memory." in note for note in found.notes)
    assert any(f"0 of {len(waiting)} trials" in note for note in found.notes)


@every_study
def test_verdicts_that_lack_a_failed_trial_say_so(name):
    """Trials in turn: where one changes a verdict's numbers, the note counts it."""
    whole = STUDIES[name].findings(samples(name)).verdicts
    missed = 0
    for outcome in samples(name)[::9]:
        failed = replace(outcome, status="failed", numbers={})
        some = [failed if other.name == outcome.name else other for other in samples(name)]
        for verdict, before in zip(STUDIES[name].findings(some).verdicts, whole, strict=True):
            is_said = re.search(r"\b1 of \d+ runs failed\.", verdict.note) is not None
            assert is_said or verdict == before, (outcome.name, verdict)
            missed += is_said
    assert missed


@every_study
def test_half_of_the_trials_give_findings_with_numbers(name):
    some = samples(name)
    half = [
        outcome if n % 2 else replace(outcome, status="running", numbers={})
        for n, outcome in enumerate(some)
    ]
    found = STUDIES[name].findings(half)
    assert all(verdict.word in (YES, NO, OPEN) for verdict in found.verdicts)
    for chart in found.charts:
        assert all(len(series.x) == len(series.y) for series in chart.series)


@every_study
def test_trials_that_have_not_finished_do_not_count_whatever_numbers_they_have(name):
    unfinished = [replace(outcome, status="running") for outcome in samples(name)]
    found = STUDIES[name].findings(unfinished)
    assert all(verdict.word == OPEN for verdict in found.verdicts)


@every_study
def test_one_seed_is_too_few_for_a_verdict(name):
    one = [outcome for outcome in samples(name) if outcome.factors.get("seed", 0) == 0]
    found = STUDIES[name].findings(one)
    assert all(verdict.word == OPEN for verdict in found.verdicts)


@every_study
def test_numbers_that_are_not_finite_decide_nothing_and_are_said(name):
    some = samples(name)
    broken = [
        replace(outcome, numbers=dict.fromkeys(outcome.numbers, math.nan)) for outcome in some
    ]
    found = STUDIES[name].findings(broken)
    for verdict in found.verdicts:
        assert (verdict.word, verdict.value) == (OPEN, None)
        count = re.search(r"(\d+) of (\d+) runs diverged", verdict.note)
        assert count is not None
        assert count[1] == count[2] != "0"
    assert any(f"{len(some)} of {len(some)} finished trials diverged" in n for n in found.notes)
    for chart in found.charts:
        if not chart.name.startswith("speed-kernels"):  # stored times are finite
            ys = [y for series in chart.series for y in series.y]
            assert all(y is None or math.isfinite(y) for y in ys), chart.name


def test_a_verdict_says_its_quantity_in_its_unit():
    verdict = findings("scaling", scaling(0.004)).verdicts[0]
    assert verdict.value == pytest.approx(-0.4)
    assert verdict.region == (-1.0, math.inf)
    verdict = findings("gate", gate(0.1, 0.09)).verdicts[1]
    assert verdict.value == pytest.approx(9.0, abs=0.02)
    verdict = findings("variance", variance(off=1.3)).verdicts[0]
    assert verdict.value == pytest.approx(0.3)


@pytest.mark.parametrize("name", STUDIES)
def test_a_difference_is_said_as_one_thing_minus_another(name):
    for verdict in STUDIES[name].findings(samples(name)).verdicts:
        assert " less " not in verdict.unit
        assert verdict.unit.count(" minus ") <= 1
        assert " minus " not in verdict.unit.partition(", ")[0]


def test_a_run_that_diverged_counts_once_however_many_numbers_it_has():
    some = samples("variance")
    some[0] = replace(some[0], numbers=dict.fromkeys(some[0].numbers, math.nan))
    for verdict in STUDIES["variance"].findings(some).verdicts:
        assert (verdict.word, verdict.value) == (OPEN, None)
        assert "1 of 3 runs diverged." in verdict.note
