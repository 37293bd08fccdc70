"""The study of adaptation, which is not registered until it has results."""

import re

import pytest
from lab.study.studies.cases import NO, OPEN, YES
from lab.study.studies.outcomes import PAPER, SMALL, SMOKE, noise

from flashpoint.lab.runs.names import TRIAL
from flashpoint.lab.runs.trials import read_evaluations
from flashpoint.lab.runs.writing import write_json
from flashpoint.lab.study.evaluations import run_evaluation
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.store import plain_trial
from flashpoint.lab.study.studies.adapt import STUDY
from flashpoint.lab.study.trial import do_trial
from flashpoint.lab.training import config_file
from flashpoint.lab.training.vision import vit_config


def outcomes(converted, calibrated, adapted, scratch=0.8, settings=SMALL):
    """Softmax at 80%, and what became of it."""
    found = []
    for trial in STUDY.plan(settings):
        at = noise(trial.factors["seed"])
        stages = {"converted": converted, "calibrated": calibrated, "adapted": adapted}
        numbers = {
            f"{evaluation.name}.{stage}": value + at
            for evaluation in trial.work.afterwards
            for stage, value in stages.items()
        }
        top1 = 0.8 if trial.factors["attention"] == "softmax" else scratch
        facts = {"name": trial.name, "factors": trial.factors, "status": "finished"}
        found.append(Outcome(**facts, numbers={"top1": top1 + at, **numbers}))
    return found


def parts(config):
    return config.model, config.data


@pytest.mark.parametrize("settings", [SMOKE, SMALL, PAPER], ids=lambda settings: settings.scale)
def test_plan_can_be_built_and_has_names_of_its_own(settings):
    plan = STUDY.plan(settings)
    names = [trial.name for trial in plan]
    assert plan == STUDY.plan(settings)
    assert len(set(names)) == len(names) == 3 * settings.seeds
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) for name in names)
    for trial in plan:
        attention = vit_config(*parts(config_file.parse(trial.work.config))).attention
        word = trial.factors["attention"]
        assert attention.word == word
        assert len(trial.work.afterwards) == (4 if word == "softmax" else 0)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0.3, 0.5, 0.795), [YES, YES, YES]),
        ((0.5, 0.3, 0.7), [NO, NO, NO]),
        ((0.3, 0.5, 0.7, 0.6), [YES, NO, YES]),
    ],
)
def test_verdicts_follow_from_the_numbers(numbers, expected):
    found = STUDY.findings(outcomes(*numbers))
    assert [verdict.word for verdict in found.verdicts] == 2 * expected
    (chart,) = found.charts
    assert all(len(series.y) == 6 for series in chart.series)


def test_nothing_gives_findings_without_a_verdict():
    found = STUDY.findings([])
    assert {verdict.word for verdict in found.verdicts} == {OPEN}
    assert any("Nothing has been run" in note for note in found.notes)


@pytest.mark.slow
def test_smoke_trial_has_every_number(tmp_path):
    trial = next(t for t in STUDY.plan(SMOKE) if t.factors["attention"] == "softmax")
    folder = tmp_path / trial.name
    folder.mkdir()
    write_json(folder / TRIAL, plain_trial(trial))
    assert do_trial(folder, keep_checkpoints=True) == "finished", (folder / "log.txt").read_text()
    answers = read_evaluations(folder)
    stages = {"teacher", "converted", "calibrated", "matched", "adapted"}
    assert {name: set(found) for name, found in answers.items()} == {
        f"{name}_{percent}": stages for name in ("relu", "relu4_sum") for percent in (5, 20)
    }
    options = {"attention": "relu", "share": 0.05}
    assert run_evaluation("adapt", folder, options) == answers["relu_5"]
