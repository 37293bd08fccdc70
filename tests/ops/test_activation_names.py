"""Activations by name: keys that find one function in any process, and names that users add."""

import functools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
import typer
from implementations import IN_PYTHON
from torch import nn
from training.runs import tiny_config
from typer.testing import CliRunner

from flashpoint import Activation, AttentionSpec, InputError, attention, register_activation
from flashpoint.cli.models import models
from flashpoint.layers.attention import Attention
from flashpoint.layers.memory import KeyValueMemory
from flashpoint.models.registry import create_model
from flashpoint.ops import spec
from flashpoint.ops.identity import digest_of
from flashpoint.ops.spec import ACTIVATIONS, BUILTIN, NAMED, registered
from flashpoint.training import config_file

SLOPE = 0.25


def leaky(scores):
    return F.leaky_relu(scores, SLOPE)


def scaled(factor, power=1):
    return lambda scores: factor * scores**power


def calling(function):
    def call(scores, again=2):
        return call(scores, again - 1) if again else function(scores)

    return call


class Slope:
    factor = 2.0

    def __call__(self, scores):
        return self.factor * scores


def importing(scores):
    import flashpoint

    return flashpoint and scores


# functions that are told from one another by their code, values, closures, defaults and globals
FUNCTIONS = {
    "torch": torch.sin,
    "other torch": torch.cos,
    "functional": F.gelu,
    "python of torch": F.leaky_relu,
    "method": torch.Tensor.sigmoid_,
    "operator": torch.ops.aten.relu.default,
    "global": leaky,
    "lambda": lambda s: s * 2,
    "other lambda": lambda s: s * 3,
    "other names": lambda s: s.sin(),
    "closure": scaled(2.0),
    "other closure": scaled(3.0),
    "type of closure": scaled(2),
    "second closure": scaled(2.0, 2),
    "partial": functools.partial(F.leaky_relu, negative_slope=0.1),
    "other partial": functools.partial(F.leaky_relu, negative_slope=0.2),
    "default": lambda s, c=2.0: s * c,
    "other default": lambda s, c=4.0: s * c,
    "keyword": lambda s, *, c=2.0: s * c,
    "recursive": calling(torch.sin),
    "other recursive": calling(torch.cos),
    "wrapper": functools.wraps(F.relu)(lambda s: s + 1),
    "inner": lambda s: (lambda x: x + 1)(s),
    "other inner": lambda s: (lambda x: x + 2)(s),
}
OPAQUE = {
    "module": nn.ELU(),
    "tensor": scaled(torch.tensor(2.0)),
    "list": scaled([2.0]),
    "object": Slope(),
    "bound method": Slope().__call__,
    "method of a tensor": torch.ones(3).add,
    "import": importing,
    "other module": lambda s: subprocess.list2cmdline([]) or s,
}


def test_functions_are_told_apart():
    digests = {name: digest_of(function) for name, function in FUNCTIONS.items()}
    assert None not in digests.values()
    assert len(set(digests.values())) == len(digests), digests


@pytest.mark.parametrize("function", OPAQUE.values(), ids=OPAQUE)
def test_what_may_change_has_no_digest(function):
    assert digest_of(function) is None


SOURCE = """
import torch.nn.functional as F


SLOPE = 0.25


def leaky(x):
    return F.leaky_relu(x, SLOPE)
"""


def test_same_function_has_the_same_digest_wherever_it_was_made(monkeypatch):
    assert digest_of(scaled(2.0)) == digest_of(scaled(2.0))
    there = {"__name__": "elsewhere"}
    exec(SOURCE, there)
    assert digest_of(there["leaky"]) == digest_of(leaky)
    monkeypatch.setattr(sys.modules[__name__], "SLOPE", 0.5)
    assert digest_of(there["leaky"]) != digest_of(leaky)


def test_objects_of_one_function_keep_keys_of_their_own():
    first, second = (Activation("twin", scaled(2.0)) for _ in range(2))
    assert first.key != second.key
    assert registered(first.key) is first
    assert registered(second.key) is second
    assert registered(f"{first.key}.99") is first  # of a process that made more of them


def test_stated_derivative_is_part_of_a_key():
    plain, stated = Activation("mine", torch.sin), Activation("mine", torch.sin, torch.cos)
    assert plain.key.partition(".")[0] != stated.key.partition(".")[0]


EXPORT = """
import sys, torch, torch.nn.functional as F
from flashpoint import Activation, attention
SLOPE = 0.25
def h(scores):
    return F.leaky_relu(scores, SLOPE)
made = {
    "mine": Activation("mine", h),
    "second": (Activation("second", h), Activation("second", h))[1],
    "held": Activation("held", torch.nn.ELU()),
}
class Block(torch.nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.activation = activation
    def forward(self, q):
        return attention(q, q, q, activation=self.activation)
q = torch.linspace(-1, 1, 48).view(1, 2, 3, 8)
for name, activation in made.items():
    program = torch.export.export(Block(activation), (q,))
    torch.export.save(program, f"{sys.argv[1]}/{name}.pt2")
    torch.save(program.module()(q), f"{sys.argv[1]}/{name}.pt")
"""

LOAD = """
import sys, torch
import torch.nn.functional as F
from flashpoint import Activation, InputError, attention
names = ("mine", "second", "held")
programs = {n: torch.export.load(f"{sys.argv[1]}/{n}.pt2").module() for n in names}
q = torch.linspace(-1, 1, 48).view(1, 2, 3, 8)
def attempt(name):
    try:
        same = torch.equal(programs[name](q), torch.load(f"{sys.argv[1]}/{name}.pt"))
        print("same" if same else "OTHER")
    except InputError as error:
        print(error)
attempt("mine")
Activation("mine", torch.sin)
Activation("mine", lambda s: F.leaky_relu(s, 0.26))
attempt("mine")
def build(slope):
    scope = {}
    exec(sys.argv[2].replace("0.25", str(slope)), scope)
    return scope["leaky"]
Activation("mine", build(0.26))
attempt("mine")
Activation("mine", build(0.25))
attempt("mine")
Activation("second", build(0.25))
attempt("second")
Activation("held", torch.nn.ELU())
attempt("held")
"""


def run(code, folder):
    command = [sys.executable, "-W", "ignore", "-c", code, str(folder), SOURCE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_exported_program_finds_that_very_function_or_says_which_is_missing(tmp_path):
    run(EXPORT, tmp_path)
    missing, other, closer, found, second, held = run(LOAD, tmp_path)
    assert missing.startswith("this program needs Activation 'mine' (mine#")
    assert missing.endswith("Make it first, of the same functions: flashpoint.Activation(...).")
    for line in (other, closer):
        assert "Its own is another function" in line
    assert (found, second) == ("same", "same")
    assert "holds tensors, modules or other objects" in held
    assert all(len(line) <= 250 for line in (missing, other, held))


# Names that users add


@pytest.fixture
def named(monkeypatch):
    """A function to register, under a name that is gone after the test."""
    monkeypatch.setattr(spec, "NAMED", dict(NAMED))
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


REFUSED = {
    "other function": (lambda: Activation("swish2", torch.sin), "registered already, as another"),
    "other derivative": (
        lambda: Activation("swish2", lambda s: s * torch.sigmoid(2 * s), torch.ones_like),
        "registered already, as another",
    ),
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
    before = dict(spec.NAMED)
    with pytest.raises(InputError) as caught:
        register_activation(make())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert before == spec.NAMED


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
