"""What the demo shows: two bars while it trains, then a table, files and what to type next."""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flashpoint.lab.cli.demo_twins import Glance
from flashpoint.lab.cli.terminal import LiveView, plain_table
from flashpoint.lab.runs.names import ATTENTION, MAPS, PAGE

COLORS = {"relu": "#e4502a", "softmax": "#5b8def"}
BARS = " ▁▂▃▄▅▆▇█"
MAX_BARS = 12

HEADER = Text.assemble(
    ("Attention with and without softmax", "bold"),
    "\n\nTwo small vision transformers learn to read handwritten digits. They are the same but "
    "for one word: ",
    ("relu", COLORS["relu"]),
    " divides rectified scores by the number of keys, ",
    ("softmax", COLORS["softmax"]),
    " normalizes their exponentials.\n",
)


class Result(NamedTuple):
    """One twin at the end; ``zeros`` is the share of its attention's weights that are zero."""

    name: str
    top1: float
    loss: float
    seconds: float
    images_per_s: float
    zeros: float


class Progress(LiveView):
    """Two live bars on a terminal; elsewhere a line after every fifth of the way."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, refresh_per_second=8)
        self._start = time.monotonic()
        self._shown: dict[str, int] = {}

    def show(self, glances: Mapping[str, Glance]) -> None:
        """Show how far the twins are."""
        seconds = time.monotonic() - self._start
        if self._console.is_terminal:
            self._live.update(_bars(glances, seconds))
            return
        for name, glance in glances.items():
            fifths = int(5 * glance.share) if glance.accuracies else 0
            if fifths > self._shown.get(name, 0):
                self._shown[name] = fifths
                self._console.print(_line(name, glance, seconds), soft_wrap=True)


def _bars(glances: Mapping[str, Glance], seconds: float) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for name, glance in glances.items():
        color = COLORS.get(name, "")
        bar = ProgressBar(total=1.0, completed=glance.share, width=24, complete_style=color)
        accuracy = f"{glance.accuracies[-1]:.1%}" if glance.accuracies else "-"
        grid.add_row(
            Text(name, style=color),
            bar if glance.step else Text("starting", style="dim"),
            f"{glance.share:4.0%}",
            "" if glance.loss is None else f"loss {glance.loss:.3f}",
            Text.assemble("top-1 ", (accuracy, "bold"), " ", (_spark(glance.accuracies), color)),
        )
    share = min(glance.share for glance in glances.values())
    left = f", about {seconds * (1 / share - 1):.0f} s left" if share > 0.1 else ""
    return Group(grid, Text(f"one core each, {seconds:.0f} s{left}", style="dim"))


def _spark(values: Sequence[float]) -> str:
    """The last values as a tiny bar chart from 0 to 1.

    Example:
        >>> _spark([0.0, 0.5, 1.0])
        ' ▄█'
    """
    return "".join(BARS[round(value * (len(BARS) - 1))] for value in values[-MAX_BARS:])


def _line(name: str, glance: Glance, seconds: float) -> str:
    loss = "" if glance.loss is None else f", loss {glance.loss:.3f}"
    return (
        f"{seconds:4.0f} s  {name:8}{glance.share:5.0%}, step {glance.step}{loss}, "
        f"top-1 {glance.accuracies[-1]:.1%}"
    )


def draw_results(results: Sequence[Result]) -> RenderableType:
    """The twins in a table, and what to think of it."""
    headings = ("attention", "top-1", "loss", "training", "images/s", "zero weights")
    table = plain_table(*headings)
    for result in results:
        table.add_row(
            Text(result.name, style=COLORS.get(result.name, "")),
            Text(f"{result.top1:.2%}", style="bold"),
            f"{result.loss:.4f}",
            f"{result.seconds:.1f} s",
            f"{result.images_per_s:,.0f}",
            f"{result.zeros:.0%}",
        )
    return Group(table, Text(), _verdict(results))


def _verdict(results: Sequence[Result]) -> Text:
    """Two sentences on the difference."""
    relu, softmax = results
    points = 100 * (relu.top1 - softmax.top1)
    place = "above" if points > 0 else "below"
    distance = f"{abs(points):.2f} points {place}" if abs(points) >= 0.005 else "level with"
    return Text(
        f"relu ends {distance} softmax, and {relu.zeros:.0%} of its attention's weights are "
        "exactly zero."
    )


def draw_next(out: Path, runs: Sequence[Path], config: Path) -> RenderableType:
    """Files that were made, and commands to go on with."""
    program, run = program_name(), runs[0]
    files = [("Report page, for any browser", out / PAGE)]
    for i, folder in enumerate(runs):
        files.append(("" if i else "Attention maps", folder / ATTENTION / MAPS))
    commands = (
        (f"inspect {run}", "what every head does"),
        (f"probe {run} --data digits", "its features, from 10 images a class"),
        (
            f"train {config} --set model.attention=sigmoid --out {out.parent / 'sigmoid'}",
            "another function in softmax's place",
        ),
        (f"page {' '.join(map(str, runs))}", "both models in a page that runs them"),
        ("bench", "how fast the operator is on this machine"),
        ("--help", "all commands"),
    )
    lines = [Text(), *(Text.assemble((f"{label:30}", "dim"), str(f)) for label, f in files)]
    lines.append(Text("\nNext:"))
    for words, purpose in commands:
        command = f"  {program} {words}"
        lines.append(Text.assemble((command, "bold"), (f"\n      {purpose}", "dim")))
    return Group(*lines)


def program_name() -> str:
    """How this program is called, so that a command can be copied: its path if need be."""
    if shutil.which("flashpoint"):
        return "flashpoint"
    called = Path(sys.argv[0])
    return os.path.relpath(called) if called.name == "flashpoint" else "python -m flashpoint"
