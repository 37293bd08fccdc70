"""Studies on disk: what is written, what is refused, and how a folder is read."""

import math
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from lab.study.tiny import (
    AFTERWARDS,
    SETTINGS,
    STUDY,
    alone,
    content,
    measurement,
    plan,
    read_json,
    settle,
    statuses,
    training,
)

from flashpoint.errors import InputError
from flashpoint.lab.runs import names, trials, writing
from flashpoint.lab.study import store

VALIDATION = {"top1": 0.5, "loss": None}
RECORD = {
    **{"seconds": 2, "flops": 3e9, "peak_memory_bytes": None, "steps": 12, "skipped": 7},
    "validation": VALIDATION,
}
ANSWERS = {"far": {"top1": 0.25}, "few": {"mean": 0.75}}
NOT_FINITE = pytest.approx(math.nan, nan_ok=True)


def test_plan_comes_back_as_it_was(tmp_path):
    trials = plan(SETTINGS)
    folders = settle(tmp_path, trials)
    assert [folder.name for folder in folders] == [trial.name for trial in trials]
    assert [store.plain_trial(store.read_trial(folder)) for folder in folders] == [
        store.plain_trial(trial) for trial in trials
    ]
    found = store.read_study(tmp_path)
    assert (found.name, found.settings) == ("tiny", SETTINGS)
    assert set(statuses(folders).values()) == {"waiting"}


def test_file_says_of_a_trial_that_it_runs_alone_and_of_others_nothing(tmp_path):
    timed, other = measurement("timed", "sleep", seconds=1), measurement("other", "add")
    folders = settle(tmp_path, [alone(timed), other, training("relu")])
    works = [read_json(folder / names.TRIAL)["work"] for folder in folders]
    assert [work.get("is_alone") for work in works] == [True, None, None]
    assert [store.runs_alone(folder) for folder in folders] == [True, False, False]
    assert store.read_trial(folders[0]) == alone(timed)


def test_settling_again_changes_nothing(tmp_path):
    settle(tmp_path, plan(SETTINGS))
    before = {file: file.stat().st_ino for file in tmp_path.glob("*/trial.json")}
    settle(tmp_path, plan(SETTINGS))
    assert {file: file.stat().st_ino for file in tmp_path.glob("*/trial.json")} == before


@pytest.mark.parametrize("name", ["step_time", "stored_benchmarks", "variance"])
def test_trial_whose_file_names_a_module_is_the_same_trial(tmp_path, name):
    """As versions did that called any function; of these names alone it is understood."""
    trial = measurement("old", name)
    (folder,) = settle(tmp_path, [trial])
    stored = read_json(folder / names.TRIAL)
    stored["work"]["function"] = f"flashpoint.study.measures.{name}:measure"
    writing.write_json(folder / names.TRIAL, stored)
    before = content(tmp_path)
    assert settle(tmp_path, [trial]) == [folder]
    assert store.read_trial(folder) == trial
    assert content(tmp_path) == before


def test_trial_that_was_removed_and_is_not_planned_leaves_the_study(tmp_path):
    first, second = settle(tmp_path, [training("relu"), training("few")])
    shutil.rmtree(second)
    assert settle(tmp_path, [training("relu")]) == [first]


def test_changed_trial_is_refused_by_its_key(tmp_path):
    settle(tmp_path, [training("relu")])
    with pytest.raises(InputError) as caught:
        settle(tmp_path, [training("other"), training("relu", batch_size=32)])
    assert str(caught.value) == (
        f"{tmp_path}/relu-seed0 holds another plan: work.config.batch_size was 16, is 32. Pass "
        "--fresh to remove what is there, or another --out."
    )
    assert not (tmp_path / "other-seed0").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": "small"}, "scale was 'smoke', is 'small'"),
        ({"images": "mnist:x"}, "images was 'digits', is 'mnist:x'"),
    ],
)
def test_other_settings_are_refused(tmp_path, change, said):
    settle(tmp_path, [training("relu")])
    with pytest.raises(InputError, match=said):
        settle(tmp_path, [training("relu")], replace(SETTINGS, **change))


