"""The page of studies: every claim with its verdict, and what each verdict rests on."""

import shlex
from collections import Counter
from collections.abc import Sequence

from flashpoint.lab.report.attention import attention
from flashpoint.lab.report.chart import assign_places, chart_figure
from flashpoint.lab.report.curves import curves_by_factors, spread
from flashpoint.lab.report.figure import embed
from flashpoint.lab.report.html import Cell, Child, Html, join, table, tag
from flashpoint.lab.report.page import Section, build_page
from flashpoint.lab.report.provenance import SAME, environments
from flashpoint.lab.report.verdicts import (
    badge,
    count_words,
    describe_region,
    interval_cell,
    marks,
    tally,
    value_cell,
    verdict_card,
)
from flashpoint.lab.runs.findings import RULE, DataTable, StudySection
from flashpoint.lab.runs.format import DASH, rounded
from flashpoint.lab.runs.names import CONFIG

MOST_MAPS = 4
"""So many runs of a study show their attention."""
MOST_ROWS = 30
"""Longer tables start folded."""
HEAD = ("study", "claim", "verdict", "found", "interval", "holds if")


def report_studies(sections: Sequence[StudySection], *, title: str) -> str:
    """One page with all studies: claims and verdicts, then each study, then how to repeat it.

    Args:
        sections: in the order of the page; unfinished ones are shown as far as they are.
        title: the page's heading.
    """
    parts = [
        Section(title="Claims", anchor="claims", body=_claims(sections)),
        *(_study(section) for section in sections),
        Section(
            title="Environment",
            anchor="environment",
            body=environments({section.name: section.environments for section in sections}),
        ),
        Section(title="To repeat it", anchor="commands", body=_commands(sections)),
    ]
    return build_page(title, _summary(sections), parts)


def _summary(sections: Sequence[StudySection]) -> Html:
    verdicts = [verdict for section in sections for verdict in section.findings.verdicts]
    if not verdicts:
        return join([f"{len(sections)} studies, no verdict yet."])
    said = f"{len(verdicts)} claims of {len(sections)} studies: {count_words(verdicts)}."
    return join([tag("p", said), tally(verdicts)])


def _claims(sections: Sequence[StudySection]) -> Html:
    rows: list[list[Child | Cell]] = [
        [
            Cell(tag("a", section.name, href=f"#{section.anchor}"), section.name),
            verdict.claim,
            Cell(badge(verdict.word), verdict.word),
            value_cell(verdict),
            interval_cell(verdict),
            describe_region(verdict.region),
        ]
        for section in sections
        for verdict in section.findings.verdicts
    ]
    listed = tag("div", table(HEAD, rows, label="claims", file="claims.csv"), class_="claims")
    return join([listed, tag("p", tag("strong", "The rule. "), RULE, class_="note rule")])


def _study(section: StudySection) -> Section:
    findings = section.findings
    places = assign_places(findings.charts)
    charts = [embed(chart_figure(chart, places)) for chart in findings.charts]
    said = tag(
        "div",
        tag("h3", "What one would expect" if section.source.startswith("open") else "The claim"),
        tag("blockquote", section.claim),
    )
    verdicts = [verdict_card(verdict) for verdict in findings.verdicts]
    found = tag("div", tag("h3", "What we found"), *(verdicts or [tag("p", "Nothing yet.")]))
    facts = (section.name, section.source, _progress(section.trials))
    grid = "grid three" if len(charts) == 3 or len(charts) > 4 else "grid"
    parts = [
        tag("p", " \u00b7 ".join(facts), class_="note"),
        tag("p", section.scope, class_="scope"),
        *_departures(section.departures),
        tag("div", said, found, class_="beside"),
        *([tag("div", *charts, class_=grid)] if charts else []),
        *(_titled(data, section) for data in findings.tables),
        *(tag("p", note, class_="note") for note in findings.notes),
        *_more(section, places),
    ]
    link = join([section.name, marks(findings.verdicts)])
    return Section(title=section.question, anchor=section.anchor, body=join(parts), link=link)


