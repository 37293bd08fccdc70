"""Names that users add to the builtin activations."""

import pytest
import torch
import torch.nn.functional as F
import typer
from implementations import HAS_TRITON, IN_PYTHON
from lab.training.runs import tiny_config
from torch import nn
from typer.testing import CliRunner

from flashpoint import Activation, AttentionSpec, InputError, attention, register_activation
from flashpoint.lab.cli.models import models
from flashpoint.lab.training import config_file
from flashpoint.layers.attention import Attention
from flashpoint.layers.memory import KeyValueMemory
from flashpoint.models.registry import create_model
from flashpoint.ops import activation
from flashpoint.ops.activation import ACTIVATIONS, BUILTIN, NAMED


class Kernel:
    """In the place of what @triton.jit makes, which some machines cannot."""

    def __init__(self, fn):
        self.fn = fn


def double(scores):
    return 2 * scores


def triple(scores):
    return 3 * scores


TANH = nn.Tanh()
OTHERS = {
    "method": lambda: Activation("method", TANH.forward),
    "module": lambda: Activation("module", TANH),
    "double": lambda: Activation("double", double, degree=1),
    "triple": lambda: Activation("triple", triple),
    "sine": lambda: Activation(
        "sine", torch.sin, torch.cos, triton=(Kernel(triple), Kernel(double))
    ),
}


@pytest.fixture
def named(monkeypatch):
    """A function to register, under a name that is gone after the test; with some others."""
    monkeypatch.setattr(activation, "NAMED", dict(NAMED))
    for make in OTHERS.values():
        register_activation(make())
    return register_activation(Activation("swish2", lambda s: s * torch.sigmoid(2 * s)))


@pytest.mark.parametrize("impl", IN_PYTHON)
def test_registered_name_is_a_word_for_it(named, impl):
    q = torch.linspace(-1, 1, 48).view(1, 2, 3, 8)
    got = attention(q, q, q, activation="swish2", impl=impl)
    assert torch.equal(got, attention(q, q, q, activation=named, impl=impl))


def test_registered_name_serves_specs_layers_and_models(named):
    assert AttentionSpec.parse("swish2").activation == "swish2"
    x = torch.linspace(-1, 1, 160).view(1, 10, 16)
    layer = Attention(16, 2, "swish2")
    q, k, v = layer.project(x)
    expected = attention(q, k, v, activation=named).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), layer.proj(expected))
    weights = layer.weights(q, k)
    scores = q @ k.mT / 8**0.5
    torch.testing.assert_close(weights, named.weights_of(scores) / 10)
    memory = KeyValueMemory(16, 8, "swish2")
    torch.testing.assert_close(memory.weights(x), named.weights_of(memory.fc1(x)))
    sizes = {"width": 16, "num_heads": 2}
    create_model("reluformer_tiny", attention="swish2", memory_activation="swish2", **sizes)
    vit = create_model("vit", depth=1, mlp_dim=16, attention={"activation": "swish2"}, **sizes)
    assert vit.config.attention.to_dict()["activation"] == "swish2"


def test_registered_name_serves_configs_and_the_command_line(named):
    config = tiny_config("model.attention=swish2", "model.attention.alpha=0.5")
    assert config.model.settings["attention"] == {"activation": "swish2", "alpha": 0.5}
    assert "swish2" in config_file.dump(config)
    app = typer.Typer()
    app.command()(models)
    shown = CliRunner().invoke(app, ["s16", "--attention", "swish2"])
    assert "swish2 attention" in shown.output


def test_same_function_may_be_registered_again(named):
    again = Activation("swish2", lambda s: s * torch.sigmoid(2 * s))
    assert register_activation(again) is named
    assert register_activation(named) is named


@pytest.mark.parametrize("name", OTHERS)
def test_all_that_an_activation_has_may_be_registered_again(named, name):
    again = OTHERS[name]()
    assert register_activation(again) is activation.NAMED[name] is not again


SOURCE = """
import triton.language as tl

def kernel(scores):
    return tl.sin(scores) * SCALE
"""


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_module_with_kernels_may_be_loaded_twice(named):
    first, again, other = ({"SCALE": scale} for scale in (2.0, 2.0, 3.0))
    for scope in (first, again, other):
        exec(SOURCE, scope)
    pairs = [(Kernel(scope["kernel"]), Kernel(double)) for scope in (first, again, other)]
    mine = register_activation(Activation("mine", torch.sin, triton=pairs[0]))
    assert register_activation(Activation("mine", torch.sin, triton=pairs[1])) is mine
    with pytest.raises(InputError, match="with other triton kernels"):
        register_activation(Activation("mine", torch.sin, triton=pairs[2]))


REFUSED = {
    "other function": (lambda: Activation("swish2", torch.sin), "registered already, as another"),
    "other derivative": (
        lambda: Activation("swish2", lambda s: s * torch.sigmoid(2 * s), torch.ones_like),
        "registered already, with another derivative",
    ),
    "no derivative": (lambda: Activation("sine", torch.sin), "with another derivative"),
    "degree": (
        lambda: Activation("triple", triple, degree=1),
        "'triple' is registered already, with degree=None, not 1.",
    ),
    "no degree": (
        lambda: Activation("double", double),
        "'double' is registered already, with degree=1, not None.",
    ),
    "new kernels": (
        lambda: Activation("triple", triple, triton=(Kernel(triple), Kernel(double))),
        "'triple' is registered already, with other triton kernels.",
    ),
    "no kernels": (lambda: Activation("sine", torch.sin, torch.cos), "with other triton kernels"),
    "other kernels": (
        lambda: Activation("sine", torch.sin, torch.cos, None, (Kernel(triple), Kernel(triple))),
        "with other triton kernels",
    ),
    "other module": (lambda: Activation("module", nn.Tanh()), "as another function"),
    "other method": (lambda: Activation("method", nn.Tanh().forward), "as another function"),
    "builtin": (lambda: Activation("relu", F.relu), "'relu' is a builtin"),
    "softmax": (lambda: Activation("softmax", torch.exp), "not 'softmax'"),
    "spaces": (lambda: Activation("my relu", F.relu), "as 'my relu'"),
    "slash": (lambda: Activation("relu4/sum", F.relu), "as 'relu4/sum'"),
    "nothing": (lambda: Activation("", F.relu), "as ''"),
    "number": (lambda: Activation(3, F.relu), "as 3"),
    "function": (lambda: F.relu, "must be a flashpoint.Activation"),
    "word": (lambda: "relu", "must be a flashpoint.Activation. Got 'relu'"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_registration_is_refused(named, make, message):
    before = dict(activation.NAMED)
    with pytest.raises(InputError) as caught:
        register_activation(make())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert before == activation.NAMED


def test_unknown_name_lists_the_registered_ones_too(named):
    q = torch.ones(1, 1, 2, 4)
    for refuse in (
        lambda: attention(q, q, q, activation="swish"),
        lambda: Attention(16, 2, "swish"),
    ):
        with pytest.raises(InputError, match="Did you mean 'swish2'"):
            refuse()


def test_builtins_are_named_and_nothing_else_is_by_itself():
    assert tuple(NAMED)[: len(BUILTIN)] == BUILTIN
    assert all(NAMED[name] is ACTIVATIONS[name] for name in BUILTIN)
    Activation("unregistered", torch.sin)
    with pytest.raises(InputError, match="'unregistered' is unknown"):
        attention(*[torch.ones(1, 1, 2, 4)] * 3, activation="unregistered")
