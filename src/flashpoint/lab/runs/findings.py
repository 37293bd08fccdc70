"""What a study found, as data: charts, tables and verdicts. Pages and pictures are made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import quote

from flashpoint.lab.runs.run_files import Row, RunFiles

Factor: TypeAlias = str | int | float
"""Where a trial stands on an axis of its study."""

Word = Literal["supports", "contradicts", "undecided"]
RULE = (
    "A claim says in which region a quantity lies. Seeds are drawn again with replacement, group "
    "by group, their deviations widened to Student's t since seeds are few, and the quantity is "
    "computed from each draw; the interval holds the middle 95% of them. The numbers support a "
    "claim where the whole interval lies in the region and contradict it where none of it does. "
    "Else it is undecided, and so it is where a group has fewer than three seeds, which give no "
    "interval, and where a run diverged, so that its number is not finite: such runs are counted "
    "and named. An accuracy or BLEU counts whatever became of the run. Runs that failed, as for "
    "lack of memory, are said beside the verdict, which rests on the others. A claim about every "
    "one of several places has an interval for each: it is supported where all lie in the region, "
    "and contradicted where one of m places lies outside even at a level of 1 - 5% / m. Where one "
    "of k places suffices, it is supported where one lies in the region even at a level of "
    "1 - 5% / k, and contradicted where all lie outside. The interval that is shown is that of "
    "the extreme which follows."
)
"""How words follow from numbers, for readers; ``study/verdict.py`` does it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Points of one name; with ``low`` and ``high``, an interval around each.

    Attributes:
        is_dashed: drawn dashed, as theory beside measurement is. Where its name begins with that
            of another series, it has that one's color and no entry in the legend: the caption
            says what it is.
        has_line: points are joined.
    """

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    is_dashed: bool = False
    has_line: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One picture.

    Attributes:
        name: of its files, as "length-power-relu".
        caption: what the paper's figure says, and what this one shows.
        y_format: "percent" of shares, whose intervals are drawn from 0 to 1 at most, or "" for
            plain numbers.
    """

    name: str
    title: str
    caption: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    x_is_log: bool = False
    y_is_log: bool = False
    y_format: Literal["", "percent"] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataTable:
    """Numbers to sort and to download; a cell is text, a number, or None."""

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | float | int | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the numbers say about one claim, by the rule of ``study/verdict.py``.

    Attributes:
        claim: a sentence that the interval can bear out or not.
        word: follows from the interval and the region, never from a hand.
        value, low, high: the quantity and its interval; None where runs are missing or diverged,
            and the interval's where seeds are too few.
        region: where the quantity lies if the claim holds; an infinite side is open.
        unit: of the quantity, as "points of top-1". Where that is a difference, it says between
            what, as "points of top-1, relu minus softmax": reports make a sentence of it.
        note: what is missing, or what else a reader should know.
    """

    claim: str
    word: Word
    value: float | None
    low: float | None
    high: float | None
    region: tuple[float, float]
    unit: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """All of one study."""

    verdicts: Sequence[Verdict]
    charts: Sequence[Chart]
    tables: Sequence[DataTable]
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySection:
    """A study as far as a page shows it.

    Attributes:
        name, question, source, claim: as ``study/plan.py`` says.
        scope: what was trained on what, in a line.
        departures: from the paper; may be empty.
        findings: what came out.
        runs: of its trials that trained, those that go on too; may be empty.
        factors: of each run, where it stands on every axis of the study.
        environments: in which its trials were made, those that trained nothing too.
        trials: all of them, with their status, factors and numbers.
        commands: that repeat it, one a line.
    """

    name: str
    question: str
    source: str
    claim: str
    scope: str
    departures: str
    findings: Findings
    runs: Sequence[RunFiles]
    factors: Sequence[Mapping[str, Factor]]
    environments: Sequence[Row]
    trials: DataTable
    commands: Sequence[str]

    @property
    def anchor(self) -> str:
        """Its address within the page."""
        return f"study-{quote(self.name, safe='')}"
