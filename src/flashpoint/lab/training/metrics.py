"""A run's numbers as they come: to metrics.jsonl, and the same for TensorBoard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashpoint.lab.runs.metrics import Line, MetricsFile
from flashpoint.lab.runs.writing import writing


class Metrics(MetricsFile):
    """Writes a run's numbers; what stands there beyond ``step`` is dropped.

    Args:
        folder: of the run.
        step: where the run goes on.
        say: takes a line for the user.
    """

    def __init__(self, folder: Path, step: int, say: Callable[[str], None]) -> None:
        super().__init__(folder, step)
        self._board = _open_board(folder, step, say)

    def add(self, line: Line) -> None:
        """Append a line; a checkpoint makes it last."""
        super().add(line)
        with writing(self.path):
            self._show(line)

    def _show(self, line: Line) -> None:
        numbers = {name: value for name, value in line.items() if isinstance(value, float)}
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(f"{line['kind']}/{name}", value, line["step"])

    def close(self) -> None:
        """Write what is left and close the files."""
        super().close()
        if self._board is not None:
            self._board.close()


def _open_board(folder: Path, step: int, say: Callable[[str], None]) -> Any:
    """TensorBoard's writer, or None and a line that says how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        say("no TensorBoard events: pip install tensorboard to get them.")
        return None
    return SummaryWriter(str(folder), purge_step=step + 1, flush_secs=10)
