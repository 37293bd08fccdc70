"""Case after case: in this process or in several, until a number or a time is reached."""

import math
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from flashpoint.lab.selfcheck.draws import Scope, draw_case
from flashpoint.lab.selfcheck.run import Outcome, run_case

GRACE_S = 10.0
LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Which cases to run.

    Attributes:
        scope: where, and by which implementations.
        seed: the cases are numbered under it.
        first: number of the first one.
        cases: how many; None: as many as the time allows.
        time_limit: seconds after which no new case begins; None: no limit.
        jobs: processes. Cases of a group go to the same one: what is compiled serves them all.
    """

    scope: Scope
    seed: int = 0
    first: int = 0
    cases: int | None = None
    time_limit: float | None = None
    jobs: int = 1

    def indices(self, job: int, first: int) -> Iterator[int]:
        """Cases of one process from a number on."""
        end = math.inf if self.cases is None else self.first + self.cases
        index = first
        while index < end:
            if index // self.scope.group % self.jobs == job:
                yield index
            index += 1


@dataclass(slots=True)
class Tally:
    """What came of the cases so far.

    Attributes:
        judged, refused: how many were.
        done: their numbers, as they came.
        worst: the one that used the largest share of its budget.
        misses: those that used more than all of it, or raised.
        seconds: how long it took.
        cut: why it ended before its time, if it did.
    """

    judged: int = 0
    refused: int = 0
    done: list[int] = field(default_factory=list[int])
    worst: Outcome | None = None
    misses: list[Outcome] = field(default_factory=list[Outcome])
    seconds: float = 0.0
    cut: str = ""

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        self.done.append(outcome.index)
        if outcome.is_refused:
            self.refused += 1
            return
        self.judged += 1
        if outcome.is_miss:
            self.misses.append(outcome)
        if self.worst is None or not outcome.ratio <= self.worst.ratio:
            self.worst = outcome

    def ranges(self) -> list[tuple[int, int]]:
        """The numbers that are done, as first and last of each unbroken row.

        Example:
            >>> Tally(done=[4, 1, 2, 7, 3]).ranges()
            [(1, 4), (7, 7)]
        """
        rows: list[tuple[int, int]] = []
        for index in sorted(set(self.done)):
            begins = not rows or rows[-1][1] + 1 < index
            rows.append((index, index) if begins else (rows.pop()[0], index))
        return rows


def check(request: Request, on_outcome: Callable[[Tally], None]) -> Tally:
    """Run the cases; Ctrl-C ends it early with what was done."""
    tally, start = Tally(), time.monotonic()
    limit = math.inf if request.time_limit is None else request.time_limit
    deadline = time.time() + limit
    outcomes = (
        _in_this_process(request, deadline, tally)
        if request.jobs == 1
        else _in_processes(request, deadline, tally)
    )
    try:
        for outcome in outcomes:
            tally.add(outcome)
            tally.seconds = time.monotonic() - start
            on_outcome(tally)
    except KeyboardInterrupt:
        tally.cut = "stopped by Ctrl-C"
    finally:
        outcomes.close()
    tally.seconds = time.monotonic() - start
    return tally


def _in_this_process(
    request: Request, deadline: float, tally: Tally
) -> Generator[Outcome, None, None]:
    device = torch.device(request.scope.device)
    with _poisoned_memory():
        for index in request.indices(0, request.first):
            outcome = run_case(draw_case(request.seed, index, request.scope), device)
            yield outcome
            if outcome.is_miss and not _is_usable(device):
                tally.cut = f"the GPU could not be used after case {index}"
                return
            if time.time() >= deadline:
                return


@contextmanager
def _poisoned_memory() -> Generator[None]:
    """Memory that nobody has written yet is NaN, so that a result left out shows."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic mode asks for it
    usual = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(usual)


def _is_usable(device: torch.device) -> bool:
    """False where an error has left the GPU's context broken."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
    return True


def _in_processes(
    request: Request, deadline: float, tally: Tally
) -> Generator[Outcome, None, None]:
    """All processes' outcomes as they come; one that dies in a case is replaced, which is a miss.

    Cases that a compiler holds up are given GRACE_S after the deadline, and then up.
    """
    workers = {w.reader: w for w in (_Worker(request, j, deadline) for j in range(request.jobs))}
    try:
        while workers:
            left = min(deadline + GRACE_S - time.time(), LONGEST_WAIT_S)
            if left <= 0:
                tally.cut = f"{len(workers)} cases were not done {GRACE_S:.0f} s after the limit"
                return
            for reader in wait(list(workers), left):
                worker = workers[reader]  # pyright: ignore[reportArgumentType]
                outcome = worker.receive()
                if outcome is not None:
                    yield outcome
                if worker.has_ended:
                    del workers[worker.reader]
                    if worker.is_unfinished and time.time() < deadline:
                        fresh = _Worker(request, worker.job, deadline, worker.at + 1)
                        workers[fresh.reader] = fresh
    finally:
        for worker in workers.values():
            worker.stop()


class _Worker:
    """A process that does its share of the cases and sends what comes of them."""

    def __init__(
        self, request: Request, job: int, deadline: float, first: int | None = None
    ) -> None:
        context = get_context("spawn")
        self.request, self.job = request, job
        self.at = request.first if first is None else first
        self.has_ended = self.is_unfinished = self.is_at_work = False
        self.reader, writer = context.Pipe(duplex=False)
        arguments = (request, job, deadline, self.at, writer)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        writer.close()  # or its end would not be seen when the process dies

    def receive(self) -> Outcome | None:
        """What the process has sent: an outcome, or that a case begins, or the end."""
        try:
            message: Any = self.reader.recv()
        except EOFError:
            return self._bury()
        if isinstance(message, int):
            self.at, self.is_at_work = message, True
        elif isinstance(message, Outcome):
            self.is_at_work = False
            return message
        else:
            self.has_ended, self.is_unfinished = True, message == "broken"
            self.process.join()
        return None

    def _bury(self) -> Outcome:
        """The miss of a process that died; before its first case nothing is left to try again."""
        self.process.join()
        self.has_ended, self.is_unfinished = True, self.is_at_work
        line = str(draw_case(self.request.seed, self.at, self.request.scope))
        status = f"the process ended with status {self.process.exitcode}"
        if not self.is_at_work:
            status += " between cases; the rest of its share was not run"
        return Outcome(self.at, line, math.inf, status)

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join()


def _work(request: Request, job: int, deadline: float, first: int, writer: Connection) -> None:
    """What a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that counts
    device = torch.device(request.scope.device)
    torch.set_num_threads(1)
    with _poisoned_memory():
        for index in request.indices(job, first):
            if time.time() >= deadline:
                break
            writer.send(index)
            outcome = run_case(draw_case(request.seed, index, request.scope), device)
            writer.send(outcome)
            if outcome.is_miss and not _is_usable(device):
                writer.send("broken")
                return
    writer.send("done")
