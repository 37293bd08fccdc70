"""The page of studies: every claim with its verdict, and what each verdict rests on."""

import shlex
from collections import Counter
from collections.abc import Sequence

from flashpoint.lab.report.attention import attention
from flashpoint.lab.report.chart import assign_places, chart_figure
from flashpoint.lab.report.conclusions import conclude_all, conclude_study
from flashpoint.lab.report.curves import curves_by_factors, spread
from flashpoint.lab.report.figure import embed
from flashpoint.lab.report.html import Cell, Child, Html, join, table, tag
from flashpoint.lab.report.page import Section, build_page, fold
from flashpoint.lab.report.provenance import SAME, environments
from flashpoint.lab.report.verdicts import (
    badge,
    describe_region,
    interval_cell,
    marks,
    overview,
    value_cell,
    verdict_card,
)
from flashpoint.lab.runs.findings import RULE, DataTable, StudySection
from flashpoint.lab.runs.formats import DASH, rounded
from flashpoint.lab.runs.names import CONFIG

MOST_MAPS = 4
"""So many runs of a study show their attention."""
MOST_ROWS = 30
"""Longer tables are left out on paper, and that of all claims starts folded."""
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
            is_folded=True,
        ),
        Section(title="To repeat it", anchor="commands", body=_commands(sections), is_folded=True),
    ]
    return build_page(title, _summary(sections), parts)


def _summary(sections: Sequence[StudySection]) -> Html:
    """Conclusions of all; with several studies, a bar for each."""
    judged = [section for section in sections if section.findings.verdicts]
    if len(judged) < 2:
        return conclude_all(sections)
    found = {section.name: section.findings.verdicts for section in judged}
    anchors = {section.name: section.anchor for section in judged}
    return tag("div", conclude_all(sections), overview(found, anchors), class_="opening")


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
    rule = fold("How a verdict follows from the numbers", tag("p", RULE, class_="note rule"))
    if len(rows) > MOST_ROWS:
        listed = fold(f"All {len(rows)} claims in one table", listed)
    return join([listed, rule])


def _study(section: StudySection) -> Section:
    """Conclusions beside the first figure, then the claims; the rest is folded up."""
    findings = section.findings
    places = assign_places(findings.charts)
    charts = [embed(chart_figure(chart, places)) for chart in findings.charts]
    lead = [tag("div", chart, class_="grid") for chart in charts[:1]]
    facts = (section.name, section.source, _progress(section.trials))
    expected = "What one would expect" if section.source.startswith("open") else "The claim"
    said = tag(
        "div",
        conclude_study(section),
        tag("h3", expected),
        tag("blockquote", section.claim),
    )
    parts = [
        tag("p", " \u00b7 ".join(facts), class_="note"),
        tag("div", said, *lead, class_="opening"),
        *_rows(section),
        *_figures(charts[1:]),
        *(_titled(data, section) for data in findings.tables),
        _conditions(section),
        *_more(section, places),
    ]
    link = join([section.name, marks(findings.verdicts)])
    return Section(title=section.question, anchor=section.anchor, body=join(parts), link=link)


def _rows(section: StudySection) -> list[Html]:
    cards = [verdict_card(verdict) for verdict in section.findings.verdicts]
    return [tag("h3", "Claim by claim"), tag("div", *cards, class_="verdicts")] if cards else []


def _figures(charts: Sequence[Html]) -> list[Html]:
    """Those beside the first, folded up."""
    if not charts:
        return []
    grid = "grid three" if len(charts) == 3 or len(charts) > 4 else "grid"
    title = "One more figure" if len(charts) == 1 else f"{len(charts)} more figures"
    return [fold(title, tag("div", *charts, class_=grid))]


def _conditions(section: StudySection) -> Html:
    """What was trained on what, where it departs from the paper, and what else to know."""
    departed = tag("strong", "Not as the paper has it. ")
    parts = [
        tag("p", section.scope, class_="scope"),
        *([tag("p", departed, section.departures)] if section.departures else []),
        *(tag("p", note) for note in section.findings.notes),
    ]
    return fold("How it was run", join(parts))


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
        title = f"{data.title}, {len(data.rows)} rows"
        return fold(title, tag("div", listed, class_="long"), is_printed=False)
    return fold(data.title, listed)


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
    return [fold(name, body, is_printed=False) for name, body in folded.items()]


def _commands(sections: Sequence[StudySection]) -> Html:
    parts = [tag("p", SAME)]
    for section in sections:
        if lines := "\n".join(section.commands):
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
