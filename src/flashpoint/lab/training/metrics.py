"""metrics.jsonl, one line a log step, and the same numbers for TensorBoard."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flashpoint.files import json_text
from flashpoint.lab.runs.metrics import FILE, read_metrics
from flashpoint.lab.training.checkpoint import replace_file, writing

Line = Mapping[str, Any]


class Metrics:
    """Writes a run's numbers; what stands there beyond ``step`` is dropped.

    Args:
        folder: of the run.
        step: where the run goes on.
        say: takes a line for the user.
    """

    def __init__(self, folder: Path, step: int, say: Callable[[str], None]) -> None:
        self.path = folder / FILE
        found = read_metrics(folder)
        self.lines: list[Line] = [line for line in found if line["step"] <= step]
        self.num_dropped = len(found) - len(self.lines)
        replace_file(self.path, b"".join(_encode(line) for line in self.lines))
        self._file = self.path.open("ab", buffering=0)  # nothing is left to fail in close()
        self._board = _open_board(folder, step, say)

    def add(self, line: Line) -> None:
        """Append a line; a checkpoint makes it last."""
        self.lines.append(line)
        with writing(self.path):
            rest = _encode(line)
            while rest:
                rest = rest[self._file.write(rest) :]
            self._show(line)

    def _show(self, line: Line) -> None:
        numbers = {name: value for name, value in line.items() if isinstance(value, float)}
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(f"{line['kind']}/{name}", value, line["step"])

    def sync(self) -> None:
        """Bring all lines to disk."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def count_at(self, step: int) -> int:
        """Lines that were there when the checkpoint of a step was saved: it is validated later."""
        return sum((line["step"], line["kind"]) != (step, "validation") for line in self.lines)

    def validations(self) -> dict[int, Line]:
        """The validation lines by step."""
        return {line["step"]: line for line in self.lines if line["kind"] == "validation"}

    def close(self) -> None:
        """Write what is left and close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def _encode(line: Line) -> bytes:
    return json_text(line).encode() + b"\n"


def _open_board(folder: Path, step: int, say: Callable[[str], None]) -> Any:
    """TensorBoard's writer, or None and a line that says how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        say("no TensorBoard events: pip install tensorboard to get them.")
        return None
    return SummaryWriter(str(folder), purge_step=step + 1, flush_secs=10)
