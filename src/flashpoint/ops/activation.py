"""Functions to put in softmax's place: the builtins, users' own, and the words for them."""

import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.errors import InputError, describe, hint
from flashpoint.ops.identity import digest_of

Pointwise = Callable[[Tensor], Tensor]

HERE_ONLY = "here-"  # in keys of functions that no other process can be sure to have
RESERVED = ("softmax",)  # words of layers that stand beside the activations' names
PROBES = (-3.0, -0.5, 0.25, 1.0, 7.0)  # where claims about a user's function are tried
_NAME = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)


@dataclass(frozen=True, eq=False)
class Activation:
    """A pointwise function h to put in softmax's place.

    Attributes:
        name: what messages and tables call it; ``register_activation`` makes it a word for it.
        forward: h, from a tensor of scores to a tensor of weights of the same shape and dtype.
            It must treat elements independently: implementations call it tile by tile.
        derivative: h', likewise. None: autograd differentiates ``forward``.
        degree: p, if h(c x) = c**p h(x) for every c > 0, as for relu (1) and relu2 (2). Then the
            scale leaves the inner loop. None: h is not homogeneous.
        is_nonnegative: whether h(x) >= 0 everywhere, which ``normalize="sum"`` asks for.
        triton: h and h' again for the GPU's kernels, two ``@triton.jit`` functions from a block
            of fp32 scores to a block of the same shape. None: CUDA tensors go to the reference.
        key: under which compiled graphs and exported programs find it again: the name and a hash
            of both functions, so that another process finds this very function or none. It is the
            same with the same version of Python, for functions of torch and such of Python that
            use nothing but numbers, strings and other functions. The process keeps the Activation
            from then on: make it once, outside of compiled functions.

    Example:
        >>> from flashpoint import Activation, attention
        >>> leaky = Activation("leaky_relu", torch.nn.functional.leaky_relu)
        >>> q = torch.ones(1, 1, 2, 4)
        >>> attention(q, q, q, activation=leaky).shape
        torch.Size([1, 1, 2, 4])
    """

    name: str
    forward: Pointwise
    derivative: Pointwise | None = None
    degree: int | None = None
    triton: tuple[Any, Any] | None = None
    is_nonnegative: bool = False
    key: str = field(init=False)

    def __post_init__(self) -> None:
        if not callable(self.forward):
            raise InputError(
                f"Activation {self.name!r}: forward must be callable, not {self.forward!r}."
            )
        if self.derivative is not None and not callable(self.derivative):
            raise InputError(
                f"Activation {self.name!r}: derivative must be callable or None, "
                f"not {self.derivative!r}."
            )
        if self.triton is not None and not _is_pair(self.triton):
            raise InputError(
                f"Activation {self.name!r}: triton must be a pair of @triton.jit functions "
                f"(h, derivative) or None, not {self.triton!r}."
            )
        self._check_degree()
        self._check_sign()
        builtin = self.name in BUILTIN and self.name not in ACTIVATIONS
        object.__setattr__(self, "key", self.name if builtin else self._free_key())
        ACTIVATIONS[self.key] = self

    def _free_key(self) -> str:
        """The key; a number behind it keeps objects apart that are the same function."""
        digest = digest_of(self.forward, self.derivative) or f"{HERE_ONLY}{uuid.uuid4().hex[:16]}"
        key, number = f"{self.name}#{digest}", 1
        while key in ACTIVATIONS:
            number += 1
            key = f"{self.name}#{digest}.{number}"
        return key

    def _check_degree(self) -> None:
        """A wrong degree would make wrong results: try it at a few points."""
        if self.degree is None:
            return
        if isinstance(self.degree, bool) or not isinstance(self.degree, int):
            raise InputError(
                f"Activation {self.name!r}: degree must be an integer or None, "
                f"not {describe(self.degree)}."
            )
        once, twice = (self._weights_at(c * x for x in PROBES) for c in (1.0, 2.0))
        if not torch.allclose(twice.double(), 2.0**self.degree * once.double()):
            raise InputError(
                f"Activation {self.name!r}: h(2 x) is not 2**{self.degree} h(x), so its degree is "
                f"not {self.degree}. Leave it out if h is not homogeneous."
            )

    def _check_sign(self) -> None:
        """So would negative weights in a sum that is divided by: try it there, too."""
        if self.is_nonnegative is not True and self.is_nonnegative is not False:
            raise InputError(
                f"Activation {self.name!r}: is_nonnegative must be True or False, "
                f"not {describe(self.is_nonnegative)}."
            )
        if not self.is_nonnegative:
            return
        for x, weight in zip(PROBES, self._weights_at(PROBES).tolist(), strict=True):
            if weight < 0:
                raise InputError(
                    f"Activation {self.name!r}: h({x:g}) is {weight:g}, so it is not "
                    "nonnegative. Leave is_nonnegative out."
                )

    def _weights_at(self, points: Iterable[float]) -> Tensor:
        with torch.no_grad():
            return self.weights_of(torch.tensor([*points], dtype=torch.float64))

    def weights_of(self, scores: Tensor) -> Tensor:
        """h(scores); a function that is not pointwise is told so."""
        return self._pointwise(self.forward(scores), scores)

    def slopes_of(self, scores: Tensor) -> Tensor:
        """h'(scores) by the author's derivative."""
        assert self.derivative is not None
        return self._pointwise(self.derivative(scores), scores)

    def _pointwise(self, values: object, scores: Tensor) -> Tensor:
        if not isinstance(values, Tensor) or values.shape != scores.shape:
            raise InputError(
                f"activation {self.name!r} made {describe(values)} of scores "
                f"{list(scores.shape)}; it must be pointwise and return a tensor of their shape."
            )
        return values

    def __reduce__(self) -> tuple[type["Activation"], tuple[object, ...]]:
        """A copy, also in another process, registers itself anew."""
        return Activation, (
            self.name,
            self.forward,
            self.derivative,
            self.degree,
            self.triton,
            self.is_nonnegative,
        )