def _departures(departures: str) -> list[Html]:
    if not departures:
        return []
    return [tag("p", tag("strong", "Not as the paper has it. "), departures, class_="note")]


def _progress(trials: DataTable) -> str:
    """How many trials there are, by status."""
    if "status" not in trials.head:
        return f"{len(trials.rows)} trials"
    column = list(trials.head).index("status")
    found = Counter(str(row[column]) for row in trials.rows)
    return "trials: " + (", ".join(f"{n} {status}" for status, n in found.items()) or "none")


def _titled(data: DataTable, section: StudySection) -> Html:
    listed = data_table(data, file=f"{section.name}-{data.name}.csv")
    if len(data.rows) > MOST_ROWS:
        return _folded(f"{data.title}, {len(data.rows)} rows", tag("div", listed, class_="long"))
    return join([tag("h3", data.title), listed])


def _folded(name: str, body: Html) -> Html:
    return tag("details", tag("summary", name), body)


def _more(section: StudySection, places: dict[str, int]) -> list[Html]:
    """What few readers need, folded up."""
    folded: dict[str, Html] = {}
    if section.runs:
        folded["Curves"] = curves_by_factors(section.runs, section.factors, places)
    seen = [run for run in section.runs if run.maps or run.statistics]
    chosen = spread(seen, MOST_MAPS)
    if shown := attention(chosen):
        left_out = f"{len(chosen)} of {len(seen)} runs that have them."
        folded["Attention"] = join([tag("p", left_out, class_="note"), shown])
    if section.trials.rows:
        file = f"{section.name}-{section.trials.name}.csv"
        body = tag("div", data_table(section.trials, file=file), class_="long")
        folded[f"All {len(section.trials.rows)} trials"] = body
    return [_folded(name, body) for name, body in folded.items()]


def _commands(sections: Sequence[StudySection]) -> Html:
    parts = [tag("p", SAME)]
    for section in sections:
        lines = "\n".join(section.commands)
        parts += [tag("h3", section.name), tag("pre", tag("code", lines))]
    run = next((section.runs[0] for section in sections if section.runs), None)
    if run:
        config = str(run.path / CONFIG)
        one = shlex.join(["flashpoint", "train", config, "--out", f"{run.path}-again"])
        parts += [tag("h3", "One run, as any other"), tag("pre", tag("code", one))]
    return join(parts)


def data_table(data: DataTable, *, file: str) -> Html:
    """A table of findings: numbers stand below each other and are sorted by their values.

    ``file`` is what its download is called.
    Standard deviations ("top1 sd") stand behind their means; the download has columns of them.
    """
    columns = [_column([row[i] for row in data.rows]) for i in range(len(data.head))]
    deviations = [i for i, name in enumerate(data.head) if i and name == f"{data.head[i - 1]} sd"]
    for i in deviations:
        columns[i - 1] = [_with(*pair) for pair in zip(*columns[i - 1 : i + 1], strict=True)]
    rows = zip(*columns, strict=True) if columns else []
    return table(data.head, rows, label=data.title, file=file, hidden=deviations)


def _with(mean: Cell, deviation: Cell) -> Cell:
    """Both to the same place behind the point, unless that would make a deviation nothing."""
    if not isinstance(deviation.value, float):
        return mean
    number = str(mean.shown)
    shown = f"{deviation.value:.{len(number.partition('.')[2])}f}"
    if "e" in number or (deviation.value and not float(shown)):
        shown = f"{deviation.value:.1g}"
    return Cell(f"{number} \u00b1 {shown}", mean.value)


def _column(values: Sequence[str | float | None]) -> list[Cell]:
    """Cells of one column; its numbers share their places behind the point."""
    numbers = [value for value in values if isinstance(value, int | float)]
    shown = iter(rounded(numbers))
    cells: list[Cell] = []
    for value in values:
        if value is None:
            cells.append(Cell(DASH, None))
        elif isinstance(value, str):
            cells.append(Cell(value, value))
        else:
            cells.append(Cell(next(shown), value))
    return cells
