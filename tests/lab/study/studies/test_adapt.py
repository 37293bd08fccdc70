"""Adaptation as an evaluation of a finished trial."""

import pytest
from lab.study.studies.outcomes import SMOKE

from flashpoint.lab.runs.names import TRIAL
from flashpoint.lab.runs.trials import read_evaluations
from flashpoint.lab.runs.writing import write_json
from flashpoint.lab.study.evaluations import run_evaluation
from flashpoint.lab.study.store import plain_trial
from flashpoint.lab.study.studies.adapt import STUDY
from flashpoint.lab.study.trial import do_trial


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
