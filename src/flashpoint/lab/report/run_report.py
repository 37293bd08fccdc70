"""The page of a few runs, from their folders."""

from collections.abc import Sequence
from pathlib import Path

from flashpoint.lab.report.attention import attention
from flashpoint.lab.report.curves import curves
from flashpoint.lab.report.html import Html, join, tag
from flashpoint.lab.report.page import Section, build_page
from flashpoint.lab.report.provenance import commands, environment
from flashpoint.lab.report.run_files import RunFiles, read_runs
from flashpoint.lab.report.run_table import describe_attention, final, run_table
from flashpoint.lab.runs.formats import percent


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
