"""A process that dies ends the others in one line, and torchrun's restart goes on."""

import re
import sys
import threading

import pytest
from lab.training import restarted
from lab.training.runs import assert_same_run, curve, finish, train_quietly, write_config

from flashpoint.lab.training import config_file

pytestmark = pytest.mark.distributed

RESTARTED = """
import sys
sys.path.insert(0, sys.argv[1])
from lab.training import restarted
restarted.main(*sys.argv[2:])
"""
CHANGES = ("steps=8", "log_every=2", "evaluate_every=8", "checkpoint_every=2")


def run_with_faults(request, size, config, *plans):
    """What processes of torchrun say that make runs with faults, as ``restarted`` has them."""
    tests = request.config.rootpath / "tests"
    done = finish([sys.executable, "-c", RESTARTED, tests, str(size), config, *plans])
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_restarts_go_on_after_kills_in_a_step_and_in_a_checkpoint_and_a_hang(tmp_path, request):
    """All files of step 6 are written when the process dies that would give it its name."""
    config = write_config(tmp_path, *CHANGES, "parallel={shard: true, timeout_s: 4}")
    alone, out = tmp_path / "alone", tmp_path / "run"
    train_quietly(config_file.load(config), alone)
    said = run_with_faults(request, 2, config, f"{out}:step,commit,hang")
    lost = re.findall(r"error: process 0 of 2 lost process 1, which (.+?) \(", said)
    assert lost == ["died", "did not answer"]
    for rank in (1, 0):  # torchrun's own report
        assert f"failed (exitcode: -9) local_rank: {rank} (pid: " in said
    # A checkpoint is written while training goes on, and is there at the latest when the next is.
    first, second, _ = re.findall(r"going on from step (\d) of 8", said)
    assert first in ("2", "4")
    assert second == "4"
    assert not list((out / "checkpoints").glob(".unfinished*"))
    for mine, theirs in zip(curve(alone), curve(out), strict=True):
        assert mine.pop("kind") == theirs.pop("kind")
        assert mine == pytest.approx(theirs, rel=1e-4)


def test_restarts_go_on_after_kills_in_a_rings_backward_and_in_a_file(tmp_path, request):
    """Bit for bit as processes that nobody disturbs; of a file of step 6 half was written."""
    parallel = "parallel={sequence: 2, strategy: ring, shard: true, timeout_s: 10}"
    config = write_config(tmp_path, *CHANGES, parallel)
    out, whole = tmp_path / "run", tmp_path / "whole"
    said = run_with_faults(request, 2, config, f"{out}:ring,file", whole)
    lost = re.findall(
        r"error: process 0 of 2 lost process (\d), which died \([A-Z][a-z ]+\)\.", said
    )
    assert lost == re.findall(r"failed \(exitcode: -9\) local_rank: (\d) ", said) == ["1", "1"]
    first, second = re.findall(r"going on from step (\d) of 8", said)
    assert first in ("2", "4")
    assert second == "4"
    assert "start 2 finds .unfinished_step_6/shard-00002-" in said
    assert not list((out / "checkpoints").glob(".unfinished*"))
    assert_same_run(out, whole)


@pytest.mark.parametrize("place", ["ring", "file"])
def test_all_end_if_one_hangs_while_others_wait_by_another_group(place, tmp_path, request):
    """For a neighbor's message, or in the thread that writes a checkpoint."""
    parallel = "parallel={sequence: 2, strategy: ring, shard: true, timeout_s: 4}"
    config = write_config(tmp_path, *CHANGES, parallel)
    said = run_with_faults(request, 2, config, f"{tmp_path / 'run'}:hang in {place}")
    assert "error: process 0 of 2 lost process 1, which did not answer (" in said
    assert said.count("first step of 8") == 2  # no checkpoint was whole


def test_processes_begin_when_all_are_forked(tmp_path, monkeypatch):
    """Else the next may be forked with a lock that a thread of torchrun's holds, and hang."""
    begun, all_forked = threading.Event(), threading.Barrier(2)
    monkeypatch.setattr(restarted, "train", lambda config, out: begun.set())
    for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"):
        monkeypatch.setenv(name, "0")
    first = threading.Thread(target=restarted.work, args=(None, tmp_path, [], all_forked))
    first.start()
    assert not begun.wait(0.2)
    all_forked.wait(restarted.PATIENCE_S)
    first.join()
    assert begun.is_set()
