"""Trials on this machine, some at a time, each in a process of its own.

A process does one trial after the other, since loading torch takes longer than a small trial. One
that failed or died is replaced by a fresh one.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from flashpoint.lab.runs import names, trials
from flashpoint.lab.runs.failure import Preempted
from flashpoint.lab.study import store
from flashpoint.lab.study.outcome import Status
from flashpoint.lab.study.trial import KEEP, STOPPED
from flashpoint.lab.training.stopping import Wish, stop_wishes

SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_TO_SAVE = 120.0
"""For trials that are asked to stop; those that take longer are killed."""

OnLook: TypeAlias = Callable[[Mapping[Path, Status]], None]
"""Told how all trials stand, several times a second."""


def run_locally(
    folders: Sequence[Path], *, jobs: int, keep_checkpoints: bool, on_look: OnLook
) -> None:
    """Do trials that are not finished, in their order; failures are recorded and stop no other.

    Measurements that run alone come last, one at a time.

    Args:
        folders: of trials, with their ``trial.json``.
        jobs: how many at a time; they share the processor's cores.
        keep_checkpoints: leave them when a trial has finished.
        on_look: for a view.

    Raises:
        Preempted: SIGTERM or Ctrl-C came; what had begun was saved.
    """
    standing: dict[Path, Status] = dict.fromkeys(folders, "waiting")
    alone = {folder for folder in folders if store.runs_alone(folder)}
    waiting = sorted(folders, key=alone.__contains__)
    pool = _Pool(jobs, keep_checkpoints)
    with stop_wishes() as wish, pool:
        while waiting or pool.is_busy:
            if wish:
                raise stopped_by(wish)
            while waiting and (not pool.is_busy if waiting[0] in alone else pool.has_room):
                folder = waiting.pop(0)
                pool.start(folder)
                standing[folder] = "running"
            standing |= pool.ended()
            on_look(standing)
            time.sleep(SECONDS_BETWEEN_LOOKS)


def stopped_by(wish: Wish) -> Preempted:
    """What the user hears when trials were asked to stop."""
    return Preempted(
        f"stopped by {wish.name}; what had begun is saved. Give the same command again to go on."
    )


class _Pool:
    """So many processes, gone at the end; asked to stop, they save first, or are killed."""

    def __init__(self, size: int, keep_checkpoints: bool) -> None:
        self._size, self._options = size, [KEEP] if keep_checkpoints else []
        self._busy: dict[Path, _Worker] = {}
        self._idle: list[_Worker] = []
        cores = (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        )
        self._threads = max(1, (cores or 1) // size)

    @property
    def is_busy(self) -> bool:
        return bool(self._busy)

    @property
    def has_room(self) -> bool:
        return len(self._busy) < self._size

    def start(self, folder: Path) -> None:
        """Give a trial to a process, a new one if none is idle."""
        while self._idle and self._idle[-1].process.poll() is not None:
            self._idle.pop().close()
        log = folder / names.LOG
        fresh = not self._idle
        worker = _Worker(log, self._options, self._threads) if fresh else self._idle.pop()
        worker.give(folder)
        self._busy[folder] = worker

    def ended(self) -> dict[Path, Status]:
        """Trials that ended since the last time, and how."""
        found: dict[Path, Status] = {}
        for folder, worker in list(self._busy.items()):
            status = worker.process.poll()
            if worker.has_answered():
                found[folder] = "finished"
                self._idle.append(worker)
            elif status is not None:
                found[folder] = _judge_death(folder, status)
                worker.close()
            else:
                continue
            del self._busy[folder]
        return found

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        workers = [*self._busy.values(), *self._idle]
        try:
            for worker in workers:
                worker.process.terminate()
            end = time.monotonic() + SECONDS_TO_SAVE
            for worker in workers:
                worker.wait_until(end)
            for folder, worker in self._busy.items():
                if worker.process.poll() is None:
                    _record_hanging(folder)
        finally:  # a second Ctrl-C comes here at once
            for worker in workers:
                worker.close()


class _Worker:
    """A process of ``study/trial.py``; what it says before its first trial goes to that's log."""

    def __init__(self, log: Path, options: Sequence[str], threads: int) -> None:
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flashpoint.lab.study.trial", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={"OMP_NUM_THREADS": str(threads), **os.environ},
                start_new_session=True,  # Ctrl-C reaches the runner only, which stops them
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._to, self._from = self.process.stdin, self.process.stdout

    def give(self, folder: Path) -> None:
        with suppress(BrokenPipeError):  # it died, as poll() will say
            self._to.write(f"{folder}\n".encode())
            self._to.flush()

    def has_answered(self) -> bool:
        ready, _, _ = select.select([self._from], [], [], 0)
        return bool(ready and os.read(self._from.fileno(), 1))

    def wait_until(self, end: float) -> None:
        """Let it end by itself, up to a time of ``time.monotonic``."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, end - time.monotonic()))

    def close(self) -> None:
        """Kill it if it has not ended."""
        self.process.kill()
        self.process.wait()
        self._from.close()
        with suppress(BrokenPipeError):
            self._to.close()


def _judge_death(folder: Path, status: int) -> Status:
    """How a trial stands whose process has ended."""
    if status == STOPPED:
        return "stopped"
    if not (folder / names.FAILURE).exists():
        trials.record_failure(folder, describe_death(status))
    return "failed"


def _record_hanging(folder: Path) -> None:
    """Say of a trial that it was asked to stop and did not."""
    trials.record_failure(
        folder,
        f"it did not stop within {SECONDS_TO_SAVE:g} s and was killed; its log may say why.",
    )


def describe_death(status: int) -> str:
    """Why a process ended that recorded nothing.

    Example:
        >>> describe_death(-9)
        'the process was ended by SIGKILL; the machine may be out of memory.'
    """
    if status >= 0:
        return f"the process ended with status {status}; its log may say why."
    name = signal.Signals(-status).name
    memory = "; the machine may be out of memory" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{memory}."
