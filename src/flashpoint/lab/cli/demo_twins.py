"""Two runs of the demo as processes of their own, and how far they are."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flashpoint.errors import FlashpointError
from flashpoint.lab.cli.train import STOPPED
from flashpoint.lab.runs.names import RECORD
from flashpoint.lab.runs.run_files import Glance, look_at

SECONDS_BETWEEN_LOOKS = 0.2
LIVELY = ("log_every=10", "evaluate_every=45")
"""What makes curves that are worth watching."""


@dataclass(frozen=True, slots=True)
class Twin:
    """One of the runs: its attention, which names it, and its folder."""

    name: str
    folder: Path

    @property
    def is_finished(self) -> bool:
        """Whether it has a record."""
        return (self.folder / RECORD).is_file()

    @property
    def log(self) -> Path:
        """What its process says."""
        return self.folder.with_suffix(".log")

    def command(self, config: Path) -> list[str]:
        """What trains it, or goes on with it."""
        changes = (f"model.attention={self.name}", *LIVELY)
        words = [word for change in changes for word in ("--set", change)]
        train = [sys.executable, "-m", "flashpoint", "train", str(config)]
        return [*train, *words, "--out", str(self.folder)]

    def look(self) -> Glance:
        """How far it is."""
        return look_at(self.folder)


class TwinError(FlashpointError):
    """A run of the demo ended before its end."""


class Stopped(FlashpointError):
    """The demo was interrupted; checkpoints are saved."""


def train_twins(
    twins: Sequence[Twin], config: Path, on_look: Callable[[dict[str, Glance]], None]
) -> None:
    """Train twins side by side, one core each, and show every look at them.

    Two small models on one core each take less time than one after the other on two: tensors
    this small gain little from a second core.
    """
    with _started(twins, config) as processes:
        while any(process.poll() is None for process in processes.values()):
            on_look({twin.name: twin.look() for twin in twins})
            _raise_if_failed(twins, processes)
            time.sleep(SECONDS_BETWEEN_LOOKS)
        on_look({twin.name: twin.look() for twin in twins})
        _raise_if_failed(twins, processes)


@contextmanager
def _started(
    twins: Sequence[Twin], config: Path
) -> Generator[dict[str, "subprocess.Popen[bytes]"]]:
    """Processes that are gone at the end, whatever happens; asked to stop, they save first."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for twin in twins:
            twin.folder.parent.mkdir(parents=True, exist_ok=True)
            with twin.log.open("wb") as log:
                processes[twin.name] = subprocess.Popen(
                    twin.command(config),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
        yield processes
    except KeyboardInterrupt as error:
        raise Stopped("stopped; the same command goes on from the last checkpoint.") from error
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
        for process in processes.values():
            process.wait()


def _raise_if_failed(
    twins: Sequence[Twin], processes: "dict[str, subprocess.Popen[bytes]]"
) -> None:
    """One failure ends both."""
    for twin in twins:
        status = processes[twin.name].poll()
        if status == STOPPED:
            raise Stopped("stopped; the same command goes on from the last checkpoint.")
        if status:
            said = twin.log.read_text(errors="replace").strip().splitlines() or ["nothing"]
            reason = said[-1].removeprefix("error: ")
            raise TwinError(
                f"the {twin.name} run failed: {reason} All it said is in {twin.log}. "
                "To start over, pass --fresh."
            )
