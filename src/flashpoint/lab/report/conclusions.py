"""What studies found in about five lines, written from their verdicts.

A reader who stops there knows how many claims hold, the largest findings in numbers, and why the
rest is open.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from flashpoint.lab.report.html import Child, Html, join, tag
from flashpoint.lab.report.verdicts import PAST, describe_found, measure_of
from flashpoint.lab.runs.findings import StudySection, Verdict, Word

MOST_FACTS = 3
"""So many findings are told of a study; its claims have the others."""


def conclude_study(section: StudySection) -> Html:
    """The lines above a study's first figure."""
    verdicts = section.findings.verdicts
    if not verdicts:
        return join([tag("p", "Nothing yet.")])
    is_open = section.source.startswith("open")
    lines: list[Child] = [
        f"{_count_claims(verdicts)}.",
        *(_tell(verdict, is_open=is_open) for verdict in _choose(verdicts)),
        *_open_lines(verdicts),
    ]
    return _listed(lines)


def conclude_all(sections: Sequence[StudySection]) -> Html:
    """The lines below a page's title: which studies bear their claims out, and which do not."""
    verdicts = [verdict for section in sections for verdict in section.findings.verdicts]
    if not verdicts:
        return join([f"{count_studies(len(sections))}, no verdict yet."])
    judged = [section for section in sections if section.findings.verdicts]
    groups: dict[str, Callable[[StudySection], bool]] = {
        "All claims are supported": lambda one: _share(one, "supports") == 1,
        "Half or more are supported": lambda one: 0.5 <= _share(one, "supports") < 1,
        "Half or more are contradicted": lambda one: _share(one, "contradicts") >= 0.5,
    }
    lines: list[Child] = [f"{count_studies(len(judged))}. {_count_claims(verdicts)}."]
    left = list(judged)
    for title, belongs in groups.items():
        found = [section for section in left if belongs(section)]
        left = [section for section in left if section not in found]
        lines += [_links(title, found)] if found else []
    lines += [_links("Mostly undecided", left)] if left else []
    return _listed(lines)


def count_studies(number: int) -> str:
    """As "1 study", "15 studies"."""
    return "1 study" if number == 1 else f"{number} studies"


def _listed(lines: Sequence[Child]) -> Html:
    return tag("ul", *(tag("li", line) for line in lines), class_="conclusions")


def _count_claims(verdicts: Sequence[Verdict]) -> str:
    """As "2 of 4 claims are supported, 1 is contradicted, 1 is undecided"."""
    found = Counter(verdict.word for verdict in verdicts)
    total = "1 claim" if len(verdicts) == 1 else f"{len(verdicts)} claims"
    words: list[Word] = [word for word in PAST if found[word]]
    first, rest = words[0], words[1:]
    head = f"{found[first]} of {total} {_be(found[first])} {PAST[first]}"
    return ", ".join([head, *(f"{found[w]} {_be(found[w])} {PAST[w]}" for w in rest)])


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _choose(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Decided ones in the study's order, both words if there are both; then undecided ones."""
    found = [verdict for verdict in verdicts if verdict.value is not None]
    ordered = sorted(found, key=lambda verdict: verdict.word == "undecided")
    chosen = ordered[:MOST_FACTS]
    told = {verdict.word for verdict in chosen}
    other = [verdict for verdict in ordered[MOST_FACTS:] if verdict.word not in told]
    if len(told) == 1 and other and other[0].word != "undecided":
        chosen[-1] = other[0]
    return chosen


def _tell(verdict: Verdict, *, is_open: bool) -> str:
    """A finding, and how the claim fared."""
    fared: dict[Word, str] = {
        "supports": ", as expected" if is_open else ", as claimed",
        "contradicts": ", which was not expected" if is_open else ", against the claim",
        "undecided": ": undecided",
    }
    if measure_of(verdict).first:
        found = describe_found(verdict)
        start = "The" + found.removeprefix("the") if found.startswith("the ") else found
        return f"{start}{fared[verdict.word]}."
    return f"{PAST[verdict.word].capitalize()}: {verdict.claim} Found: {describe_found(verdict)}."


def _open_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Why some claims are undecided."""
    left = [verdict for verdict in verdicts if verdict.word == "undecided"]
    wide = sum(verdict.low is not None for verdict in left)
    few = len(left) - wide
    bound = "its interval reaches" if wide == 1 else "their intervals reach"
    reasons = {f"{bound} across the bound": wide, "runs are missing or too few": few}
    told = [f"{number} because {why}" for why, number in reasons.items() if number]
    return [f"Undecided: {', '.join(told)}."] if told else []


def _share(section: StudySection, word: Word) -> float:
    verdicts = section.findings.verdicts
    return sum(verdict.word == word for verdict in verdicts) / len(verdicts)


def _links(title: str, sections: Sequence[StudySection]) -> Html:
    links = [tag("a", section.name, href=f"#{section.anchor}") for section in sections]
    return join([f"{title}: ", join(links, ", "), "."])
