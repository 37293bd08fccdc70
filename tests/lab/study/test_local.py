"""Trials as processes of this machine: side by side, killed, failed, stopped, taken up again."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from lab.data.pictures import make_folder
from lab.study.tiny import (
    alone,
    assert_alone,
    content,
    measurement,
    read_json,
    settle,
    statuses,
    training,
    use_in_processes,
)

from flashpoint.lab.runs import names
from flashpoint.lab.runs.failure import Preempted
from flashpoint.lab.study import local, store
from flashpoint.lab.study.local import run_locally

pytestmark = pytest.mark.slow

LONG = {"steps": 4000, "checkpoint_every": 20, "evaluate_every": 4000, "log_every": 20}
RUN = """
import sys
from pathlib import Path
from flashpoint.lab.study.local import run_locally
folders = [Path(word) for word in sys.argv[1:]]
run_locally(folders, jobs=1, keep_checkpoints=False, on_look=lambda standing: None)
"""


@pytest.fixture(autouse=True)
def _processes_find_us(monkeypatch, tmp_path_factory):
    use_in_processes(monkeypatch, tmp_path_factory.mktemp("site"))


def run(folders, jobs=1, on_look=lambda standing: None):
    run_locally(folders, jobs=jobs, keep_checkpoints=False, on_look=on_look)


def wait_for(condition, seconds=180.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def process_of(folder):
    """The last process that began to write to a trial's log."""
    return int(re.findall(r", process (\d+)$", (folder / names.LOG).read_text(), re.M)[-1])


def has_checkpoint(folder):
    return any((folder / "checkpoints").glob("step_*"))


def is_alive(pid):
    return os.path.exists(f"/proc/{pid}")


def test_failures_are_recorded_and_others_go_on(tmp_path):
    folders = settle(
        tmp_path,
        [
            measurement("first", "process"),
            measurement("dead", "die"),
            measurement("bad", "break_down"),
            training("wrong", batch_size=-1),
            measurement("last", "process"),
        ],
    )
    seen = []
    run(folders, on_look=lambda standing: seen.append(dict(standing)))
    assert statuses(folders) == {
        **{"first": "finished", "last": "finished"},
        **{"dead": "failed", "bad": "failed", "wrong-seed0": "failed"},
    }
    reasons = {folder.name: store.read_outcome(folder).reason for folder in folders}
    assert reasons["dead"].startswith("the process was ended by SIGKILL; the machine may be out")
    assert reasons["bad"] == "ZeroDivisionError: division by zero"
    assert "about to divide" in read_json(folders[2] / names.FAILURE)["log"]
    assert {folder.name: status for folder, status in seen[-1].items()} == statuses(folders)
    assert any("running" in look.values() for look in seen)


def test_process_does_one_trial_after_another_as_long_as_none_fails(tmp_path):
    names = ("a", "b")
    folders = settle(tmp_path, [measurement(name, "process") for name in names])
    run(folders)
    assert len({store.read_outcome(folder).numbers["pid"] for folder in folders}) == 1


def test_trials_run_side_by_side(tmp_path):
    folders = settle(tmp_path, [measurement(name, "sleep", seconds=1.5) for name in "abc"])
    most = []
    run(folders, 3, lambda standing: most.append(list(standing.values()).count("running")))
    assert max(most) == 3
    assert set(statuses(folders).values()) == {"finished"}


def test_what_is_timed_runs_alone_after_all_others(tmp_path):
    trials = [measurement(name, "sleep", seconds=1.0) for name in "abcde"]
    trials[0], trials[2] = alone(trials[0]), alone(trials[2])
    folders = settle(tmp_path, trials)
    most = []
    run(folders, 3, lambda standing: most.append(list(standing.values()).count("running")))
    assert max(most) == 3
    ends = {folder.name: store.read_outcome(folder).numbers["end"] for folder in folders}
    assert sorted(ends, key=ends.__getitem__)[-2:] == ["a", "c"]
    for name in "ac":
        assert_alone(folders, name)


def test_images_that_workers_read_reach_the_trial(tmp_path, monkeypatch):
    """The trial's process listens for its next one while it forks those workers."""
    monkeypatch.setattr(local, "SECONDS_TO_SAVE", 1.0)
    images = tmp_path / "images"
    for split in ("train", "val"):
        make_folder(images / split, {"a": 20, "b": 20})
    data = {"train": str(images), "validation": str(images), "image_size": 8, "workers": 2}
    folders = settle(tmp_path / "tiny", [training("relu", seed, data=data) for seed in range(2)])
    end = time.monotonic() + 60

    def look(standing):
        assert time.monotonic() < end, "the trial hangs"

    run(folders, on_look=look)
    assert [store.read_outcome(folder).reason for folder in folders] == [None, None]
    assert set(statuses(folders).values()) == {"finished"}


