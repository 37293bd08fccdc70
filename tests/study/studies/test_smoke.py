"""Whole studies at smoke, through the real loop: numbers arrive where findings look for them."""

import math

import pytest
from study.studies.outcomes import SMOKE
from study.studies.running import do

from flashpoint.study.registry import STUDIES

NAMES = ("gate", "variance", "learned-length", "longer-than-trained", "speed")


@pytest.mark.parametrize("name", NAMES)
def test_smoke_study_draws_its_figures(name, tmp_path):
    plan = STUDIES[name].plan(SMOKE)
    outcomes = [do(trial, tmp_path) for trial in plan]
    assert all(math.isfinite(value) for o in outcomes for value in o.numbers.values())
    found = STUDIES[name].findings(outcomes)
    for chart in found.charts:
        assert all(series.y for series in chart.series), chart.name
    for verdict in found.verdicts:
        assert verdict.word == "undecided"
        assert "1 of at least 3 seeds" in verdict.note
    assert not any("failed" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaling", "retrieval"])
def test_slower_smoke_study_draws_its_figures(name, tmp_path):
    outcomes = [do(trial, tmp_path) for trial in STUDIES[name].plan(SMOKE)]
    found = STUDIES[name].findings(outcomes)
    for chart in found.charts:
        assert all(series.y for series in chart.series), chart.name
    assert all(verdict.word == "undecided" for verdict in found.verdicts)
