"""Keys of activations: they find one function in any process, or none."""

import enum
import functools
import operator
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flashpoint import Activation
from flashpoint.ops.activation import registered
from flashpoint.ops.identity import digest_of

SLOPE = 0.25


@torch.library.custom_op("flashpoint_tests::twice", mutates_args=())
def twice(scores: torch.Tensor) -> torch.Tensor:
    """Another process may have registered another function under this name."""
    return 2 * scores


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


class Number(int):
    def __mul__(self, other):
        return other * SLOPE

    __pow__ = __mul__


class Word(str):
    __slots__ = ()


class Real(float):
    def __repr__(self):
        return "2.0"


class Array(np.float64):
    pass


class Choice(enum.IntEnum):
    TWO = 2


class Pair(NamedTuple):
    first: float
    second: float

    def apply(self, scores):
        return self.first * scores


class Set(frozenset):
    pass


class Partial(functools.partial):
    def __call__(self, scores):
        return scores * SLOPE


def attributed(scores):
    return scores * attributed.factor


attributed.factor = 2.0
partial_with_attribute = functools.partial(F.leaky_relu, negative_slope=0.1)
partial_with_attribute.factor = 2.0
find, import_module = eval, __import__

# objects that a function may hold whose class decides what they do
HELD = (Number(2), Word("a"), Real(2), Array(2), Choice.TWO, Pair(2.0, 3.0), Set((2,)))
# functions that read a value of which their code has no name
LOOKING_UP = {
    "globals": lambda s: s * globals()["SLOPE"],
    "eval": lambda s: s * eval("SLOPE"),
    "exec": lambda s: exec("SLOPE") or s,
    "locals": lambda s: s * len(locals()),
    "vars": lambda s: s * vars()["s"],
    "getattr": lambda s: s * getattr(F, "relu")(s),  # noqa: B009
    "attribute of functions": lambda s: s * leaky.__globals__["SLOPE"],
    "dict of modules": lambda s: torch.__dict__["sin"](s),
    "import by call": lambda s: s * __import__("implementations").SLOPE,
    "other name": lambda s: s * find("SLOPE"),
    "other import": lambda s: s * import_module("implementations").SLOPE,
    "partial of eval": functools.partial(eval, "SLOPE"),
    "partial of getattr": functools.partial(getattr, F),
    "attrgetter": lambda s: operator.attrgetter("sin")(torch)(s),
    "inside": lambda s: (lambda x: x * eval("SLOPE"))(s),
    "operators": lambda s: torch.ops.flashpoint_tests.twice(s),
}
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
    "value of numpy": scaled(np.float32(2)),
    "other value of numpy": scaled(np.float64(2)),
    "tuple": scaled((2.0, 3)),
    "inner": lambda s: (lambda x: x + 1)(s),
    "other inner": lambda s: (lambda x: x + 2)(s),
}
OPAQUE = {
    "operator of a library": torch.ops.flashpoint_tests.twice.default,
    "operators of a library": torch.ops.flashpoint_tests.twice,
    "module": nn.ELU(),
    "tensor": scaled(torch.tensor(2.0)),
    "list": scaled([2.0]),
    "object": Slope(),
    "bound method": Slope().__call__,
    "method of a tensor": torch.ones(3).add,
    "import": importing,
    "attribute": attributed,
    "attribute inside": calling(attributed),
    "attribute of a partial": partial_with_attribute,
    "own partial": Partial(F.relu),
    "wrapper": functools.wraps(F.relu)(lambda s: s + 1),
    **{f"own {type(value).__name__}": scaled(value) for value in HELD},
    **{f"own {type(value).__name__} in a tuple": scaled((value,)) for value in HELD},
    **LOOKING_UP,
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
def owning(scores):
    return scores * owning.factor
owning.factor = 2
made = {
    "mine": Activation("mine", h),
    "second": (Activation("second", h), Activation("second", h))[1],
    "held": Activation("held", torch.nn.ELU()),
    "owning": Activation("owning", owning),
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
names = ("mine", "second", "held", "owning")
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
def owning(scores):
    return scores * owning.factor
owning.factor = 3
Activation("owning", owning)
attempt("owning")
"""


def run(code, folder):
    command = [sys.executable, "-W", "ignore", "-c", code, str(folder), SOURCE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_exported_program_finds_that_very_function_or_says_which_is_missing(tmp_path):
    run(EXPORT, tmp_path)
    missing, other, closer, found, second, held, owning = run(LOAD, tmp_path)
    assert missing.startswith("this program needs Activation 'mine' (mine#")
    assert missing.endswith("Make it first, of the same functions: flashpoint.Activation(...).")
    for line in (other, closer):
        assert "Its own is another function" in line
    assert (found, second) == ("same", "same")
    for line in (held, owning):
        assert "only the process that made it knows it" in line
    assert all(len(line) <= 250 for line in (missing, other, held, owning))
