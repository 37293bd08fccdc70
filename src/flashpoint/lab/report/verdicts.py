"""Verdicts as readers see them: a word with its sign, the numbers, and a strip that shows both."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flashpoint.lab.report.html import Cell, Html, join, tag
from flashpoint.lab.runs.findings import Verdict, Word
from flashpoint.lab.runs.formats import DASH, with_interval

SIGNS: dict[Word, str] = {"supports": "\u2713", "contradicts": "\u2717", "undecided": "?"}
PAST: dict[Word, str] = {
    "supports": "supported",
    "contradicts": "contradicted",
    "undecided": "undecided",
}
WIDTH, MIDDLE = 180, 11
"""Of a strip: how wide, and how far down its axis is."""
MARGIN = 0.18
"""Room beside what a strip shows, as a share of it."""


class Measure(NamedTuple):
    """A verdict's unit taken apart; ``first`` and ``second`` are empty unless it compares two."""

    unit: str
    first: str
    second: str


def measure_of(verdict: Verdict) -> Measure:
    """What the quantity is: "points of top-1, relu minus softmax" is a difference in points."""
    unit, _, compared = verdict.unit.partition(", ")
    first, minus, second = compared.partition(" minus ")
    return Measure(unit, first, second) if minus else Measure(verdict.unit, "", "")


def describe_found(verdict: Verdict) -> str:
    """The quantity as words without a period, as "relu is 1.8 points of top-1 above identity"."""
    number, measure = numbers_of(verdict)[0], measure_of(verdict)
    if verdict.value is None:
        return "nothing yet"
    if not measure.first or not math.isfinite(verdict.value):
        return _with_unit(number, measure.unit)
    if float(number) == 0:
        return f"{measure.first} is level with {measure.second}"
    side = "below" if number.startswith("-") else "above"
    size = _with_unit(number.removeprefix("-"), measure.unit)
    return f"{measure.first} is {size} {side} {measure.second}"


def _with_unit(number: str, unit: str) -> str:
    return f"{number}{'' if unit.startswith('%') else ' '}{unit}".strip()


def badge(word: Word) -> Html:
    """The verdict: never by color alone."""
    sign = tag("span", SIGNS[word], aria_hidden="true")
    return tag("span", sign, f" {word}", class_=f"badge {word}")


def marks(verdicts: Iterable[Verdict]) -> Html:
    """One sign a verdict, for narrow places."""
    listed = list(verdicts)
    signs = [tag("i", SIGNS[verdict.word], class_=verdict.word) for verdict in listed]
    return tag("span", *signs, class_="marks", role="img", aria_label=count_words(listed))


def count_words(verdicts: Iterable[Verdict]) -> str:
    """How many of each, as "2 supported, 1 undecided"."""
    found = Counter(verdict.word for verdict in verdicts)
    return ", ".join(f"{found[word]} {past}" for word, past in PAST.items() if found[word])


def tally(verdicts: Iterable[Verdict]) -> Html:
    """A bar whose parts are as long as there are verdicts of a word."""
    found = Counter(verdict.word for verdict in verdicts)
    parts = [
        tag("span", f"{SIGNS[word]} {number} {past}", class_=word, style=f"flex:{number}")
        for word, past in PAST.items()
        if (number := found[word])
    ]
    return tag("div", *parts, class_="tally")


def overview(verdicts: Mapping[str, Sequence[Verdict]], anchors: Mapping[str, str]) -> Html:
    """One bar a study, as long as it has claims; their parts are its verdicts.

    Args:
        verdicts: by study.
        anchors: where each study is on the page.
    """
    most = max(map(len, verdicts.values()))
    rows: list[Html] = []
    for name, listed in verdicts.items():
        found = Counter(verdict.word for verdict in listed)
        parts = [
            tag("span", f"{SIGNS[word]} {found[word]}", class_=word, style=f"flex:{found[word]}")
            for word in PAST
            if found[word]
        ]
        width = f"width:{100 * len(listed) / most:.1f}%"
        bar = tag(
            "div", *parts, class_="bar", style=width, role="img", aria_label=count_words(listed)
        )
        rows += [tag("a", name, href=f"#{anchors[name]}"), tag("div", bar)]
    every = [verdict for listed in verdicts.values() for verdict in listed]
    title = tag("figcaption", "What came of the claims of each study")
    return tag("figure", title, tally(every), tag("div", *rows, class_="bars"), class_="overview")


