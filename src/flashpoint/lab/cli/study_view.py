"""What a study shows: its plan, its trials while they run, and what came out."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flashpoint.lab.cli.terminal import LiveView, plain_table
from flashpoint.lab.report.verdicts import numbers_of
from flashpoint.lab.runs.findings import Findings, Verdict
from flashpoint.lab.runs.formats import count, duration
from flashpoint.lab.runs.run_files import Glance, look_at
from flashpoint.lab.runs.trials import read_failure, read_record
from flashpoint.lab.study.needs import needs_of
from flashpoint.lab.study.outcome import Outcome, Status
from flashpoint.lab.study.plan import Factor, Study, Trial
from flashpoint.lab.training.progress import describe_numbers

STYLES: Mapping[Status, str] = {
    "finished": "green",
    "running": "bold",
    "stopped": "yellow",
    "failed": "red",
    "waiting": "dim",
}
WORDS = {"supports": "green", "contradicts": "red", "undecided": "yellow"}
LINES_AROUND = 6
"""Of the terminal, that are no trials: head, summary, and what was there before."""
SECONDS_BETWEEN_DRAWINGS = 0.5
MOST_LETTERS = 80
"""Of a trial's numbers in a line."""


class Progress(LiveView):
    """How trials go: a table on a terminal, elsewhere a line for every beginning and end.

    Args:
        console: where to.
        finished: trials that were finished before and are not shown.
    """

    def __init__(self, console: Console, finished: int) -> None:
        super().__init__(console, auto_refresh=False)
        self._finished = finished
        self._start = time.monotonic()
        self._drawn = -SECONDS_BETWEEN_DRAWINGS
        self._known: dict[Path, Status] = {}
        self._ends: dict[Path, str] = {}

    def show(self, standing: Mapping[Path, Status]) -> None:
        """Show how all trials stand, if that changed or some time has passed."""
        seconds = time.monotonic() - self._start
        news: dict[Path, Status] = {
            folder: status
            for folder, status in standing.items()
            if status != self._known.get(folder, "waiting")
        }
        self._known |= news
        for folder, status in news.items():
            self._ends[folder] = _describe_end(folder, status)
            if not self._console.is_terminal:
                line = f"{seconds:5.0f} s  {_name(folder)} {status} {self._ends[folder]}".rstrip()
                self._console.print(line, soft_wrap=True, highlight=False, markup=False)
        is_due = seconds - self._drawn >= SECONDS_BETWEEN_DRAWINGS
        if self._console.is_terminal and (news or is_due):
            self._drawn = seconds
            self._live.update(self._draw(standing, seconds), refresh=True)

    def _draw(self, standing: Mapping[Path, Status], seconds: float) -> RenderableType:
        glances = {f: look_at(f) for f, status in standing.items() if status == "running"}
        table = plain_table(header_style="bold", expand=True)
        third = self._console.width // 3
        table.add_column("trial", no_wrap=True, overflow="ellipsis", max_width=third)
        table.add_column("", no_wrap=True, min_width=len("finished"))
        table.add_column("steps", no_wrap=True, min_width=len("1000/1000"))
        table.add_column("result", no_wrap=True, overflow="ellipsis", ratio=1)
        rows = max(1, self._console.height - LINES_AROUND)
        for folder in _worth_showing(standing, rows):
            status = standing[folder]
            cells = _cells(status, glances.get(folder), self._ends.get(folder, ""))
            table.add_row(Text(_name(folder)), Text(status, style=STYLES[status]), *cells)
        return Group(table, Text(), self._summary(standing, glances, seconds))

    def _summary(
        self, standing: Mapping[Path, Status], glances: Mapping[Path, Glance], seconds: float
    ) -> Text:
        counts = Counter(standing.values())
        total = len(standing) + self._finished
        parts = [f"{counts['finished'] + self._finished} of {total} finished"]
        parts += [f"{counts[s]} {s}" for s in STYLES if s != "finished" and counts[s]]
        done = counts["finished"] + counts["failed"] + sum(g.share for g in glances.values())
        left = ""
        if done and done < len(standing):
            left = f", about {duration(seconds * (len(standing) / done - 1))} left"
        return Text(f"{', '.join(parts)}; {duration(seconds)}{left}", style="dim")


def _worth_showing(standing: Mapping[Path, Status], rows: int) -> list[Path]:
    """As many trials as there is room for: those that run, failed or stopped, the last ends."""
    order: tuple[Status, ...] = ("running", "failed", "stopped", "finished", "waiting")
    by_status = {s: [f for f, status in standing.items() if status == s] for s in order}
    by_status["finished"].reverse()
    chosen = [folder for status in order for folder in by_status[status]][:rows]
    return [folder for folder in standing if folder in set(chosen)]


