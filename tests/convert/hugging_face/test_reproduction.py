"""With exp and sums, or softmax itself, models of transformers say what they said before."""

import pytest
import torch
from hugging_face_models import MODELS, SERVED, make_call, make_model, make_padding, outputs_of

from flashpoint import AttentionSpec
from flashpoint.convert.substitute import Substitute
from flashpoint.convert.transformers import find, register

EXPONENTIAL = AttentionSpec.parse("exp/sum")
TEXTS = tuple(name for name in SERVED if "input_ids" in make_call(name))


@pytest.fixture(scope="module")
def exponential(transformers):
    return register(EXPONENTIAL, name="exponential")


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def gradients(model, call, weight):
    model.zero_grad()
    (outputs_of(model, call) * weight).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(got, expected):
    assert got.keys() == expected.keys()
    for name, wanted in expected.items():
        largest = wanted.abs().max().item()
        torch.testing.assert_close(got[name], wanted, rtol=1e-4, atol=2e-5 * (1 + largest))


@pytest.mark.parametrize("name", SERVED)
def test_outputs_and_gradients_are_the_models_own(transformers, exponential, name):
    theirs, ours = (make_model(transformers, name, a).train() for a in (None, exponential))
    call = make_call(name)
    expected = outputs_of(theirs, call)
    assert_same(outputs_of(ours, call), expected)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9))
    assert_same_gradients(gradients(ours, call, weight), gradients(theirs, call, weight))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", TEXTS)
def test_padded_outputs_are_the_models_own(transformers, exponential, name, side):
    theirs, ours = (make_model(transformers, name, a) for a in (None, exponential))
    call = make_call(name, side)
    expected, got = outputs_of(theirs, call), outputs_of(ours, call)
    if got.dim() == 3 and "decoder_input_ids" not in call:
        seen = make_padding(side=side).bool()  # what stands at padding is nobody's
        expected, got = expected[seen], got[seen]
    assert got.isfinite().all()
    assert_same(got, expected)


@pytest.mark.parametrize("before", ["sdpa", "eager"])
@pytest.mark.parametrize("name", SERVED)
def test_replaced_modules_reproduce_their_model(transformers, name, before):
    side = ("right" if name == "clip" else "left") if name in TEXTS else None  # CLIP reads its end
    theirs, ours = (make_model(transformers, name, before) for _ in range(2))
    keys = list(ours.state_dict())
    found = find(ours)
    assert found.sites
    assert not found.left
    for site in found.sites:
        site.install(Substitute(EXPONENTIAL, site.num_heads))
    call = make_call(name, side)
    expected, got = outputs_of(theirs, call), outputs_of(ours, call)
    if name in TEXTS and got.dim() == 3 and name != "t5":
        seen = make_padding(side=side).bool()
        expected, got = expected[seen], got[seen]
    assert_same(got, expected)
    assert list(ours.state_dict()) == keys


@pytest.mark.parametrize("name", SERVED)
def test_softmax_by_name_is_the_models_own(transformers, name):
    register("softmax")
    theirs, ours = (make_model(transformers, name, a) for a in ("sdpa", "pointwise_softmax"))
    call = make_call(name)
    assert_same(outputs_of(ours, call), outputs_of(theirs, call))


@pytest.mark.parametrize("name", SERVED)
def test_relu_is_another_model(transformers, name):
    """Otherwise nothing above would show that our functions are called at all."""
    register("relu4/sum")
    theirs, ours = (make_model(transformers, name, a) for a in ("sdpa", "pointwise_relu4_sum"))
    call = make_call(name)
    assert (outputs_of(ours, call) - outputs_of(theirs, call)).abs().max() > 1e-3


def test_every_model_is_either_served_or_refused():
    assert {*SERVED, "gemma2", "gpt-oss"} == set(MODELS)
