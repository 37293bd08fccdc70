"""All splits and strategies, the fastest that fits, and one line for what cannot be."""

import json

import pytest
from lab.scaling.simple import make_setting

from flashpoint.errors import InputError
from flashpoint.lab.scaling.survey import STRATEGIES, survey, to_plain


def splits(found):
    return [(one.choice.data, one.choice.sequence, one.choice.strategy) for one in found.estimates]


def test_every_split_and_strategy_that_can_be_is_there():
    found = survey(make_setting())
    expected = [(8, 1, "alone"), *((4, 2, name) for name in STRATEGIES)]
    expected += [(2, 4, name) for name in STRATEGIES]
    expected += [(1, 8, name) for name in STRATEGIES if name != "ulysses"]
    assert splits(found) == expected
    assert found.refused == ("ulysses: 4 heads of toy cannot be divided among 8 ranks",)


def test_best_is_the_fastest_that_fits():
    found = survey(make_setting())
    assert found.best.seconds.step == min(one.seconds.step for one in found.estimates)
    assert found.best.choice.sequence == 1
    (ring,) = survey(make_setting(), sequence=8, strategy="ring", recomputes=True).estimates
    least = ring.memory.total - (ring.at_once - 1) / ring.at_once * ring.memory.activations
    tight = survey(make_setting(memory_bytes=least / 0.9))
    assert not tight.estimates[0].fits
    assert tight.best.fits
    fitting = [one.seconds.step for one in tight.estimates if one.fits]
    assert tight.best.seconds.step == min(fitting)


def test_nothing_fits_and_nothing_is_best():
    found = survey(make_setting(memory_bytes=1e4))
    assert found.best is None
    assert found.smallest.memory.total == min(one.memory.total for one in found.estimates)
    assert all(one.choice.recomputes for one in found.estimates)


def test_activations_are_recomputed_where_they_do_not_fit_or_on_demand():
    assert not any(one.choice.recomputes for one in survey(make_setting()).estimates)
    (kept,) = survey(make_setting(), sequence=1, recomputes=False).estimates
    weights = kept.memory.total - kept.memory.activations
    tight = make_setting(memory_bytes=(weights + 0.8 * kept.memory.activations) / 0.9)
    (again,) = survey(tight, sequence=1).estimates
    assert again.choice.recomputes
    assert again.fits
    assert again.seconds.step > kept.seconds.step
    (forced,) = survey(make_setting(), sequence=1, recomputes=True).estimates
    assert forced.choice.recomputes


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        (
            {},
            {"sequence": 8, "strategy": "ulysses"},
            "4 heads of toy cannot be divided among 8 ranks",
        ),
        (
            {"tokens": 1000},
            {"sequence": 16, "num_gpus": 16},
            "1,000 tokens cannot be divided among 16",
        ),
        ({}, {"sequence": 3}, "8 GPUs cannot be divided into groups of 3"),
        ({"batch": 3}, {"sequence": 2}, "3 samples cannot be divided among 4 groups"),
        ({}, {"strategy": "ulises"}, "Did you mean 'ulysses'"),
        ({}, {"sequence": 1, "strategy": "ring"}, "one GPU a sample has nothing to send"),
    ],
)
def test_what_cannot_be_is_one_line(changes, options, said):
    gpus = {"num_gpus": options.pop("num_gpus", 8), "batch": 16}
    with pytest.raises(InputError, match=said) as error:
        survey(make_setting(**{**gpus, **changes}), **options)
    assert "\n" not in str(error.value)


def test_splits_that_do_not_divide_are_left_out_and_named():
    found = survey(make_setting(batch=2))
    assert {split[0] for split in splits(found)} == {2, 1}
    assert found.refused[0] == "2 samples cannot be divided among 8 or 4 groups"


def test_plain_data_say_that_they_are_an_estimate():
    data = json.loads(json.dumps(to_plain(survey(make_setting()))))
    assert data["estimate"] is True
    assert [one["best"] for one in data["estimates"]].count(True) == 1
    one = data["estimates"][0]
    assert one["seconds"]["step"] > one["seconds"]["attention"]
    assert one["memory"]["total"] == sum(v for k, v in one["memory"].items() if k != "total")
    assert data["rates"]["files"] == ["toy.json"]
