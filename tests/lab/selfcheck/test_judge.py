"""The error budget: what it allows, and what it does not."""

import math

import pytest
import torch

from flashpoint.lab.selfcheck.judge import Sample, Sums, judge, share_of


def sample(got, plain, exact=1.0, dtype=torch.float32, name="o"):
    """One number, its error and the reference's."""
    exact = torch.tensor([exact], dtype=torch.float64)
    return Sample(
        {name: (exact + got).to(dtype)}, {name: exact}, {name: (exact + plain).to(dtype)}
    )


def test_twice_the_error_of_the_reference_and_an_epsilon_are_allowed():
    share = share_of("o", [sample(2.0**-10, 2.0**-12)], Sums())
    assert share.error == 2.0**-10
    assert share.budget == 2 * 2.0**-12 + torch.finfo(torch.float32).eps
    assert share.ratio == share.error / share.budget > 1
    assert str(share).startswith("o: error 9.77e-04 > budget")


def test_several_samples_are_one_budget():
    lucky, other = sample(2.0**-10, 0.0), sample(0.0, 2.0**-11)
    assert judge([lucky], Sums()).ratio > 1
    assert judge([lucky, other], Sums()).ratio <= 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_is_infinitely_wrong(wrong):
    assert judge([sample(wrong, 0.0)], Sums()).ratio == math.inf
    assert judge([sample(0.0, wrong)], Sums()).ratio == math.inf


def test_another_shape_is_wrong():
    good = sample(0.0, 0.0)
    assert judge([good._replace(got={"o": torch.ones(2)})], Sums()).ratio == math.inf


def test_sums_get_the_root_of_their_length():
    eps = torch.finfo(torch.float32).eps
    assert Sums(group=4).factor("dk") == 2 * Sums(group=4).factor("dq") == 4.0
    assert Sums(on_top={"dq_gain": 9}).epsilon("dq_gain", torch.float32) == 4 * eps
    assert Sums(terms=100).epsilon("o", torch.float64) == 10 * torch.finfo(torch.float64).eps


def test_what_cancels_gets_the_epsilon_of_its_parts():
    """In q's dtype, as whose result one of the parts is kept, whatever the dtype of theirs."""
    left = sample(2.0**-9, 0.0, exact=2.0**-20)
    assert judge([left], Sums()).ratio > 1
    parts = left._replace(parts={"o": torch.tensor([1.0])})
    assert judge([parts], Sums()).ratio > 1
    assert judge([parts], Sums(dtype=torch.bfloat16)).ratio <= 1
