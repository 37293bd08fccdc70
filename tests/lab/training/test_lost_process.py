"""A process that dies ends the others in one line, and torchrun's restart goes on."""

import re
import sys

import pytest
from lab.training.runs import curve, finish, train_quietly, write_config

from flashpoint.lab.training import config_file

pytestmark = pytest.mark.distributed

RESTARTED = """
import os, signal, sys, typer
sys.path.insert(0, sys.argv[1])
import lab.training.mesh_runs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from flashpoint.lab.cli.train import train
from flashpoint.lab.runs import checkpoints
from flashpoint.lab.training.step import Step

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def killed_in_step(self, batch):
    step(self, batch)
    self.done = getattr(self, "done", 0) + 1
    if self.done == 5:  # while the other process waits for it
        die()

def killed_in_checkpoint(folder, number, digests, state):
    if number == 6:
        die()
    return commit(folder, number, digests, state)

step, commit = Step.__call__, checkpoints.commit

def hanging(self, batch):
    step(self, batch)
    signal.sigwait([signal.SIGTERM])  # the other has ended
    os._exit(1)

def work(config, out):
    # torchrun ends whoever is left at once; here each is to say first whom it lost
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    number, rank = (int(os.environ[n]) for n in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
    if number == 0 and rank == 1:
        Step.__call__ = killed_in_step
    if number == 1 and rank == 0:
        checkpoints.commit = killed_in_checkpoint
    if number == 2 and rank == 1:
        Step.__call__ = hanging
    try:
        train(config, out=out)
    except typer.Exit as error:
        sys.exit(error.exit_code)

# What torchrun --standalone --max-restarts 3 does, with processes that are forked.
launch = LaunchConfig(
    min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=3, monitor_interval=0.1,
    run_id="test", rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork",
)
from pathlib import Path
elastic_launch(launch, work)(sys.argv[2], Path(sys.argv[3]))
"""


def test_restarts_go_on_after_kills_in_a_step_and_in_a_checkpoint_and_a_hang(tmp_path, request):
    """All files of step 6 are written when the process dies that would give it its name."""
    changes = ("steps=8", "log_every=2", "evaluate_every=8", "checkpoint_every=2")
    config = write_config(tmp_path, *changes, "parallel={shard: true, timeout_s: 4}")
    alone, out, script = (tmp_path / name for name in ("alone", "run", "train.py"))
    train_quietly(config_file.load(config), alone)
    script.write_text(RESTARTED)
    tests = request.config.rootpath / "tests"
    done = finish([sys.executable, script, tests, config, out])
    assert done.returncode == 0, done.stderr
    lost = re.findall(r"error: process 0 of 2 lost process 1, which (.+?) \(", done.stderr)
    assert lost == ["died", "did not answer"]
    for rank in (1, 0):  # torchrun's own report
        assert f"failed (exitcode: -9) local_rank: {rank} (pid: " in done.stderr
    # A checkpoint is written while training goes on, and is there at the latest when the next is.
    first, second, _ = re.findall(r"going on from step (\d) of 8", done.stderr)
    assert first in ("2", "4")
    assert second == "4"
    assert not list((out / "checkpoints").glob(".unfinished*"))
    for mine, theirs in zip(curve(alone), curve(out), strict=True):
        assert mine.pop("kind") == theirs.pop("kind")
        assert mine == pytest.approx(theirs, rel=1e-4)
