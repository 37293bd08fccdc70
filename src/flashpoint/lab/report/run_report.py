"""The page of a few runs, from their folders: side by side how good, how long, how large."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashpoint.lab.report.attention import attention
from flashpoint.lab.report.curves import curves
from flashpoint.lab.report.figure import SERIES
from flashpoint.lab.report.html import Cell, Child, Html, join, table, tag
from flashpoint.lab.report.page import Section, build_page
from flashpoint.lab.report.provenance import commands, environment
from flashpoint.lab.runs.format import count, decimal, duration, percent
from flashpoint.lab.runs.run_files import Row, RunFiles, number, read_runs

HEAD = (
    *("run", "attention", "top-1", "top-5", "loss", "best top-1", "training time"),
    *("images/s", "parameters", "training FLOPs"),
)
NOTE = (
    "Top-1, top-5 and loss are those of the validation data at the end. Training time leaves out "
    "validation and checkpoints. The best of each column is green."
)
_PLAIN = {"alpha": 1.0, "length": "visible", "gain": 1.0, "bias": 0.0}


def report_runs(folders: Sequence[Path], *, title: str) -> str:
    """One page with all that the folders hold: table, curves, attention, provenance.

    Args:
        folders: of runs, in the order of the page; unfinished ones are shown as far as they are.
        title: the page's heading.
    """
    runs = read_runs(folders)
    sections = [
        Section(title="Runs", anchor="runs", body=run_table(runs)),
        Section(title="Curves", anchor="curves", body=curves(runs)),
        Section(title="Environment", anchor="environment", body=environment(runs)),
        Section(title="To repeat it", anchor="commands", body=commands(runs)),
    ]
    if seen := attention(runs):
        sections.insert(2, Section(title="Attention", anchor="attention", body=seen))
    return build_page(title, _summary(runs), sections)


def _summary(runs: Sequence[RunFiles]) -> Html:
    """The result in a sentence, or what is being trained."""
    known = [(run, top1) for run in runs if (top1 := final(run, "top1")) is not None]
    if not known:
        return join(["Not validated yet: ", ", ".join(run.name for run in runs), "."])
    parts: list[Html] = []
    for run, top1 in known:
        parts.append(join([f"{describe_attention(run)} ", tag("strong", percent(top1))]))
    return join(["Top-1 on validation data: ", join(parts, ", "), "."])


def run_table(runs: Sequence[RunFiles]) -> Html:
    """One row for each run."""
    rows = [_row(run, i, runs) for i, run in enumerate(runs)]
    return join([table(HEAD, rows, label="runs", file="runs.csv"), tag("p", NOTE, class_="note")])


def final(run: RunFiles, name: str) -> float | None:
    """A number of the last validation, of a run that goes on too."""
    stored = _mapping(run.record, "validation") or (run.validation[-1] if run.validation else {})
    return number(stored, name)


def describe_attention(run: RunFiles) -> str:
    """The mathematics in a few words.

    Example:
        >>> from pathlib import Path
        >>> config = {"model": {"attention": {"activation": "relu", "alpha": 0.5}}}
        >>> describe_attention(RunFiles(path=Path(), name="", config=config, record={}, train=[],
        ...                             validation=[], statistics=None, maps=[]))
        'relu, alpha 0.5'
    """
    spec = _mapping(run.config, "model").get("attention", "relu")
    if not isinstance(spec, Mapping):
        return str(spec)
    changed = [f"{k} {spec[k]}" for k, plain in _PLAIN.items() if spec.get(k, plain) != plain]
    return ", ".join([str(spec.get("activation", "relu")), *changed])


def _row(run: RunFiles, place: int, runs: Sequence[RunFiles]) -> list[Child | Cell]:
    chip = tag("span", class_="chip", style=f"background:var({SERIES[place % len(SERIES)]})")
    best = _mapping(run.record, "best")
    step, best_top1 = number(best, "step"), number(best, "top1")
    sizes = [number(run.record, name) for name in ("samples_per_s", "num_parameters", "flops")]
    seconds = number(run.record, "seconds")
    return [
        join([chip, run.name]),
        describe_attention(run),
        _marked(run, runs, "top1", percent),
        _marked(run, runs, "top5", percent),
        _marked(run, runs, "loss", decimal),
        Cell(percent(best_top1) + (f" at step {step:.0f}" if step else ""), best_top1),
        Cell(duration(seconds), seconds),
        *(Cell(count(size), size) for size in sizes),
    ]


def _marked(
    run: RunFiles, runs: Sequence[RunFiles], name: str, show: Callable[[float | None], str]
) -> Cell:
    """The cell in green where no other run is better; never where there is nothing to compare."""
    values = [value for other in runs if (value := final(other, name)) is not None]
    best = (min if name == "loss" else max)(values, default=None)
    value = final(run, name)
    is_best = len(runs) > 1 and len(set(values)) > 1 and value == best
    return Cell(tag("span", show(value), class_="best" if is_best else ""), value)


def _mapping(row: Row, key: str) -> Mapping[str, Any]:
    """A part of a file, empty if it is missing or something else."""
    value = row.get(key)
    return value if isinstance(value, Mapping) else {}
