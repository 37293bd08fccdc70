"""Rounding of what 64 shards send costs one epsilon at most, beside softmax's ring."""

import pytest

from shard_error import ATTENTIONS, BF16, Inputs, errors_of, exact_results

TOKENS = 1024


@pytest.fixture(scope="module")
def inputs():
    return Inputs.draw(0, TOKENS)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_64_shards_cost_an_epsilon_at_most(inputs, name):
    """Rounding n parts is off by half an epsilon of each, of either sign.

    These add up as the parts themselves do, by the root of n, so that the sum is off by half an
    epsilon, as one rounded number is. Rounding the result adds another half. A sum that is kept in
    bf16 is rounded once a part, by half an epsilon of the sum.
    """
    exact = exact_results(name, inputs)
    in_fp32 = errors_of(name, inputs, 64, exact)
    in_bf16 = errors_of(name, inputs, 64, exact, kept=BF16)
    assert list(in_fp32) == ["o", "dq", "dk", "dv"]
    assert max(in_fp32.values()) <= 1.0
    assert min(in_bf16.values()) > 1.0


@pytest.mark.parametrize("name", ATTENTIONS)
def test_one_shard_is_one_call(inputs, name):
    """Rounded where a rank sends its part, and no more."""
    errors = errors_of(name, inputs, 1, exact_results(name, inputs))
    assert max(errors.values()) <= 1.0
