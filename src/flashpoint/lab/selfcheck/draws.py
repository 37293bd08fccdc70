"""Case number i of a seed, drawn at random over all options of the public functions.

On a GPU every new combination of dtype, head dims, activation and kinds of options is compiled,
which takes seconds. So cases come in groups there: a ``Kind`` is drawn for the group, sizes and
numbers for each case of it. What is compiled in, too, is whether a size is 1 and whether it is a
multiple of 16. So lengths of a group are all multiples of 16 or none is, samples and heads are one
or several, a bias or mask has the same axes, and a window's sides are of one sort.
"""

import math
import random
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flashpoint.lab.selfcheck.case import Case, Function, Scored
from flashpoint.lab.selfcheck.values import KINDS, OWN, is_nonnegative
from flashpoint.ops.activation import BUILTIN
from flashpoint.ops.qk_norm import NORM_KINDS

GROUP = {"cpu": 1, "interpreter": 1, "cuda": 24}
"""Cases that share a kind, by where they run."""

LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257)
TILE_LENGTHS = (1, 17, 63, 64, 65, 66, 127, 128, 129)
"""For the interpreter, whose time goes by the number of tiles: one tile, or a little more."""

HOPPER_LENGTH = 192
"""Tokens from which on calls that hide and add nothing have kernels of their own on an H100."""

LONG = (511, 512, 513, 577, 784, 1023, 1024, 1025, 1999, 2000)
DIMS = (1, 8, 16, 63, 64, 65, 72, 80, 96, 128, 129, 192, 255, 256)
ROW_LAYOUTS = ("dense", "swapped", "padded", "offset", "turned")
LAYOUTS = (*ROW_LAYOUTS, "expanded")
REACH = ("none", "one", "some", "all")
"""How far a side of a window goes."""


class Scope(NamedTuple):
    """Where cases run, "cpu" or "cuda", and by which implementations."""

    device: str
    impls: tuple[str, ...]

    def place(self, impl: str) -> str:
        """What the sizes of a case go by."""
        return "interpreter" if impl == "triton" and self.device == "cpu" else self.device

    @property
    def group(self) -> int:
        """How many cases in a row share a kind."""
        return GROUP[self.device]


class Limits(NamedTuple):
    """The largest sizes: tokens, the rare long ones, heads of all samples, scores, numbers."""

    length: int
    longest: int
    heads: int
    scores: int
    numbers: int