def test_other_seeds_are_the_same_study_and_keep_all_trials(tmp_path):
    settle(tmp_path, plan(SETTINGS))
    fewer = replace(SETTINGS, seeds=1)
    names = [folder.name for folder in settle(tmp_path, plan(fewer), fewer)]
    assert names == ["relu-seed0", "relu-seed1", "few-seed0", "few-seed1", "add"]
    assert store.read_study(tmp_path).settings.seeds == 1
    assert [folder.name for folder in settle(tmp_path, plan(fewer), fewer)] == names


def test_trials_that_follow_later_take_their_places_in_the_plan(tmp_path):
    whole = plan(SETTINGS)
    for some in (whole[-1:], whole[1:2], whole[:1]):
        folders = settle(tmp_path, some)
    assert [folder.name for folder in folders] == [whole[i].name for i in (0, 1, -1)]


def test_status_follows_from_the_files(tmp_path):
    (folder,) = settle(tmp_path, [training("relu", 0, AFTERWARDS)])
    seen = []

    def look():
        seen.append(store.read_outcome(folder).status)

    look()
    (folder / names.LOG).write_text("began\nand broke\n")
    look()
    trials.record_failure(folder, "two\nlines")
    look()
    assert read_json(folder / names.FAILURE) == {
        "reason": "two lines",
        "log": ["began", "and broke"],
    }
    assert store.read_outcome(folder).reason == "two lines"
    (folder / names.FAILURE).unlink()
    writing.write_json(folder / names.RECORD, RECORD)
    look()
    writing.write_json(folder / names.EVALUATIONS, {"far": ANSWERS["far"]})
    look()
    writing.write_json(folder / names.EVALUATIONS, ANSWERS)
    look()
    assert seen == ["waiting", "stopped", "failed", "stopped", "stopped", "finished"]


@pytest.mark.slow
def test_trial_that_began_runs_as_long_as_its_study_is_held(tmp_path):
    (folder,) = settle(tmp_path, [training("relu")])
    (folder / names.LOG).write_text("began\n")
    code = (
        "import sys; from pathlib import Path\n"
        "from flashpoint.lab.runs.trials import claim_study\n"
        "with claim_study(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as runner:
        runner.stdout.readline()
        assert store.read_outcome(folder).status == "running"
        runner.kill()
    assert (tmp_path / names.LOCK).exists()
    assert store.read_outcome(folder).status == "stopped"


@pytest.mark.slow
def test_whoever_runs_a_study_may_look_at_it_and_still_holds_it(tmp_path):
    (folder,) = settle(tmp_path, [training("relu")])
    (folder / names.LOG).write_text("began\n")
    with trials.claim_study(tmp_path):
        assert store.read_outcome(folder).status == "running"
        code = (
            "import sys; from pathlib import Path; from flashpoint.lab.runs.locks import is_held\n"
        )
        command = [sys.executable, "-c", f"{code}sys.exit(not is_held(Path(sys.argv[1])))"]
        subprocess.run([*command, str(tmp_path / names.LOCK)], check=True)
    assert store.read_outcome(folder).status == "stopped"


def test_looking_at_a_study_writes_nothing(tmp_path):
    (folder,) = settle(tmp_path, [training("relu")])
    (folder / names.LOG).write_text("began\n")
    before = content(tmp_path)
    assert store.read_outcome(folder).status == "stopped"
    assert content(tmp_path) == before


def test_numbers_of_a_training_are_those_of_record_validation_and_evaluations(tmp_path):
    (folder,) = settle(tmp_path, [training("relu", 3, AFTERWARDS)])
    writing.write_json(folder / names.RECORD, RECORD)
    writing.write_json(folder / names.EVALUATIONS, ANSWERS)
    outcome = store.read_outcome(folder)
    assert outcome.numbers == {
        **{"seconds": 2.0, "flops": 3e9, "skipped": 7.0, "top1": 0.5, "loss": NOT_FINITE},
        **{"far.top1": 0.25, "few.mean": 0.75},
    }
    assert outcome.factors == {"attention": "relu", "seed": 3}
    assert (outcome.name, outcome.reason) == ("relu-seed3", None)


def test_numbers_of_a_measurement_are_its_own(tmp_path):
    (folder,) = settle(tmp_path, [measurement("add", "add", x=1, y=2)])
    writing.write_json(folder / names.RECORD, {"numbers": {"sum": 3, "bad": None}, "seconds": 9})
    assert store.read_outcome(folder).numbers == {"sum": 3.0, "bad": NOT_FINITE}


@pytest.mark.parametrize("name", [names.RECORD, names.EVALUATIONS, names.FAILURE])
def test_trial_with_a_broken_file_has_failed_and_says_which(tmp_path, name):
    (folder,) = settle(tmp_path, [training("relu")])
    writing.write_json(folder / names.RECORD, RECORD)
    (folder / name).write_text('{"half": ')
    outcome = store.read_outcome(folder)
    assert outcome.status == "failed"
    assert outcome.reason.startswith(f"{folder / name} cannot be read: ")
    assert outcome.reason.endswith(f". Remove {folder} to do the trial again.")


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}', '{"study": "x", "trials": []}'])
def test_broken_plans_are_one_line(tmp_path, text):
    (folder,) = settle(tmp_path, [training("relu")])
    (folder / names.TRIAL).write_text(text)
    (tmp_path / names.STUDY).write_text(text)
    kept = f"Remove {tmp_path / names.STUDY} and give the command that ran the study again"
    for read, path, advice in (
        (store.read_trial, folder, f"Remove {folder} to do the trial again."),
        (store.read_study, tmp_path, f"{kept}: trials are kept."),
    ):
        said = r"cannot be read|must hold|is missing|is unknown"
        with pytest.raises(InputError, match=said) as caught:
            read(path)
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith(f". {advice}")


