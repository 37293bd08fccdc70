"""A run under torchrun whose processes die or hang, one fault a start; what a test's process runs.

Nothing is imported twice: all processes are forked from this one.
"""

import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import typer
from lab.training import mesh_runs  # noqa: F401  imported once, before the processes are forked
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flashpoint.distributed import ring
from flashpoint.lab.cli.train import train
from flashpoint.lab.runs import checkpoints
from flashpoint.lab.training.step import Step

step, add = Step.__call__, ring.PartialGradients.add
commit, create_stream = checkpoints.commit, FileSystem.create_stream
STEP, CHECKPOINT = 5, 6
"""The update of a start, and the checkpoint of a run, in which a process is killed."""
PATIENCE_S = 60


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def killed_after_step(self, batch):
    step(self, batch)
    self.done = getattr(self, "done", 0) + 1
    if self.done == STEP:  # while the other process waits for it
        die()


def hang():
    signal.sigwait([signal.SIGTERM])  # the other has ended
    os._exit(1)


def hanging(self, batch):
    step(self, batch)
    hang()


def counted_step(self, batch):
    self.done = getattr(self, "done", 0) + 1
    if self.done == STEP:
        ring.PartialGradients.add = killed_in_ring
    step(self, batch)


def killed_in_ring(self, *given):
    """With the other's keys and values, whose gradients it waits for."""
    self.blocks = getattr(self, "blocks", 0) + 1
    if self.blocks == 2:
        die()
    return add(self, *given)


def hanging_in_ring(self, *given):
    hang()


def killed_in_commit(folder, number, digests, state):
    if number == CHECKPOINT:
        die()
    return commit(folder, number, digests, state)


class Broken:
    """A file that is written by another function, of the stream and the content."""

    def __init__(self, stream, write):
        self._stream, self._write = stream, write

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, content):
        self._write(self._stream, content)


def write_half(stream, content):
    stream.write(content[: len(content) // 2])
    stream.flush()
    die()


def write_nothing(stream, content):
    """The thread that writes waits, and training goes on."""
    hang()


@contextmanager
def killed_in_file(self, path, mode):
    is_last = f"step_{CHECKPOINT}/" in str(path)
    with create_stream(self, path, mode) as stream:
        yield Broken(stream, write_half) if is_last else stream


@contextmanager
def stuck_in_file(self, path, mode):
    with create_stream(self, path, mode) as stream:
        yield Broken(stream, write_nothing)


FAULTS = {
    "step": (1, Step, "__call__", killed_after_step),
    "hang": (1, Step, "__call__", hanging),
    "ring": (1, Step, "__call__", counted_step),
    "hang in ring": (1, ring.PartialGradients, "add", hanging_in_ring),
    "commit": (0, checkpoints, "commit", killed_in_commit),
    "file": (1, FileSystem, "create_stream", killed_in_file),
    "hang in file": (1, FileSystem, "create_stream", stuck_in_file),
}
"""The process that is lost, and what it does instead of which function."""


def work(config, out, faults, all_forked):
    """Train in one process, with the fault of this start, once all have been forked.

    The store's thread looks up the name of a process that connects to it, and holds a lock of the
    C library meanwhile. One that is forked in that moment would wait for this lock forever.
    """
    # torchrun ends whoever is left at once; here each is to say first whom it lost
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    start, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
    if rank == 0:
        for file in out.glob("checkpoints/.unfinished*/*"):
            sys.stderr.write(f"start {start} finds {file.parent.name}/{file.name}\n")
    if start < len(faults):
        lost, owner, name, fault = FAULTS[faults[start]]
        if rank == lost:
            setattr(owner, name, fault)
    all_forked.wait(PATIENCE_S)
    try:
        train(config, out=out)
    except typer.Exit as error:
        sys.exit(error.exit_code)


def main(size, config, *plans):
    """What torchrun --standalone --max-restarts N does, for runs "FOLDER:FAULT,FAULT"."""
    for plan in plans:
        out, _, words = plan.partition(":")
        faults = words.split(",") if words else []
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=int(size),
            max_restarts=len(faults),
            monitor_interval=0.1,
            run_id="test",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            start_method="fork",
        )
        all_forked = multiprocessing.get_context("fork").Barrier(int(size))
        elastic_launch(launch, work)(config, Path(out), faults, all_forked)
