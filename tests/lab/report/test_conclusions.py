"""Conclusions: sentences that follow from verdicts, few and whole."""

import dataclasses
import math

import pytest
from lab.report.parsed_page import Page
from lab.report.sample_sections import section, verdict

from flashpoint.lab.report.conclusions import MOST_FACTS, conclude_all, conclude_study
from flashpoint.lab.report.verdicts import describe_found, value_cell, verdict_card

POINTS = "points of top-1, relu minus softmax at 64 tokens"
ABOVE = (0.0, math.inf)


def study(*verdicts, name="s", source="paper 1"):
    return section(name, "Why?", source, "A claim.", list(verdicts))


def lines(markup):
    return Page(markup).of("li")


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (1.8, POINTS, "relu is 1.80 points of top-1 above softmax at 64 tokens"),
        (-1.8, POINTS, "relu is 1.80 points of top-1 below softmax at 64 tokens"),
        (0.0, POINTS, "relu is level with softmax at 64 tokens"),
        (9.5, "% of a step's time", "9.50% of a step's time"),
        (1.5, "times as fast, at the least", "1.50 times as fast, at the least"),
        (0.5, "", "0.50"),
        (None, POINTS, "nothing yet"),
        (math.nan, POINTS, "nan points of top-1"),
    ],
)
def test_what_was_found_is_a_sentence(value, unit, said):
    assert describe_found(verdict("c", "supports", value, 0.25, ABOVE, unit)) == said


def test_difference_stands_below_its_number_in_the_table():
    shown = value_cell(verdict("c", "supports", 1.8, 0.25, ABOVE, POINTS)).shown
    assert '<span class="unit">points of top-1</span>' in shown
    assert '<span class="compared">relu minus softmax at 64 tokens</span>' in shown


def test_row_says_what_the_bound_is_about():
    compared = verdict_card(verdict("c", "supports", 1.8, 0.25, ABOVE, POINTS))
    assert "Holds if the difference is at least 0." in compared
    assert "The claim holds if this is at least 0." in verdict_card(
        verdict("c", "supports", 1.8, 0.25, ABOVE)
    )


def test_conclusions_tell_both_words_and_why_the_rest_is_open():
    supported = [verdict(f"c{i}", "supports", i + 1.0, 0.25, ABOVE, POINTS) for i in range(4)]
    against = verdict("x", "contradicts", -2.0, 0.25, ABOVE, POINTS)
    wide = verdict("w", "undecided", 0.1, 1.0, ABOVE, POINTS)
    few = dataclasses.replace(wide, low=None, high=None)
    missing = verdict("m", "undecided", None, 0, ABOVE, POINTS)
    found = lines(conclude_study(study(*supported, against, wide, few, missing)))
    assert found == [
        "4 of 8 claims are supported, 1 is contradicted, 3 are undecided.",
        "relu is 1.00 points of top-1 above softmax at 64 tokens, as claimed.",
        "relu is 2.00 points of top-1 above softmax at 64 tokens, as claimed.",
        "relu is 2.00 points of top-1 below softmax at 64 tokens, against the claim.",
        "Undecided: 1 because its interval reaches across the bound, "
        "2 because runs are missing or too few.",
    ]
    assert len(found) == MOST_FACTS + 2


def test_where_no_paper_claims_anything_findings_are_expected_or_not():
    verdicts = [
        verdict("c", "supports", 1.0, 0.25, ABOVE, POINTS),
        verdict("c", "contradicts", -1.0, 0.25, ABOVE, POINTS),
    ]
    _, first, second = lines(conclude_study(study(*verdicts, source="open")))
    assert first.endswith(", as expected.")
    assert second.endswith(", which was not expected.")


def test_undecided_findings_are_told_where_nothing_is_decided():
    wide = verdict("w", "undecided", 0.1, 1.0, ABOVE, "points, the best minus softmax")
    assert lines(conclude_study(study(wide))) == [
        "1 of 1 claim is undecided.",
        "The best is 0.1 points above softmax: undecided.",
        "Undecided: 1 because its interval reaches across the bound.",
    ]


def test_quantity_without_a_difference_stands_behind_its_claim():
    found = verdict("A gate costs 5% to 15%.", "supports", 9.5, 0.5, (5, 15), "% of the time")
    assert lines(conclude_study(study(found)))[1] == (
        "Supported: A gate costs 5% to 15%. Found: 9.5% of the time."
    )


def test_page_sorts_studies_by_what_came_of_their_claims():
    good = verdict("c", "supports", 1.0, 0.25, ABOVE)
    bad, wide = (dataclasses.replace(good, word=word) for word in ("contradicts", "undecided"))
    sections = [
        study(good, name="all"),
        study(good, good, wide, name="most"),
        study(bad, wide, name="against"),
        study(wide, wide, bad, name="open"),
        study(name="none"),
    ]
    page = Page(f"<div>{conclude_all(sections)}</div>")
    assert page.of("li")[0] == (
        "4 studies. 3 of 9 claims are supported, 2 are contradicted, 4 are undecided."
    )
    assert page.of("a") == ["all", "most", "against", "open"]
    assert page.of("li")[1::2] == [
        *("All claims are supported:", "Half or more are supported:"),
        *("Half or more are contradicted:", "Mostly undecided:"),
    ]