def test_trial_whose_folder_is_gone_says_so(tmp_path):
    (folder,) = settle(tmp_path, [training("relu")])
    (folder / names.TRIAL).unlink()
    with pytest.raises(InputError, match=r"has no trial\.json\. Give the command that ran the"):
        store.read_outcome(folder)


def test_folder_that_is_no_study_says_so(tmp_path):
    with pytest.raises(InputError, match=r"has no study\.json\. Make one: flashpoint study run"):
        store.read_study(tmp_path)


def test_studies_are_found_in_their_folder_and_above(tmp_path):
    for name in ("b", "a"):
        settle(tmp_path / name, [training("relu")])
    (tmp_path / "other").mkdir()
    assert trials.find_studies(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert trials.find_studies(tmp_path / "a") == [tmp_path / "a"]
    assert trials.find_studies(tmp_path / "a" / "relu-seed0") == []


def test_removing_a_study_removes_nothing_else(tmp_path):
    settle(tmp_path, [training("relu")])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    trials.remove_study(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]


@pytest.mark.slow
def test_study_is_held_by_one_process(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from flashpoint.lab.runs.trials import claim_study\n"
        "with claim_study(Path(sys.argv[1])): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with trials.claim_study(tmp_path):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is in use by process" in done.stderr
    assert "which runs this study. Wait until it ends, or pass another --out." in done.stderr
    assert subprocess.run(command, check=False).returncode == 0


def test_place_that_cannot_be_written_is_one_line():
    from pathlib import Path

    with (
        pytest.raises(InputError, match=r"/proc/none/tiny cannot be written: .* another --out"),
        trials.claim_study(Path("/proc/none/tiny")),
    ):
        pass


@pytest.mark.slow
def test_reading_needs_no_torch():
    code = (
        "import sys; import flashpoint.lab.study.store, flashpoint.lab.study.local, "
        "flashpoint.lab.study.needs, flashpoint.lab.cli.study_view, flashpoint.lab.study.on_ray;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_study_has_its_name_in_the_folder(tmp_path):
    settle(tmp_path, [training("relu")])
    assert read_json(tmp_path / names.STUDY)["study"] == STUDY.name
