"""Verdicts as readers see them: a word with its sign, the numbers, and a strip that shows both."""

import math
from collections import Counter
from collections.abc import Iterable

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


def value_cell(verdict: Verdict) -> Cell:
    """What was found, with its unit."""
    if verdict.value is None:
        return Cell(DASH, None)
    number = tag("strong", numbers_of(verdict)[0])
    return Cell(join([number, " ", tag("span", verdict.unit, class_="unit")]), verdict.value)


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
    """One verdict with all that belongs to it."""
    _, low, high = numbers_of(verdict)
    interval = [f" ({low} to {high})"] if verdict.low is not None else []
    found = [tag("p", value_cell(verdict).shown, *interval, class_="found")]
    holds = f"The claim holds if it is {describe_region(verdict.region)}."
    return tag(
        "div",
        tag("p", badge(verdict.word), verdict.claim, class_="said"),
        *(found if verdict.value is not None else []),
        strip(verdict),
        *(tag("p", text, class_="note") for text in (holds, verdict.note) if text),
        class_="verdict",
    )
