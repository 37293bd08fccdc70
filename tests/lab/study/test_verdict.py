"""The rule behind a verdict, and the interval it rests on."""

import math

import numpy as np
import pytest

from flashpoint.lab.study import verdict
from flashpoint.lab.study.verdict import (
    Distance,
    Extreme,
    Interval,
    Means,
    Runs,
    bootstrap,
    judge,
    judge_quantity,
)

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


@pytest.mark.slow
@pytest.mark.usefixtures("few_resamples")
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
    found = bootstrap([HIGH, LOW, LOW], lambda a, b, c: a - b + c)
    assert found.value == pytest.approx(0.91)


LEVEL_PLACES, APART = (0.0,) * 5, (-6.0, -3.0, 0.0, 2.0, 3.0)
COVERAGE = [  # one error in 40 on each side at most, and what 400 draws leave open
    pytest.param(kind, truths, id=f"{kind}-{name}")
    for kind in ("least", "most")
    for name, truths in (("level", LEVEL_PLACES), ("apart", APART))
]


def drawn_pairs(truths, seed):
    """400 times: a pair of groups of three seeds for each true difference."""
    draws = np.random.default_rng(seed).normal(size=(400, len(truths), 2, 3))
    draws[:, :, 0] += np.array(truths)[:, None]
    return draws


@pytest.fixture
def few_resamples(monkeypatch):
    """For tests of hundreds of intervals: their ends are rougher, their errors no more."""
    monkeypatch.setattr(verdict, "RESAMPLES", 1_000)


def errors(found, truth):
    """Shares of intervals that lie wholly above the truth, and wholly below."""
    above = np.mean([one.low > truth for one in found])
    return above, np.mean([one.high < truth for one in found])


@pytest.mark.slow
@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize(("kind", "truths"), COVERAGE)
def test_interval_of_an_extreme_keeps_its_level(kind, truths):
    found = [Extreme(kind, list(map(Means, pairs))).find() for pairs in drawn_pairs(truths, 3)]
    assert max(errors(found, (min if kind == "least" else max)(truths))) <= 0.04


@pytest.mark.slow
@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("kind", ["least", "most"])
def test_draws_of_an_extreme_of_level_places_miss_it(kind):
    """Why the extreme itself is not drawn."""
    combine = (np.minimum if kind == "least" else np.maximum).reduce

    def quantity(*means):
        return combine([a - b for a, b in zip(means[::2], means[1::2], strict=True)])

    drawn = drawn_pairs(LEVEL_PLACES, 3)[:100]
    found = [bootstrap(pairs.reshape(-1, 3), quantity) for pairs in drawn]
    assert max(errors(found, 0.0)) > 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("truths", [LEVEL_PLACES, APART, (-2.0, 2.0, 0.0)])
def test_interval_of_the_largest_distance_keeps_its_level(truths):
    found = [
        Extreme("most", [Distance(Means(pair)) for pair in pairs]).find()
        for pairs in drawn_pairs(truths, 4)
    ]
    assert max(errors(found, max(map(abs, truths)))) <= 0.04


@pytest.mark.slow
@pytest.mark.usefixtures("few_resamples")
def test_interval_of_the_best_of_some_less_the_best_of_others_keeps_its_level():
    draws = np.random.default_rng(5).normal(size=(400, 8, 3))
    found = [
        Extreme(
            "least",
            [Extreme("most", [Means([one, other]) for one in some[:3]]) for other in some[3:]],
        ).find()
        for some in draws
    ]
    assert max(errors(found, 0.0)) <= 0.04


def test_extreme_of_one_place_is_that_place():
    place = Means([HIGH, LOW])
    assert Extreme("least", [place]).find() == Extreme("most", [place]).find() == place.find()


def test_one_end_of_an_extreme_is_of_a_stricter_level():
    places = [Means([HIGH, LOW]), Means([LOW, HIGH])]
    least, most = (Extreme(kind, places).find() for kind in ("least", "most"))
    assert least.low == places[1].find().low
    assert least.high == places[1].find(above=0.0125).high > places[1].find().high
    assert most == pytest.approx((-least.value, -least.high, -least.low), rel=0.2)


