"""Every provider gives an output and gradients, or a reason."""

import pytest
import torch

from flashpoint.bench.cases import Case, Shape
from flashpoint.bench.providers import PROVIDERS, make_call, make_inputs

CASE = Case(shape=Shape(2, 2, 40, 16), dtype="fp32", mode="forward")


@pytest.mark.parametrize("name", PROVIDERS)
def test_forward_records_nothing_and_training_gives_gradients(name):
    output = make_call(PROVIDERS[name], CASE, make_inputs(CASE))()
    assert output.shape == CASE.shape.sizes
    assert not output.requires_grad
    training = Case(shape=CASE.shape, dtype="fp32", mode="training")
    gradients = make_call(PROVIDERS[name], training, make_inputs(training))()
    assert [gradient.shape for gradient in gradients] == [CASE.shape.sizes] * 3


def test_plain_computes_what_flashpoint_computes():
    inputs = make_inputs(CASE)
    plain, ours = (make_call(PROVIDERS[name], CASE, inputs)() for name in ("plain", "flashpoint"))
    torch.testing.assert_close(plain, ours)


def test_options_reach_the_provider():
    causal = Case(shape=CASE.shape, dtype="fp32", mode="forward", activation="silu", causal=True)
    assert PROVIDERS["flashpoint"].options(causal) == {"activation": "silu", "causal": True}
    assert PROVIDERS["sdpa"].options(causal) == {"is_causal": True}


def test_plain_is_left_out_where_its_matrix_is_too_large():
    long = Case(shape=Shape(1, 8, 16384, 64), dtype="fp32", mode="forward")
    assert PROVIDERS["plain"].refusal(CASE) is None
    assert PROVIDERS["plain"].refusal(long) == "its L x L matrix takes 8.6 GB, more than 2.1 GB"
    causal = Case(shape=CASE.shape, dtype="fp32", mode="forward", causal=True)
    assert "relu without causality only" in PROVIDERS["plain"].refusal(causal)


def test_inputs_are_the_same_every_time():
    first, second = make_inputs(CASE), make_inputs(CASE)
    torch.testing.assert_close(first.q, second.q, rtol=0, atol=0)
    assert not torch.equal(first.q, first.k)
