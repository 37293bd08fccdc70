"""The mathematics of one call as data: activations, and the numbers that kernels get.

    w_ij = m_ij * h(scale * q_i . k_j + b_ij)
    o_i = gain * n_i ** -alpha * sum_j w_ij * v_j                      normalize="length"
    o_i = sum_j w_ij * v_j / (sum_j w_ij + floor * n_i)                normalize="sum"

Query i stands at position p = i + Lk - Lq and sees the keys p - left <= j <= p + right that exist.
"""

import math
import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.errors import InputError, describe, hint
from flashpoint.ops.identity import digest_of

Pointwise = Callable[[Tensor], Tensor]

HERE_ONLY = "here-"  # in keys of functions that no other process can be sure to have
TINY = 2.0**-100  # under it a logarithm stays, on every device
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


class Terms(NamedTuple):
    """Everything about a call that is not a tensor, in the order of the registered operators.

    Attributes:
        activation: key into ``ACTIVATIONS``.
        alpha: exponent of the length.
        length: what n_i counts, "visible" or "keys".
        gain: constant factor; a length given as a number arrives here, with alpha 0.
        scale: factor on the scores; None means ``D ** -0.5``.
        bias: the number added to every score.
        left, right: how far a query sees to either side; None is unbounded. Causal is right = 0.
        normalize: "length" or "sum".
        floor: of "sum". There alpha is -1, which makes floor * n_i ** -alpha of it; or 0, where a
            length given as a number is in the floor already.
        logs: whether rows' sums of weights come with those of w_ij log w_ij, as [2, ...].

    It has no properties: torch 2.9 does not compile those of a named tuple.
    """

    activation: str = "relu"
    alpha: float = 1.0
    length: str = "visible"
    gain: float = 1.0
    scale: float | None = None
    bias: float = 0.0
    left: int | None = None
    right: int | None = None
    normalize: str = "length"
    floor: float = 0.0
    logs: bool = False

    def scale_for(self, head_dim: int) -> float:
        """The factor on the scores, with the default filled in."""
        return head_dim**-0.5 if self.scale is None else self.scale

    def split_scale(self, head_dim: int, *, has_bias: bool) -> tuple[float, float]:
        """The same as a factor on the scores and one on the weights: behind h where h allows it.

        Then the first is 1.
        """
        scale = self.scale_for(head_dim)
        degree = registered(self.activation).degree
        # Far from 1 the scale stays: it may be all that keeps the scores within their range.
        if degree is None or has_bias or not 2.0**-12 <= scale <= 2.0**12:
            return scale, 1.0
        return 1.0, scale**degree


class NormTerms(NamedTuple):
    """How packed attention normalizes q and k over the head dim, in the operators' order.

    Attributes:
        q_kind, k_kind: "none"; "layer", (x - mean) / sqrt(variance + eps); or "rms",
            x / sqrt(mean square + eps). The gains are tensors and come apart.
        q_eps, k_eps: what is added under the root.
    """

    q_kind: str = "none"
    q_eps: float = 1e-6
    k_kind: str = "none"
    k_eps: float = 1e-6


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


@overload
def normalizer(n: int | float, alpha: float) -> float: ...
@overload
def normalizer(n: Tensor, alpha: float, dtype: torch.dtype) -> Tensor: ...


def normalizer(n: int | float | Tensor, alpha: float, dtype: torch.dtype | None = None) -> Any:
    """n ** -alpha of a length, infinite where Python would raise; or of counts of visible keys.

    A query that sees no key gives zeros whatever its normalizer is, so that counts are at least 1.
    """
    if isinstance(n, Tensor):
        return n.clamp(min=1).to(dtype) ** -alpha
    try:
        return float(n) ** -alpha
    except OverflowError:
        return math.inf


def find_activation(activation: str | Activation) -> Activation:
    """The activation meant by a name or given as one; an unknown name gets its nearest matches."""
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str) and activation in NAMED:
        return NAMED[activation]
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