def test_failed_trial_is_tried_again(tmp_path):
    once = measurement("once", "die_once", file=str(tmp_path / "been_here"))
    (folder,) = settle(tmp_path / "tiny", [once])
    run([folder])
    assert statuses([folder]) == {"once": "failed"}
    run([folder])
    assert store.read_outcome(folder).numbers == {"times": 2.0}


def test_signal_lets_trials_save_and_says_how_to_go_on(tmp_path):
    folders = settle(tmp_path, [training("relu", seed, **LONG) for seed in range(2)])

    def stop():
        wait_for(lambda: has_checkpoint(folders[0]))
        os.kill(os.getpid(), signal.SIGINT)

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(Preempted) as caught:
        run(folders)
    stopper.join()
    assert str(caught.value) == (
        "stopped by SIGINT; what had begun is saved. Give the same command again to go on."
    )
    log = (folders[0] / names.LOG).read_text()
    assert "stopped by SIGTERM at step " in log
    assert statuses(folders) == {"relu-seed0": "stopped", "relu-seed1": "waiting"}


def hanging(folder):
    """The process that hangs there, once it does."""
    wait_for(
        lambda: (folder / names.LOG).exists() and "hangs in" in (folder / names.LOG).read_text()
    )
    return int((folder / names.LOG).read_text().split("hangs in ")[1])


def test_trial_that_does_not_stop_is_killed_and_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "SECONDS_TO_SAVE", 0.5)
    (folder,) = settle(tmp_path, [measurement("deaf", "hang")])
    found = []

    def stop():
        found.append(hanging(folder))
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(Preempted):
        run([folder])
    stopper.join()
    assert not is_alive(found[0])
    assert store.read_outcome(folder).reason == (
        "it did not stop within 0.5 s and was killed; its log may say why."
    )


def test_second_ctrl_c_kills_at_once(tmp_path):
    (folder,) = settle(tmp_path, [measurement("deaf", "hang")])
    found = []

    def interrupt_twice():
        found.append(hanging(folder))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    stopper = threading.Thread(target=interrupt_twice)
    stopper.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run([folder])
    stopper.join()
    assert time.monotonic() - start < local.SECONDS_TO_SAVE / 2
    assert not is_alive(found[0])


def test_trial_that_was_asked_to_stop_from_outside_has_not_failed(tmp_path):
    folders = settle(tmp_path, [training("relu", **LONG), measurement("next", "process")])

    def stop():
        wait_for(lambda: has_checkpoint(folders[0]))
        os.kill(process_of(folders[0]), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    seen = []
    run(folders, on_look=lambda standing: seen.append(dict(standing)))
    stopper.join()
    assert statuses(folders) == {"relu-seed0": "stopped", "next": "finished"}
    assert seen[-1] == {folders[0]: "stopped", folders[1]: "finished"}


def test_killed_runner_leaves_no_process_and_its_trial_goes_on(tmp_path):
    (folder,) = settle(tmp_path, [training("relu", **LONG | {"steps": 600})])
    command = [sys.executable, "-c", RUN, str(folder)]
    with subprocess.Popen(command) as runner:
        wait_for(lambda: has_checkpoint(folder))
        worker = process_of(folder)
        runner.kill()
    run([folder])  # at once, while the orphan still saves
    assert statuses([folder]) == {"relu-seed0": "finished"}
    assert "going on from step " in (folder / names.LOG).read_text()
    wait_for(lambda: not is_alive(worker))


def test_process_that_cannot_begin_is_a_failure_with_its_log(tmp_path, monkeypatch):
    (folder,) = settle(tmp_path, [measurement("pid", "process")])
    (tmp_path / "broken" / "flashpoint").mkdir(parents=True)
    (tmp_path / "broken" / "flashpoint" / "__init__.py").write_text("raise OSError('no disk')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    run([folder])
    failure = read_json(folder / names.FAILURE)
    assert failure["reason"] == "the process ended with status 1; its log may say why."
    assert failure["log"][-1] == "OSError: no disk"


def test_nothing_to_do_starts_nothing(tmp_path):
    before = content(tmp_path)
    run([])
    assert content(tmp_path) == before
