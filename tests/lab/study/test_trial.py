"""The work of one trial in its folder."""

import os
import sys

import pytest
import torch
from lab.study.tiny import AFTERWARDS, content, measurement, read_json, settle, training
from lab.training.runs import curve

from flashpoint.lab.runs import names, writing
from flashpoint.lab.runs.locks import locked
from flashpoint.lab.runs.run_files import read_runs
from flashpoint.lab.study import store, trial
from flashpoint.lab.study.trial import do_trial, main


@pytest.fixture
def place(tmp_path):
    """Settle one trial; gives its folder."""
    return lambda one: settle(tmp_path / "tiny", [one])[-1]


def test_training_is_trained_and_asked(place):
    folder = place(training("relu", 1, AFTERWARDS))
    assert do_trial(folder) == "finished"
    outcome = store.read_outcome(folder)
    assert outcome.status == "finished"
    assert {"top1", "loss", "seconds", "flops", "far.top1", "few.mean"} <= set(outcome.numbers)
    answers = read_json(folder / names.EVALUATIONS)
    assert outcome.numbers["far.top1"] == answers["far"]["top1"] != outcome.numbers["top1"]
    log = (folder / names.LOG).read_text()
    assert "validation at step 12: top1 " in log
    assert "far: classify {'data.image_size': 16}" in log


def test_finished_trial_leaves_small_text_and_of_seed_0_its_attention(tmp_path):
    names = {"config.yaml", "data.json", "log.txt", "metrics.jsonl", "record.json", "trial.json"}
    first, second = settle(tmp_path, [training("relu", seed) for seed in range(2)])
    for folder in (first, second):
        do_trial(folder)
    assert {path.name for path in second.rglob("*")} == names
    shown = {"attention", "statistics.json", "maps.png"}
    assert {path.name for path in first.rglob("*")} == names | shown
    (run,) = read_runs([first])
    assert (run.statistics["step"], run.statistics["num_images"]) == (12, 64)
    assert sum(path.stat().st_size for path in (first / "attention").iterdir()) < 20_000


def test_attention_that_cannot_be_shown_fails_no_trial(place, monkeypatch):
    from flashpoint.lab.study import evaluations

    def fail(folder):
        writing.write_json(folder / "attention" / "statistics.json", {"mass": float("nan")})
        raise ValueError("no matplotlib")

    monkeypatch.setattr(evaluations, "inspect_attention", fail)
    folder = place(training("relu", 0, AFTERWARDS))
    assert do_trial(folder) == "finished"
    assert (
        "attention is not shown: ValueError: no matplotlib\n" in (folder / names.LOG).read_text()
    )
    assert store.read_outcome(folder).numbers["far.top1"]
    assert not (folder / "attention").exists()


def test_trial_that_lost_its_checkpoints_says_how_to_do_it_again(place):
    folder = place(training("relu"))
    do_trial(folder)  # which drops them
    (folder / names.RECORD).unlink()
    before = (folder / "metrics.jsonl").read_bytes()
    assert do_trial(folder) == "failed"
    assert store.read_outcome(folder).reason == (
        f"{folder} began and has lost its checkpoints. Restore them, or remove it to do the trial "
        "again."
    )
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_checkpoints_stay_if_asked_for(place):
    folder = place(training("relu"))
    do_trial(folder, keep_checkpoints=True)
    assert (folder / "checkpoints" / "step_12").is_dir()


def test_finished_trial_is_not_done_again(place):
    folder = place(training("relu", 0, AFTERWARDS))
    do_trial(folder, keep_checkpoints=True)
    before = content(folder)
    assert do_trial(folder, keep_checkpoints=True) == "finished"
    after = content(folder)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {names.LOG}


def test_only_missing_evaluations_are_made(place, monkeypatch):
    from flashpoint.lab.study import evaluations

    asked = []
    monkeypatch.setattr(
        evaluations, "run_evaluation", lambda kind, *_: asked.append(kind) or {"mean": 1.0}
    )
    folder = place(training("relu", 0, AFTERWARDS))
    writing.write_json(folder / names.EVALUATIONS, {"far": {"top1": 0.125}})
    do_trial(folder)
    assert asked == ["probe"]
    assert store.read_outcome(folder).numbers["far.top1"] == 0.125


def test_evaluation_that_fails_keeps_those_before_and_the_weights(place, monkeypatch):
    from flashpoint.lab.study import evaluations

    ask = evaluations.run_evaluation

    def fail(kind, folder, options):
        if kind == "probe":
            raise ValueError("no\nfeatures")
        return ask(kind, folder, options)

    monkeypatch.setattr(evaluations, "run_evaluation", fail)
    folder = place(training("relu", 0, AFTERWARDS))
    assert do_trial(folder) == "failed"
    assert store.read_outcome(folder).reason == "ValueError: no features"
    assert set(read_json(folder / names.EVALUATIONS)) == {"far"}
    monkeypatch.setattr(evaluations, "run_evaluation", ask)
    assert do_trial(folder) == "finished"
    assert not (folder / names.FAILURE).exists()


