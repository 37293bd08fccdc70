"""Study folders with a broken file: read as they are, or one line that names the file."""

import json
import shutil
from pathlib import Path

import broken_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.study.tiny import AFTERWARDS, SETTINGS, STUDY, measurement, settle, training

from flashpoint.errors import InputError, describe
from flashpoint.lab.runs import names, trials, writing
from flashpoint.lab.study import store
from flashpoint.lab.study.registry import STUDIES
from flashpoint.lab.study.sections import read_section

RECORD = {"seconds": 2, "validation": {"top1": 0.5, "loss": None}, "environment": {"device": "x"}}
FILES = {
    "study.json": None,
    "relu-seed0/trial.json": None,
    "add/trial.json": None,
    "relu-seed0/record.json": RECORD,
    "relu-seed0/evaluations.json": {"far": {"top1": 0.25}, "few": {"mean": None}},
    "add/record.json": {"numbers": {"sum": 3.5}, "seconds": 1},
    "few-seed0/failure.json": {"reason": "no memory", "log": ["a", "b"]},
}


def make_study(folder):
    """A fresh one: one trial finished, one failed, and a measurement."""
    shutil.rmtree(folder, ignore_errors=True)
    trials = [training("relu", 0, AFTERWARDS), training("few"), measurement("add", "add", x=1)]
    settle(folder, trials)
    for name, content in FILES.items():
        if content is not None:
            writing.write_json(folder / name, content)
    return folder


def read_or_refuse(folder, file):
    """Read a study as a report does; refused, the line names the file or its folder."""
    try:
        read_section(folder, {"tiny": STUDY})
    except InputError as error:
        said = str(error)
    else:
        return True
    assert "\n" not in said
    assert str(file.parent) in said
    assert len(said) < 1000
    return False


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_broken_file_of_a_study_is_one_line(tmp_path, name, data):
    file = make_study(tmp_path) / name
    valid = json.loads(file.read_bytes())
    content = data.draw(broken_files.broken(valid))
    file.write_bytes(content)
    try:
        is_known = json.loads(content).get("study", "tiny") == "tiny"
    except (ValueError, RecursionError, AttributeError):
        is_known = True
    if is_known:  # else the command line has refused it
        read_or_refuse(tmp_path, file)


@pytest.mark.parametrize("put", broken_files.NO_FILES)
@pytest.mark.parametrize("name", FILES)
def test_what_lies_where_a_file_was_is_one_line(tmp_path, name, put):
    file = make_study(tmp_path) / name
    put(file)
    if not read_or_refuse(tmp_path, file):
        return
    (outcome,) = [one for one in outcomes(tmp_path) if one.name == file.parent.name]
    assert outcome.status == "failed"
    assert str(file) in outcome.reason


def outcomes(folder):
    return store.read_outcomes(store.read_study(folder), STUDY).values()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../other", "/etc", "a/b", "add/", "./add", "nul\0byte", 256 * "x"]
)
def test_trial_outside_its_study_is_refused(tmp_path, name):
    """What a stranger's study names must not be trained in, and not be tidied."""
    other = tmp_path / "other"
    (other / "checkpoints").mkdir(parents=True)
    folder = make_study(tmp_path / "tiny")
    content = json.loads((folder / names.STUDY).read_text())
    writing.write_json(folder / names.STUDY, {**content, "trials": [*content["trials"], name]})
    with pytest.raises(InputError, match="is no name of a folder") as caught:
        store.read_study(folder)
    said = f"{folder / names.STUDY}: trials has {describe(name)}"
    assert str(caught.value).startswith(said)
    assert (other / "checkpoints").is_dir()


def test_trial_that_is_listed_twice_is_refused(tmp_path):
    folder = make_study(tmp_path)
    content = json.loads((folder / names.STUDY).read_text())
    writing.write_json(folder / names.STUDY, {**content, "trials": 2 * content["trials"]})
    with pytest.raises(InputError, match="trials has a name twice"):
        store.read_study(folder)


@pytest.mark.parametrize(
    ("study", "factors", "said"),
    [
        ("speed", {"measured": "step", "tokens": "x"}, "factors.tokens='x' must be a number, as"),
        ("speed", {"measured": 7}, "factors.measured=7 must be text, as the study speed plans it"),
        ("variance", {"seed": "0", "width": 64}, "factors.seed='0' must be a number, as the"),
    ],
)
def test_factor_of_another_kind_is_one_line(tmp_path, study, factors, said):
    """Findings compare and divide them."""
    known = STUDIES[study]
    stored = store.settle_study(tmp_path, known, SETTINGS, known.plan(SETTINGS)[:1])
    content = json.loads((stored.trials[0] / names.TRIAL).read_text())
    writing.write_json(stored.trials[0] / names.TRIAL, {**content, "factors": factors})
    with pytest.raises(InputError) as caught:
        read_section(tmp_path, STUDIES)
    assert str(caught.value).startswith(f"{stored.trials[0] / names.TRIAL}: {said}")


def test_stored_results_have_the_factors_that_are_planned():
    for folder in trials.find_studies(Path(__file__).parents[3] / "results"):
        stored = store.read_study(folder)
        found = store.read_outcomes(stored, STUDIES[stored.name])
        assert {outcome.status for outcome in found.values()} == {"finished"}