def _cells(status: Status, glance: Glance | None, end: str) -> tuple[RenderableType, ...]:
    if status == "running" and glance is not None and glance.step:
        steps = f"{glance.step}/{glance.total}"
        numbers = [f"top1 {glance.accuracies[-1]:.2%}"] if glance.accuracies else []
        numbers += [f"loss {glance.loss:.4g}"] if glance.loss is not None else []
        left = f"{duration(glance.seconds_left)} left" if glance.share < 1 else "evaluating"
        return steps, Text(", ".join([left, *numbers]))
    return "", Text(end if status in ("finished", "failed") else "", style=STYLES[status])


def _describe_end(folder: Path, status: Status) -> str:
    """What a trial gave, or why it gave nothing, in a line."""
    if status == "failed":
        return read_failure(folder).get("reason", "")
    if status != "finished":
        return ""
    record = read_record(folder)
    numbers = describe_numbers(record.get("validation", record.get("numbers", {})))
    return f"{shorten(numbers, MOST_LETTERS)}, {duration(record.get('seconds'))}"


def _name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def draw_findings(name: str, outcomes: Sequence[Outcome], findings: Findings) -> RenderableType:
    """What a study found: how many trials there are, and every claim with its verdict."""
    counts = Counter(outcome.status for outcome in outcomes)
    trials = ", ".join(f"{counts[s]} {s}" for s in STYLES if counts[s])
    lines: list[RenderableType] = [Text.assemble((name, "bold"), f": {trials}")]
    for outcome in outcomes:
        if outcome.status == "failed":
            lines.append(Text.assemble(("  failed ", "red"), f"{outcome.name}: {outcome.reason}"))
    table = Table.grid(padding=(0, 2))
    for verdict in findings.verdicts:
        table.add_row("", Text(verdict.word, style=WORDS[verdict.word]), _describe(verdict))
    return Group(*lines, table)


def _describe(verdict: Verdict) -> Text:
    value, low, high = numbers_of(verdict)
    interval = "" if verdict.low is None else f" ({low} to {high})"
    found = "" if verdict.value is None else f" {value}{interval} {verdict.unit}."
    note = f" {verdict.note}" if verdict.note else ""
    return Text.assemble(verdict.claim, found, (note, "dim"))


def draw_studies(
    studies: Sequence[Study], scales: Sequence[str], counts: Sequence[Sequence[int]]
) -> RenderableType:
    """Two lines a study: its name, source and trials at each scale, and below what it asks."""
    table = plain_table("study", *scales, caption_justify="left")
    longest = max(len(study.name) for study in studies)
    for study, numbers in zip(studies, counts, strict=True):
        head = Text.assemble((f"{study.name:<{longest}}", "bold"), f"  {study.source}")
        asked = Padding(Text(study.question, style="dim"), (0, 0, 0, 2))
        table.add_row(Group(head, asked), *map(str, numbers))
    table.caption = "Numbers are trials at each scale, with its usual seeds."
    return table


def draw_plan(
    study: Study, trials: Sequence[Trial], flops: Sequence[float], missing: str | None
) -> RenderableType:
    """A study before it is run.

    Args:
        study: what is asked.
        trials: that answer it.
        flops: of each trial; none if they could not be counted.
        missing: why not.
    """
    axes = _axes(trials)
    cost = f"{count(sum(flops))}FLOPs in training" if flops else f"cost unknown: {missing}"
    facts = Table.grid(padding=(0, 2))
    facts.add_row(Text("source", style="dim"), study.source)
    facts.add_row(Text("claim", style="dim"), Text(study.claim))
    if study.departures:
        facts.add_row(Text("departures", style="dim"), Text(study.departures))
    for name, values in axes.items():
        facts.add_row(Text(name, style="dim"), ", ".join(map(str, values)))
    places = dict.fromkeys(need.place for need in needs_of(trials))
    facts.add_row(Text("data", style="dim"), Text(", ".join(places) or "none"))
    facts.add_row(Text("cost", style="dim"), Text(f"{len(trials)} trials, {cost}"))
    return Group(Text(study.question, style="bold"), Text(), facts, Text(), _trials(trials, flops))


def _axes(trials: Sequence[Trial]) -> dict[str, list[Factor]]:
    """Every factor and its values, in the order of the plan."""
    axes: dict[str, dict[Factor, None]] = {}
    for trial in trials:
        for name, value in trial.factors.items():
            axes.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in axes.items()}


def _trials(trials: Sequence[Trial], flops: Sequence[float]) -> Table:
    """A row for all trials that differ in their seed only."""
    axes = [name for name in _axes(trials) if name != "seed"]
    table = plain_table(*axes, "seeds", "FLOPs of one", left=len(axes), header_style="bold")
    rows: dict[tuple[str, ...], list[int]] = {}
    for number, trial in enumerate(trials):
        key = tuple(str(trial.factors.get(name, "")) for name in axes)
        rows.setdefault(key, []).append(number)
    for key, numbers in rows.items():
        cost = count(flops[numbers[0]]) if flops and flops[numbers[0]] else "-"
        table.add_row(*key, str(len(numbers)), cost)
    return table