def _is_pair(functions: object) -> bool:
    return (
        isinstance(functions, tuple)
        and len(functions) == 2
        and all(hasattr(function, "fn") for function in functions)  # as @triton.jit makes them
    )


def registered(key: str) -> Activation:
    """The activation under a key, as graphs and operators carry it.

    Of objects that are the same function, another process may have fewer: the first one serves.
    """
    if key in ACTIVATIONS:
        return ACTIVATIONS[key]
    function = _function_of(key)
    if function not in ACTIVATIONS:
        raise InputError(_explain_missing(key))
    return ACTIVATIONS[function]


def _function_of(key: str) -> str:
    """A key without the number that tells objects of the same function apart."""
    return re.sub(r"\.\d+$", "", key)


def _explain_missing(key: str) -> str:
    name, _, digest = key.rpartition("#")
    if digest.startswith(HERE_ONLY):
        advice = (
            "Its function holds objects, has attributes or looks names up: only the process that "
            "made it knows it. Use a function of numbers, or impl='reference'."
        )
    elif any(known.startswith(f"{name}#") for known in ACTIVATIONS):
        advice = (
            "Its own is another function, or of another version of Python. Make that one first."
        )
    else:
        advice = "Make it first, of the same functions: flashpoint.Activation(...)."
    return f"this program needs Activation {name!r} ({key}), unknown in this process. {advice}"


def register_activation(activation: Activation) -> Activation:
    """Make an activation's name a word for it, as a builtin's is: in calls, specs and configs.

    The same function may be registered again, as by a module that is loaded twice: with the same
    derivative, degree and kernels.

    Returns:
        The activation that the name stands for.

    Example:
        >>> from flashpoint import Activation, attention, register_activation
        >>> _ = register_activation(Activation("tanh", torch.tanh))
        >>> q = torch.ones(1, 1, 2, 4)
        >>> attention(q, q, q, activation="tanh").shape
        torch.Size([1, 1, 2, 4])
    """
    if not isinstance(activation, Activation):
        raise InputError(
            f"activation must be a flashpoint.Activation. Got {describe(activation)}."
        )
    name = activation.name
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in RESERVED:
        raise InputError(
            f"an activation cannot be registered as {describe(name)}. Give it a name of letters, "
            f"digits, '_', '-' and '.' that starts with a letter and is not {RESERVED[0]!r}."
        )
    known = NAMED.setdefault(name, activation)
    if other := _difference(known, activation):
        whose = "a builtin" if name in BUILTIN else f"registered already, {other}"
        raise InputError(f"activation {name!r} is {whose}. Give this one another name.")
    return known


