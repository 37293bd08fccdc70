"""AdamW: who decays, what an update is, and that a bad one changes nothing."""

import pytest
import torch
from lab.training.runs import tiny_config

from flashpoint.lab.training.config import OptimizerConfig
from flashpoint.lab.training.optimizer import make_optimizer, set_rate, skip_if, split_by_decay
from flashpoint.models.registry import create_model

CPU = torch.device("cpu")


def tiny_model(**settings):
    torch.manual_seed(0)
    config = tiny_config()
    return create_model(
        "vit", **{**config.model.settings, "image_size": 8, "channels": 1, **settings}
    )


@pytest.mark.parametrize("pool", ["gap", "token", "map"])
def test_decay_acts_on_kernels_only(pool):
    model = tiny_model(pool=pool, pre_logits=True, layer_scale=0.1, gate="silu")
    names = {parameter: name for name, parameter in model.named_parameters()}
    kernels, others = ([names[p] for p in group] for group in split_by_decay(model))
    modules = ("qkv", "proj", "gate", "fc1", "fc2", "head", "pre_logits", "q", "kv")
    assert all(name.endswith(tuple(f"{m}.weight" for m in modules)) for name in kernels)
    assert not any(name.endswith("weight") for name in others if "norm" not in name)
    assert {"pos_embed", "blocks.0.attn.alpha", "blocks.0.ls1.gamma"} <= set(others)
    assert "patch_embed.proj.weight" in kernels
    assert len(kernels) + len(others) == len(names)


def test_embedding_does_not_decay():
    kernels, others = split_by_decay(torch.nn.Embedding(3, 4))
    assert (len(kernels), len(others)) == (0, 1)


def test_shared_weights_are_updated_once():
    one = torch.nn.Linear(3, 3)
    other = torch.nn.Linear(3, 3)
    other.weight = one.weight
    kernels, others = split_by_decay(torch.nn.Sequential(one, other))
    assert (len(kernels), len(others)) == (1, 2)


def test_update_is_adamw_with_decay_times_rate():
    weight = torch.nn.Linear(2, 2, bias=False)
    before, gradient = weight.weight.detach().clone(), torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    config = OptimizerConfig(lr=0.1, weight_decay=0.1, betas=(0.9, 0.999))
    optimizer = make_optimizer(weight, config, CPU, captured=False)
    mean, square, expected = torch.zeros(2, 2), torch.zeros(2, 2), before.clone()
    for step, rate in enumerate((0.1, 0.05), start=1):
        weight.weight.grad = gradient.clone()
        set_rate(optimizer, rate)
        optimizer.step()
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        update = (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        expected = expected * (1 - rate * 0.1) - rate * update
    torch.testing.assert_close(weight.weight.detach(), expected)


def test_skipped_update_changes_neither_weights_nor_state():
    layer = torch.nn.Linear(2, 2)
    optimizer = make_optimizer(layer, OptimizerConfig(), CPU, captured=False)
    set_rate(optimizer, 0.1)

    def update(value, bad):
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, value)
        skip_if(optimizer, torch.tensor(bad))
        optimizer.step()
        tensors = [p.detach().clone() for p in layer.parameters()]
        return tensors + [t.clone() for s in optimizer.state.values() for t in s.values()]

    first = update(1.0, False)
    skipped = update(float("nan"), True)
    assert all(a.equal(b) for a, b in zip(first, skipped, strict=True))
    assert not any(a.equal(b) for a, b in zip(first, update(1.0, False), strict=True))
