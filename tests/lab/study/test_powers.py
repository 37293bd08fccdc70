"""relu's sixth power: its values, its slope, and trials that train with it."""

import torch
from lab.study.tiny import settle, training
from lab.training.runs import TINY

from flashpoint import attention
from flashpoint.lab.study.powers import register_powers
from flashpoint.lab.study.store import read_outcome
from flashpoint.lab.study.trial import do_trial


def test_values_and_gradients_are_those_of_the_power():
    register_powers()
    q, k, v = (torch.randn(2, 1, 5, 4, dtype=torch.float64, requires_grad=True) for _ in "qkv")
    weights = torch.relu(q @ k.mT / 2.0) ** 6
    sums = weights.sum(-1, keepdim=True) + 5e-3
    found = attention(q, k, v, activation="relu_p6", normalize="sum")
    torch.testing.assert_close(found, weights @ v / sums)
    wanted = torch.autograd.grad((weights @ v / sums).square().sum(), (q, k, v))
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), (q, k, v)), wanted)


def test_a_trial_may_name_it(tmp_path):
    model = {**TINY["model"], "attention": {"activation": "relu_p6", "normalize": "sum"}}
    (folder,) = settle(tmp_path / "tiny", [training("sixth", model=model, steps=2)])
    assert do_trial(folder) == "finished", folder.joinpath("log.txt").read_text()
    assert read_outcome(folder).status == "finished"