def _difference(known: Activation, activation: Activation) -> str:
    """How two activations of one name differ, with the values; empty where they do not."""
    if not _is_same(known.forward, activation.forward):
        return "as another function"
    if not _is_same(known.derivative, activation.derivative):
        return "with another derivative"
    for name in ("degree", "is_nonnegative"):
        ours, theirs = getattr(known, name), getattr(activation, name)
        if ours != theirs:
            return f"with {name}={ours}, not {theirs}"
    kernels = [tuple(kernel.fn for kernel in a.triton or ()) for a in (known, activation)]
    same = len(kernels[0]) == len(kernels[1]) and all(map(_is_same, *kernels))
    return "" if same else "with other triton kernels"


def _is_same(one: object, other: object) -> bool:
    """The very same function (a method is a new object each time), or of the same values."""
    if one is other or (isinstance(one, MethodType) and one == other):
        return True
    digest = digest_of(one)
    return digest is not None and digest == digest_of(other)


def known_activations() -> tuple[str, ...]:
    """The words for activations: the builtins', then those that were registered."""
    return tuple(NAMED)


def find_activation(activation: str | Activation) -> Activation:
    """The activation meant by a name or given as one; an unknown name gets its nearest matches."""
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str) and activation in NAMED:
        return NAMED[activation]
    start, _, normalize = activation.partition("/") if isinstance(activation, str) else [""] * 3
    first, _, shift = start.partition("+")
    if first in NAMED:
        rest = f", bias={shift}" * bool(shift) + f", normalize={normalize!r}" * bool(normalize)
        raise InputError(
            f"activation={activation!r} is a word for layers and models. "
            f"Pass activation={first!r}{rest}."
        )
    raise InputError(
        f"activation={describe(activation)} is unknown. {hint(activation, NAMED)}"
        f"Known: {', '.join(NAMED)}; or pass a flashpoint.Activation."
    )


def _relu2(scores: Tensor) -> Tensor:
    return F.relu(scores).square()


def _relu3(scores: Tensor) -> Tensor:
    r = F.relu(scores)
    return r.square() * r


def _relu4(scores: Tensor) -> Tensor:
    return F.relu(scores).square().square()


def _softplus(scores: Tensor) -> Tensor:
    # torch turns linear at 20, where fp64 still sees the difference; at 40 nothing is left of it.
    return F.softplus(scores, threshold=40.0)


def _identity(scores: Tensor) -> Tensor:
    return scores


def _cube(scores: Tensor) -> Tensor:
    return scores * scores * scores


def _cube_slope(scores: Tensor) -> Tensor:
    return 3.0 * scores * scores


BUILTIN = (
    *("relu", "relu2", "relu3", "relu4", "relu6"),
    *("gelu", "silu", "softplus", "sigmoid", "exp", "identity"),
)
# whose weights leave fp16's range at scores of 100, and multiply a score's rounding error
STEEP = frozenset(("relu3", "relu4", "exp"))
ACTIVATIONS: dict[str, Activation] = {}  # by key

Activation("relu", F.relu, degree=1, is_nonnegative=True)
Activation("relu2", _relu2, degree=2, is_nonnegative=True)
Activation("relu3", _relu3, degree=3, is_nonnegative=True)
Activation("relu4", _relu4, degree=4, is_nonnegative=True)
Activation("relu6", F.relu6, is_nonnegative=True)
Activation("gelu", F.gelu)
Activation("silu", F.silu)
Activation("softplus", _softplus, is_nonnegative=True)
Activation("sigmoid", torch.sigmoid, is_nonnegative=True)
Activation("exp", torch.exp, is_nonnegative=True)
Activation("identity", _identity, degree=1)

NAMED = dict(ACTIVATIONS)  # by name: the builtins, and what users registered
# Polynomial attention's. It has no kernels: on a GPU the definition in plain PyTorch serves it.
NAMED["cube"] = Activation("cube", _cube, _cube_slope, degree=3)
