"""What the user sees of a run: a bar on a terminal, lines now and then elsewhere."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_OF_SILENCE = 10.0
_LEAST_WAIT = 0.05  # a share of time; less is not worth a word


class Progress:
    """Shows steps, loss, speed and time left; silent in all processes but the first.

    Args:
        console: where to; None is standard error.
        name: of the run.
        unit: what samples are called.
        total: steps of the run.
        is_shown: whether this process shows anything.
    """

    def __init__(
        self, console: Console | None, *, name: str, unit: str, total: int, is_shown: bool
    ) -> None:
        self._console = (console or Console(stderr=True)) if is_shown else Console(quiet=True)
        self._name, self._unit, self._total = name, unit, total
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._shown_at = self._began_at = time.monotonic()
        self._began = 0

    def start(self, step: int) -> None:
        """Begin at a step."""
        self._began, self._began_at = step, time.monotonic()
        if not self._console.is_terminal or self._console.quiet:
            return
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(
            self._name, total=self._total, completed=step, numbers="starting"
        )
        self._bar.start()

    @contextmanager
    def paused(self, reason: str = "") -> Generator[None]:
        """Around what is no step, so that its time does not count for what is left.

        ``reason`` is said before, if there is one.
        """
        if reason:
            self.say(reason)
        began = time.monotonic()
        yield
        self._began_at += time.monotonic() - began

    def step(self, step: int) -> None:
        """A step is launched; the bar moves, or a line says so if there was none for long."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=step)
        elif now - self._shown_at >= _SECONDS_OF_SILENCE:
            self._shown_at = now
            left = (self._total - step) * (now - self._began_at) / (step - self._began)
            self.say(f"{self._name}: step {step}/{self._total}, about {_clock(left)} left")

    def log(self, line: Mapping[str, Any], seconds_left: float) -> None:
        """Show a line of metrics."""
        numbers = self._numbers(line)
        if self._bar is not None:
            self._bar.update(self._task, completed=line["step"], numbers=numbers)
            return
        is_last = line["step"] >= self._total
        if is_last or time.monotonic() - self._shown_at >= _SECONDS_BETWEEN_LINES:
            self._shown_at = time.monotonic()
            left = f"{_clock(seconds_left)} left"
            self.say(f"{self._name}: step {line['step']}/{self._total}, {numbers}, {left}")

    def validated(self, line: Mapping[str, Any]) -> None:
        """Show a line of validation."""
        self.say(f"{self._name}: validation at step {line['step']}: {describe_numbers(line)}")

    def say(self, text: str) -> None:
        """One line, above the bar."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _numbers(self, line: Mapping[str, Any]) -> str:
        loss = "no finite loss" if line["loss"] is None else f"loss {line['loss']:.4g}"
        parts = [loss, f"{line[f'{self._unit}_per_s']:,.0f} {self._unit}/s"]
        if line.get("utilisation") is not None:
            parts.append(f"{line['utilisation']:.0%} of the device's matrix rate")
        if line.get("data_wait", 0.0) >= _LEAST_WAIT:
            parts.append(f"waiting for data {line['data_wait']:.0%}")
        if line["skipped"]:
            parts.append(f"{line['skipped']} updates left out")
        if line.get("broken"):
            parts.append(f"{line['broken']} {self._unit} unreadable")
        return ", ".join(parts)


def describe_numbers(line: Mapping[str, Any]) -> str:
    """The numbers of a validation in a few words; shares between 0 and 1 of top-k as percent.

    Example:
        >>> describe_numbers({"kind": "validation", "step": 3, "top1": 0.5, "loss": 1.25})
        'top1 50.00%, loss 1.25'
    """
    return ", ".join(
        f"{name} {value:.2%}" if name.startswith("top") else f"{name} {value:.4g}"
        for name, value in line.items()
        if isinstance(value, float) and name != "seconds"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
