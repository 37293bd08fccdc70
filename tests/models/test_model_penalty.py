"""The penalty of a whole model: over the attention that has one, and none where nothing has."""

import pytest
import torch
import torch.nn.functional as F
from models.measured_rows import measure_rows
from models.text_models import PER_HEAD, V, make, make_tokens

from flashpoint.errors import UnsupportedError
from flashpoint.layers.attention import Attention
from flashpoint.models.penalty import has_penalty, penalize


def penalties_by_hand(model, source, target, source_lengths, target_lengths):
    """The penalty of every attention from its inputs, caught by hooks."""
    found = []

    def hook(module, inputs, options):
        context = inputs[1] if len(inputs) > 1 else None
        q, k, _ = module.project(inputs[0], context)
        is_encoder = any(module is block.attn for block in model.encoder)
        lengths = source_lengths if is_encoder else target_lengths
        found.append(penalize(module, [measure_rows(module, q, k, **options)], lengths))

    layers = [module for module in model.modules() if isinstance(module, Attention)]
    layers = [layer for layer in layers if has_penalty(layer.spec)]
    hooks = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    model(source, target, source_lengths=source_lengths, target_lengths=target_lengths)
    for handle in hooks:
        handle.remove()
    return found


PENALIZED = {
    "all": ({}, 2 + 2 * 3),
    "post-norm": ({"pre_norm": False}, 2 + 2 * 3),
    "cross softmax": ({"cross_attention": "softmax"}, 2 + 3),
    "cross by sums": ({"cross_attention": "relu/sum"}, 2 + 3),
    "cross silu": ({"cross_attention": "silu"}, 2 + 3),
    "cross alone": ({"attention": "relu4/sum", "cross_attention": "relu"}, 3),
    "two of relu": ({"cross_attention": {**PER_HEAD.to_dict(), "gain_start": 0.3}}, 2 + 2 * 3),
}


@pytest.mark.parametrize(("fields", "count"), PENALIZED.values(), ids=PENALIZED)
def test_penalty_is_the_mean_over_all_attention_that_has_one(fields, count):
    model = make(**fields).double()
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    for number, layer in enumerate(layers, start=1):
        if layer.gain is not None:
            layer.gain.data *= number  # no two alike
    tensors = (make_tokens(3, 9), make_tokens(3, 7, seed=2))
    lengths = {
        "source_lengths": torch.tensor([9, 4, 0]),
        "target_lengths": torch.tensor([7, 2, 5]),
    }
    logits, penalty = model(*tensors, **lengths, with_penalty=True)
    torch.testing.assert_close(logits, model(*tensors, **lengths), rtol=1e-12, atol=1e-12)
    found = penalties_by_hand(model, *tensors, *lengths.values())
    assert len(found) == count
    torch.testing.assert_close(penalty, torch.stack(found).mean())
    gains = [layer.gain for layer in layers if has_penalty(layer.spec)]
    assert all(grad.any() for grad in torch.autograd.grad(penalty, gains))


def test_penalty_does_not_depend_on_padding():
    model = make().double()
    source, target = make_tokens(2, 5), make_tokens(2, 4, seed=2)
    _, alone = model(source, target, with_penalty=True)
    padded = F.pad(source, (0, 3), value=9), F.pad(target, (0, 6), value=9)
    lengths = {"source_lengths": torch.full((2,), 5), "target_lengths": torch.full((2,), 4)}
    _, penalty = model(*padded, **lengths, with_penalty=True)
    torch.testing.assert_close(penalty, alone)


@pytest.mark.parametrize(
    ("own", "cross"), [("softmax", None), ("relu/sum", None), ("relu4/sum", "softmax")]
)
def test_softmax_and_sums_have_no_penalty(own, cross):
    model = make(attention=own, cross_attention=cross)
    assert not model.config.has_penalty
    logits, penalty = model(make_tokens(2, 5), make_tokens(2, 4), with_penalty=True)
    assert logits.shape == (2, 4, V)
    assert penalty.item() == 0.0


@pytest.mark.parametrize("fields", [{}, {"cross_attention": "softmax"}])
def test_penalty_of_other_activations_is_refused(fields):
    model = make(attention="silu", **fields)
    with pytest.raises(
        UnsupportedError, match="defined for relu attention, this model has 'silu'"
    ):
        model(make_tokens(2, 5), make_tokens(2, 4), with_penalty=True)


def test_penalty_falls_when_it_is_minimized():
    model = make(encoder_depth=1, decoder_depth=1)
    tensors = make_tokens(4, 24), make_tokens(4, 24, seed=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    values = []
    for _ in range(30):
        _, penalty = model(*tensors, with_penalty=True)
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
        values.append(penalty.item())
    assert values[-1] < 0.5 * values[0]
