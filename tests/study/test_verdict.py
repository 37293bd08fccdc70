"""The rule behind a verdict, and the interval it rests on."""

import math

import numpy as np
import pytest

from flashpoint.study.verdict import bootstrap, judge

HIGH = [0.90, 0.91, 0.92]
LOW = [0.80, 0.81, 0.82]


def word(groups, region, **options):
    return judge("a claim", groups, region, unit="points", **options).word


def test_interval_is_students_from_the_same_seeds():
    found = bootstrap([HIGH])
    assert found.value == pytest.approx(0.91)
    half = 4.303 * 0.01 / math.sqrt(3)  # t with two degrees of freedom times the standard error
    assert found.high - found.value == pytest.approx(half, rel=0.25)
    assert found.value - found.low == pytest.approx(half, rel=0.25)


def test_difference_of_two_groups_is_the_first_less_the_second():
    found = bootstrap([HIGH, LOW])
    assert found.value == pytest.approx(0.10)
    half = 2.776 * 0.01 * math.sqrt(2 / 3)
    assert found.high - 0.10 == pytest.approx(half, rel=0.15)
    assert 0.10 - found.low == pytest.approx(half, rel=0.15)


@pytest.mark.parametrize("seeds", [3, 5, 20])
@pytest.mark.parametrize("num_groups", [1, 2])
def test_interval_has_its_level(num_groups, seeds):
    """Of many means and differences, about 95% of intervals hold the true one."""
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(400, num_groups, seeds))
    covered = [found.low <= 0 <= found.high for found in map(bootstrap, draws)]
    assert 0.91 <= np.mean(covered) <= 0.98


@pytest.mark.parametrize("spreads", [(1.0, 0.05), (1.0, 0.3), (0.1, 0.1, 1.0, 0.1)])
def test_groups_that_spread_unlike_keep_the_level(spreads):
    rng = np.random.default_rng(2)
    draws = rng.normal(size=(400, len(spreads), 3)) * np.array(spreads)[:, None]
    found = [bootstrap(groups, lambda a, *others: a - sum(others)) for groups in draws]
    assert 0.91 <= np.mean([one.low <= 0 <= one.high for one in found]) <= 0.98


@pytest.mark.parametrize("groups", [[[3.0], [1.0]], [[2.0, 4.0], [0.9, 1.0, 1.1]]])
def test_fewer_than_three_seeds_have_no_interval(groups):
    assert bootstrap(groups) == (pytest.approx(2.0), None, None)


def test_any_quantity_of_several_groups():
    found = bootstrap([HIGH, LOW, LOW], lambda a, b, c: a - np.maximum(b, c))
    assert found.value == pytest.approx(0.10)


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ((0.0, math.inf), "supports"),
        ((-math.inf, 0.0), "contradicts"),
        ((0.10, math.inf), "undecided"),
        ((0.05, 0.15), "supports"),
        ((0.5, 1.0), "contradicts"),
    ],
)
def test_word_follows_from_interval_and_region(region, expected):
    assert word([HIGH, LOW], region) == expected


def test_few_seeds_decide_nothing_and_are_named():
    verdict = judge("a claim", [HIGH[:2], LOW], (0.0, math.inf), unit="points", note="Small.")
    assert verdict.word == "undecided"
    assert verdict.note == "Small. 2 of at least 3 seeds."
    assert (verdict.value, verdict.low, verdict.high) == (pytest.approx(0.095), None, None)


def test_missing_runs_decide_nothing():
    verdict = judge("a claim", [HIGH, []], (0.0, math.inf), unit="points")
    assert (verdict.word, verdict.value) == ("undecided", None)
    assert verdict.note == "Runs that it needs are missing."


def test_what_is_lacking_is_said_only_where_a_group_is_empty():
    options = {"unit": "points", "note": "Small.", "lack": "No run is long."}
    assert judge("a claim", [[]], (0.0, math.inf), **options).note == "Small. No run is long."
    assert judge("a claim", [HIGH], (0.0, math.inf), **options).note == "Small."


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverged_leaves_a_claim_open_and_is_counted(number):
    verdict = judge("a claim", [[*HIGH, number], LOW], (0.0, math.inf), unit="points")
    assert (verdict.word, verdict.note) == ("undecided", "1 of 7 runs diverged.")
    assert (verdict.value, verdict.low, verdict.high) == (None, None, None)


def test_divergence_is_said_beside_what_is_missing():
    verdict = judge("a claim", [[math.nan] * 2, []], (0.0, math.inf), unit="points")
    assert verdict.note == "2 of 2 runs diverged. Runs that it needs are missing."