def value_cell(verdict: Verdict) -> Cell:
    """What was found, with its unit; below it, what was compared."""
    if verdict.value is None:
        return Cell(DASH, None)
    number, measure = tag("strong", numbers_of(verdict)[0]), measure_of(verdict)
    space = "" if measure.unit.startswith("%") else " "
    compared = f"{measure.first} minus {measure.second}" if measure.first else ""
    return Cell(
        join(
            [
                *(number, space, tag("span", measure.unit, class_="unit")),
                *([tag("span", compared, class_="compared")] if compared else []),
            ]
        ),
        verdict.value,
    )


def interval_cell(verdict: Verdict) -> Cell:
    """Where it lies when seeds are drawn again, in words and as a strip."""
    if verdict.low is None or verdict.high is None:
        return Cell(DASH, None)
    _, low, high = numbers_of(verdict)
    return Cell(join([f"{low} to {high}", strip(verdict)]), f"{verdict.low!r} to {verdict.high!r}")


def numbers_of(verdict: Verdict) -> tuple[str, str, str]:
    """Value, low and high; dashes where there are none."""
    if verdict.value is None:
        return DASH, DASH, DASH
    if verdict.low is None or verdict.high is None:
        return f"{verdict.value:.4g}", DASH, DASH
    return with_interval(verdict.value, verdict.low, verdict.high, verdict.region)


def describe_region(region: tuple[float, float]) -> str:
    """Where the quantity must lie.

    Example:
        >>> describe_region((0.0, math.inf)), describe_region((-1, 0.5))
        ('at least 0', 'from -1 to 0.5')
    """
    low, high = region
    if math.isinf(low) and math.isinf(high):
        return "any value"
    if math.isinf(high):
        return f"at least {low:.4g}"
    if math.isinf(low):
        return f"at most {high:.4g}"
    return f"exactly {low:.4g}" if low == high else f"from {low:.4g} to {high:.4g}"


def strip(verdict: Verdict) -> Html:
    """The region as an area, the interval as a line on it, the value as a dot; empty without."""
    found = (verdict.value, verdict.low, verdict.high)
    numbers = [number for number in found if number is not None and math.isfinite(number)]
    if len(numbers) < len(found):
        return Html("")
    value, low, high = numbers
    ends = [end for end in verdict.region if math.isfinite(end)]
    least, most = min([*numbers, *ends]), max([*numbers, *ends])
    room = MARGIN * (most - least) or 1.0

    def place(number: float) -> float:
        share = (number - least + room) / (most - least + 2 * room)
        return round(WIDTH * min(max(share, 0.0), 1.0), 1)

    left, right = map(place, verdict.region)
    shapes = [
        tag("rect", x=left, y=1, width=right - left, height=2 * MIDDLE - 2, class_="region"),
        *(tag("path", d=f"M{place(end)} 1V{2 * MIDDLE - 1}", class_="end") for end in ends),
        tag("path", d=f"M0 {MIDDLE}H{WIDTH}", class_="axis"),
        tag("path", d=f"M{place(low)} {MIDDLE}H{place(high)}", class_="interval"),
        tag("circle", cx=place(value), cy=MIDDLE, r=5, class_="value"),
    ]
    return tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {WIDTH} {2 * MIDDLE}",
        class_=f"strip {verdict.word}",
        aria_hidden="true",
    )


def verdict_card(verdict: Verdict) -> Html:
    """One claim as a row: the verdict, the claim with what was found, and where it had to lie."""
    _, low, high = numbers_of(verdict)
    interval = [f"95% interval: {low} to {high}."] if verdict.low is not None else []
    found = tag("p", f"Found: {describe_found(verdict)}.", class_="found")
    holds = f"The claim holds if this is {describe_region(verdict.region)}."
    if measure_of(verdict).first:
        holds = f"Holds if the difference is {describe_region(verdict.region)}."
    return tag(
        "div",
        badge(verdict.word),
        tag(
            "div",
            tag("p", verdict.claim, class_="said"),
            *([found] if verdict.value is not None else []),
            *([tag("p", verdict.note, class_="note")] if verdict.note else []),
        ),
        tag(
            "div", strip(verdict), *(tag("p", said, class_="note") for said in [*interval, holds])
        ),
        class_="verdict",
    )