def test_measurement_keeps_numbers_and_environment(place):
    folder = place(measurement("add", "add", x=1, y=2.5))
    assert do_trial(folder) == "finished"
    record = read_json(folder / names.RECORD)
    assert record["numbers"] == {"sum": 3.5, "nothing": None}
    assert {"device", "torch", "commit", "time_utc"} <= set(record["environment"])
    assert store.read_outcome(folder).numbers["sum"] == 3.5


def test_measurement_is_not_repeated(place):
    folder = place(measurement("pid", "process"))
    writing.write_json(folder / names.RECORD, {"numbers": {"pid": -1}})
    assert do_trial(folder) == "finished"
    assert store.read_outcome(folder).numbers == {"pid": -1.0}


@pytest.mark.skipif(torch.cuda.is_available(), reason="captures updates, as it should")
@pytest.mark.parametrize("compile_", ["graphs", "graphs_only"])
def test_what_needs_a_gpu_for_its_speed_alone_is_left_out_without_one(place, compile_):
    folder = place(training("relu", 1, compile=compile_))
    assert do_trial(folder) == "finished"
    assert "compile: none" in (folder / names.CONFIG).read_text().splitlines()
    said = f"compile='none' instead of {compile_!r}, which needs a GPU"
    assert said in (folder / names.LOG).read_text().splitlines()


def test_our_error_is_the_reason_as_it_is(place):
    folder = place(training("relu", batch_size=-1))
    refused = "batch_size=-1 must be a whole number from 1 to 16,777,216."
    assert do_trial(folder) == "failed"
    assert store.read_outcome(folder).reason == refused
    assert read_json(folder / names.FAILURE)["log"][-1] == f"error: {refused}"


def test_bug_leaves_its_traceback_in_the_log(place):
    folder = place(measurement("bad", "break_down"))
    assert do_trial(folder) == "failed"
    failure = read_json(folder / names.FAILURE)
    assert failure["reason"] == "ZeroDivisionError: division by zero"
    assert failure["log"][-1] == failure["reason"]
    assert any("in break_down" in line for line in failure["log"])


@pytest.mark.parametrize("name", [names.RECORD, names.EVALUATIONS])
def test_broken_file_is_said_and_left(place, name):
    folder = place(training("relu"))
    (folder / name).write_text("{")
    assert do_trial(folder) == "failed"
    reason = read_json(folder / names.FAILURE)["reason"]
    assert reason.startswith(f"{folder / name} cannot be read: ")
    assert reason.endswith(f". Remove {folder} to do the trial again.")
    assert (folder / name).read_text() == "{"


def test_prints_go_to_the_log_and_back(place, capfd):
    folder = place(measurement("loud", "shout"))
    assert do_trial(folder) == "finished"
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "after\n"
    assert "from below\n" in (folder / names.LOG).read_text()


def test_trial_does_not_depend_on_the_one_before(tmp_path):
    one, two = settle(tmp_path / "tiny", [training("relu"), training("relu", 1)])
    (alone,) = settle(tmp_path / "alone", [training("relu", 1)])
    main([str(alone)])
    main([str(one), str(two)])
    assert curve(two) == curve(alone)


def test_modules_are_settled_once_and_nothing_of_a_trial_with_them(monkeypatch):
    done, frozen = [], []
    monkeypatch.setattr(trial, "do_trial", lambda *_, **__: done.append("trial") or "finished")
    monkeypatch.setattr(trial, "_forget_earlier_trials", lambda: done.append("forget"))
    monkeypatch.setattr(trial.gc, "get_freeze_count", lambda: len(frozen))
    monkeypatch.setattr(trial.gc, "freeze", lambda: frozen.append(list(done)))
    main(["one", "two", "three"])
    assert frozen == [["trial", "forget"]]
    assert done == ["trial", "forget", "trial", "trial"]


def test_process_ends_after_a_failure(tmp_path):
    bad, good = settle(tmp_path, [measurement("bad", "break_down"), measurement("pid", "process")])
    assert main([str(bad), str(good)]) == trial.FAILED
    assert store.read_outcome(good).status == "waiting"


@pytest.mark.slow
def test_run_that_another_process_holds_is_waited_for_then_refused(place, monkeypatch):
    import subprocess

    monkeypatch.setattr(trial, "SECONDS_FOR_AN_ORPHAN", 0.5)
    folder = place(training("relu"))
    code = (
        "import sys, time; from pathlib import Path\n"
        "from flashpoint.lab.runs.locks import locked\n"
        "with locked(Path(sys.argv[1])): print(flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(folder / names.LOCK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert do_trial(folder) == "failed"
        assert f"is in use by process {holder.pid}" in store.read_outcome(folder).reason
        holder.kill()
    with locked(folder / names.LOCK):
        pass
    assert do_trial(folder) == "finished"