LIMITS = {
    "interpreter": Limits(66, 130, 3, 2**13, 2**14),
    "cpu": Limits(130, 1100, 40, 2**16, 2**15),
    "cuda": Limits(1100, 2000, 40, 2**22, 2**19),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a group's cases share; words say of an option only of which sort it is."""

    impl: str
    function: Function
    pattern: str
    dtype: str
    group: int
    D: int
    Dv: int
    activation: str
    normalize: Literal["length", "sum"]
    return_sums: bool
    alpha: float | None  # None: any
    length: str
    scale: str
    bias: str
    mask: str
    beside_dtype: str  # of a floating bias or mask
    bias_axes: tuple[bool, ...]  # which of B, Hq, Lq and Lk it has; the others broadcast
    mask_axes: tuple[bool, ...]
    samples: tuple[int, ...]  # to draw B from
    heads: tuple[int, ...]  # to draw Hkv from
    causal: bool
    window: tuple[str | None, str | None] | None  # a key of REACH for each bounded side
    has_key_lengths: bool
    norms: tuple[str | None, str | None]
    gain_dtype: str | None
    layouts: tuple[tuple[str, ...], tuple[str, ...]]
    is_aligned: bool | None  # None: lengths of either sort


def draw_case(seed: int, index: int, scope: Scope) -> Case:
    """The case: the same for the same arguments, on every machine.

    Which implementation it is for depends on all of the scope's. With that one alone in the scope
    the case is the same, so that it can be repeated where the others are not installed.
    """
    kind = _draw_kind(random.Random(f"kind {seed} {index // scope.group}"), scope)
    return _Draw(random.Random(f"case {seed} {index}"), kind, scope).case(seed, index)


def _draw_kind(rng: random.Random, scope: Scope) -> Kind:
    weights = [1 if impl == "reference" else 8 for impl in scope.impls]
    impl = rng.choices(scope.impls, weights)[0]  # one random number, however many there are
    place = scope.place(impl)
    function: Function = rng.choices(("attention", "varlen", "qkvpacked"), (6, 2, 2))[0]
    pattern = rng.choices(("any", "bare", "few queries"), (6, 3, 1))[0]
    dtype = _dtype(rng, impl, place, pattern)
    D = _dim(rng, pattern)
    Dv = D if pattern == "bare" or rng.random() < 0.5 else _dim(rng, pattern)
    q_norm, k_norm = (rng.choice((None, *NORM_KINDS)) for _ in "qk")
    norms = (q_norm, k_norm) if function == "qkvpacked" else (None, None)
    is_bare = pattern == "bare"
    activation = _activation(rng, impl)
    divides = rng.random() < 0.5 and is_nonnegative(activation)
    return Kind(
        impl=impl,
        function=function,
        pattern=pattern,
        dtype=dtype,
        group=1 if function == "qkvpacked" else _group(rng, LIMITS[place].heads),
        D=D,
        Dv=D if function == "qkvpacked" else Dv,
        activation=activation,
        normalize="sum" if divides else "length",
        return_sums=rng.random() < 0.35,
        alpha=1.0 if divides else rng.choice((1.0, 1.0, 0.0, 0.5, None)),
        length=rng.choice(("visible", "visible", "keys", "number")),
        scale=rng.choice(("usual", "usual", "positive", "other")),
        bias=rng.choice(("none", "number") if is_bare else ("none", "none", "number", "tensor")),
        mask="none" if is_bare else rng.choice(("none", "none", "bool", "float")),
        beside_dtype=rng.choice((dtype, "fp32")) if dtype != "fp64" else dtype,
        bias_axes=_axes(rng),
        mask_axes=_axes(rng),
        samples=rng.choice(((1,), (2, 3, 5))),
        heads=rng.choice(((1,), (2, 3))),
        causal=rng.random() < 0.3,
        window=_window_kind(rng) if not is_bare and rng.random() < 0.25 else None,
        has_key_lengths=not is_bare and function != "varlen" and rng.random() < 0.35,
        norms=norms,
        gain_dtype=rng.choice((None, dtype, "fp32")) if any(norms) else None,
        layouts=_layouts(rng, is_bare),
        is_aligned=rng.random() < 0.4 if place == "cuda" else None,
    )


def _dtype(rng: random.Random, impl: str, place: str, pattern: str) -> str:
    if place == "interpreter":  # it multiplies bf16 as raw bits
        return rng.choice(("fp16", "fp32"))
    if pattern == "bare":
        return rng.choice(("bf16", "bf16", "fp16", "fp32"))
    return rng.choice(("bf16", "bf16", "fp16", "fp32", "fp32" if impl == "triton" else "fp64"))


def _group(rng: random.Random, most: int) -> int:
    return min(rng.choice((1, 1, 1, 2, 3, 4, 8)), most)


def _dim(rng: random.Random, pattern: str) -> int:
    if pattern == "bare" and rng.random() < 0.7:
        return rng.choice((16, 40, 64, 64, 64, 72, 80, 96, 128, 128))
    return rng.choice(DIMS) if rng.random() < 0.6 else rng.randint(1, 256)


def _activation(rng: random.Random, impl: str) -> str:
    own = OWN if impl != "triton" or rng.random() < 0.1 else ("soft",)
    return rng.choice(BUILTIN) if rng.random() < 0.85 else rng.choice(own)


def _axes(rng: random.Random) -> tuple[bool, ...]:
    return tuple(rng.random() < 0.6 for _ in range(4))


def _window_kind(rng: random.Random) -> tuple[str | None, str | None]:
    bounded = rng.choice(((True, True), (True, False), (False, True)))
    left, right = (rng.choice(REACH) if is_bounded else None for is_bounded in bounded)
    return left, right


def _layouts(rng: random.Random, is_bare: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the first call and the second; half of the time they are the same."""

    def draw() -> tuple[str, ...]:
        if is_bare and rng.random() < 0.85:
            return (rng.choice(("dense", "swapped")),) * 5
        if rng.random() < 0.3:
            return ("dense",) * 5
        return (rng.choice(ROW_LAYOUTS), *(rng.choice(LAYOUTS) for _ in range(4)))

    first = draw()
    return first, first if rng.random() < 0.5 else draw()


def _scored(shape: tuple[int, int, int, int], axes: tuple[bool, ...], dtype: str) -> Scored:
    """A bias or mask that has some of the axes."""
    B, Hq, Lq, Lk = (n if has_axis else 1 for n, has_axis in zip(shape, axes, strict=True))
    return Scored((B, Hq, Lq, Lk), dtype)


class _Draw:
    """Sizes and numbers of one case of a kind."""

    def __init__(self, rng: random.Random, kind: Kind, scope: Scope) -> None:
        self.rng, self.kind = rng, kind
        self.place = scope.place(kind.impl)
        self.limits = LIMITS[self.place]

    def case(self, seed: int, index: int) -> Case:
        rng, kind = self.rng, self.kind
        B, Hkv, Lq, Lk, sequences = self._sizes()
        Hq = Hkv * kind.group
        shape = (B, Hq, Lq, Lk)
        alpha = rng.choice((1.7, -0.5, round(rng.uniform(-0.5, 2), 2)))
        floor = rng.choice((0.0, 1e-3, 1e-3, 0.5, round(rng.uniform(0, 3), 2)))
        lengths: dict[str, str | float] = {"number": rng.choice((0.5, 1, 7, float(max(Lk, 1))))}
        bias: dict[str, float | Scored | None] = {
            "none": None,
            "number": rng.choice((-7.0, -0.75, 0.3, 1.5)),
            "tensor": _scored(shape, kind.bias_axes, kind.beside_dtype),
        }
        masked = "bool" if kind.mask == "bool" else kind.beside_dtype
        return Case(
            seed=seed,
            index=index,
            impl=kind.impl,
            function=kind.function,
            dtype=kind.dtype,
            B=B,
            Hq=Hq,
            Hkv=Hkv,
            Lq=Lq,
            Lk=Lk,
            D=kind.D,
            Dv=kind.Dv,
            sequences=sequences,
            activation=kind.activation,
            normalize=kind.normalize,
            floor=floor if kind.normalize == "sum" else 1e-3,
            return_sums=kind.return_sums,
            alpha=alpha if kind.alpha is None else kind.alpha,
            length=lengths.get(kind.length, kind.length),
            scale=self._scale(),
            bias=bias[kind.bias],
            mask=None if kind.mask == "none" else _scored(shape, kind.mask_axes, masked),
            causal=kind.causal,
            window=self._window(Lk),
            key_lengths=self._key_lengths(B, Lk),
            norms=kind.norms,
            gain_dtype=kind.gain_dtype,
            values=rng.choices(KINDS, (10, 3, 2, 2, 2, 3))[0],
            layouts=kind.layouts,
        )

    def _length(self, limit: int) -> int:
        """A number of tokens, corners of tiles above all; rarely none."""
        rng = self.rng
        sort = rng.random()
        if sort < 0.015:
            return 0
        lengths = TILE_LENGTHS if self.place == "interpreter" else (*LENGTHS, *LONG)
        corners = [n for n in lengths if n <= limit]
        length = rng.choice(corners) if sort < 0.55 else rng.randint(1, limit)
        if sort > 0.85:
            length = rng.randint(1, min(limit, 20))
        if self.kind.is_aligned is None:
            return length
        if self.kind.is_aligned:
            return -(-length // 16) * 16
        return length + 1 if length % 16 == 0 else length

    def _sizes(self) -> tuple[int, int, int, int, tuple[tuple[int, int], ...] | None]:
        """B, Hkv, Lq, Lk and packed sequences, with no more scores than the limits have."""
        rng, kind, limits = self.rng, self.kind, self.limits
        samples, heads = rng.choice(kind.samples), rng.choice(kind.heads)
        limit = limits.longest if rng.random() < 0.08 else limits.length
        if kind.pattern == "few queries" and self.place != "interpreter":
            Lq, Lk = rng.randint(1, 8), rng.randint(512, limits.longest)
        else:
            Lk = self._length(limit)
            Lq = Lk if rng.random() < 0.4 else self._length(limit)
        if kind.pattern == "bare" and self.place == "cuda" and rng.random() < 0.6:
            Lq, Lk = Lq + HOPPER_LENGTH, Lk + HOPPER_LENGTH
        square = math.isqrt(8 * limits.scores // kind.group)
        if kind.function == "qkvpacked":
            Lq = Lk = min(Lk, square)
        Hkv = self._fitted(heads, 1, Lq, Lk)
        B = self._fitted(samples, Hkv, Lq, Lk)
        if kind.function != "qkvpacked":
            Lq = min(Lq, 4 * limits.scores // (kind.group * max(Lk, 1)))
        if kind.function != "varlen":
            return B, Hkv, Lq, Lk, None
        sequences = [(rng.randint(0, Lq), rng.randint(0, Lk)) for _ in range(B)]
        if rng.random() < 0.8:
            sequences[rng.randrange(B)] = (Lq, Lk)
        if rng.random() < 0.3:
            shortest = [min(*lengths, square) for lengths in sequences]
            sequences = [(n, n) for n in shortest]
            Lq = Lk = min(max(Lq, Lk), square)
        return B, Hkv, Lq, Lk, tuple(sequences)

    def _fitted(self, most: int, heads: int, Lq: int, Lk: int) -> int:
        """The largest number, of samples or heads, with no more to compute than the limits."""
        kind, limits = self.kind, self.limits
        scores = heads * kind.group * Lq * Lk
        numbers = heads * max(Lq * kind.group, Lk) * max(kind.D, kind.Dv)
        fits = min(limits.scores // max(scores, 1), limits.numbers // max(numbers, 1))
        return max(1, min(most, fits, limits.heads // (heads * kind.group)))

    def _scale(self) -> float | None:
        usual = self.kind.D**-0.5
        # fp16 holds weights from 1e-4 to 65,504 in full; exp of a score leaves any range soon
        is_narrow = self.kind.dtype == "fp16" or self.kind.activation == "exp"
        one, tiny = (3 * usual, 1e-2) if is_narrow else (1.0, 1e-6)
        sorts = {
            "usual": (None,),
            "positive": (one, 3 * usual, 0.1 * usual),
            "other": (0.0, -one, -usual, tiny * usual),
        }
        return self.rng.choice(sorts[self.kind.scale])

    def _window(self, Lk: int) -> tuple[int | None, int | None] | None:
        if self.kind.window is None:
            return None
        some = 2 + self.rng.randint(0, max(Lk, 1))
        numbers = {None: None, "none": 0, "one": 1, "some": some, "all": 10**12}
        left, right = (numbers[sort] for sort in self.kind.window)
        return left, right

    def _key_lengths(self, B: int, Lk: int) -> tuple[int, ...] | None:
        """How many keys exist: all, none, one short of all or of a tile, any number."""
        if not self.kind.has_key_lengths:
            return None
        ends = [n - 1 for n in (16, 32, 64, 128, 256, 512) if n - 1 <= Lk]
        return tuple(
            self.rng.choice((Lk, max(Lk - 1, 0), 0, self.rng.randint(0, Lk), *ends[-1:]))
            for _ in range(B)
        )