def test_strict_end_rests_on_several_draws():
    """One of 10,000 draws is no quantile: it lies where it happens to lie."""
    found = bootstrap([HIGH, LOW], above=0.025 / 1000)
    half = 18.52 * 0.01 * math.sqrt(2 / 3)  # Student's t with four degrees of freedom
    assert found.high - 0.10 == pytest.approx(half, rel=0.15)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ([[3.0] * 3], (3.0, 3.0, 3.0)),
        ([[-3.0] * 3], (3.0, 3.0, 3.0)),
        ([[-3.0] * 2], (3.0, None, None)),
    ],
)
def test_distance_has_no_sign(place, expected):
    assert Distance(Means(place)).find() == Interval(*expected)


def test_distance_of_what_may_be_0_goes_from_0_to_the_farther_end():
    low, high = Means([[-1.0, 0.1, 0.5]]).find()[1:]
    assert Distance(Means([[-1.0, 0.1, 0.5]])).find()[1:] == (0.0, max(-low, high))


def test_extreme_of_few_seeds_has_no_interval():
    found = Extreme("most", [Means([HIGH]), Means([LOW[:2]])]).find()
    assert found == (pytest.approx(0.91), None, None)


def test_claim_about_every_place_is_contradicted_by_one():
    def said(*groups):
        of = Extreme("least", [Means([group]) for group in groups])
        return judge_quantity("a claim", of, (0.0, math.inf), unit="points").word

    below = [-number for number in HIGH]
    open_ = [-0.5, 0.1, 0.5]
    assert [said(HIGH, LOW), said(HIGH, open_), said(below, open_, HIGH)] == [
        *("supports", "undecided", "contradicts")
    ]


def test_group_that_places_share_counts_once_among_those_that_diverged():
    shared = [*HIGH, math.nan]
    of = Extreme("least", [Means([shared, LOW]), Means([shared, HIGH])])
    verdict = judge_quantity("a claim", of, (0.0, math.inf), unit="points")
    assert verdict.note == "1 of 10 runs diverged."


def test_extreme_of_no_place_decides_nothing():
    of = Extreme("most", [])
    verdict = judge_quantity("a claim", of, (0.0, math.inf), unit="points", lack="No place.")
    assert (verdict.word, verdict.value, verdict.note) == ("undecided", None, "No place.")


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


def test_failed_runs_are_counted_once_and_the_others_judged():
    """Whatever number of theirs is missing, and wherever; divergence and too few seeds beside."""
    high, low = (Runs(group, finished="abc", failed="d") for group in (HIGH, LOW))
    verdict = judge("a claim", [high, low], (0.0, math.inf), unit="points", note="Small.")
    assert (verdict.word, verdict.note) == ("supports", "Small. 1 of 4 runs failed.")
    assert verdict.value == pytest.approx(0.1)
    other = Runs(LOW, finished="efg", failed="")
    of = Extreme("least", [Means([high, other]), Means([low, other])])
    assert judge_quantity("a claim", of, (0.0, 1.0), unit="").note == "1 of 7 runs failed."
    some = [Runs([math.nan, 1.0], finished="ab", failed="c"), Runs([], finished="", failed="d")]
    assert judge("a claim", some, (0.0, 1.0), unit="").note == (
        "2 of 4 runs failed. 1 of 4 runs diverged. Runs that it needs are missing."
    )


def test_runs_that_diverged_are_counted_once_whatever_their_numbers():
    """Of three runs with several numbers each, one has some that are not finite."""
    groups = [Runs([1.0, broken, 1.0], "abc", "") for broken in (math.nan, 1.0, math.inf)]
    of = Extreme("most", [Distance(Means([group])) for group in groups])
    verdict = judge_quantity("a claim", of, (0.0, 2.0), unit="")
    assert (verdict.word, verdict.value) == ("undecided", None)
    assert verdict.note == "1 of 3 runs diverged."
