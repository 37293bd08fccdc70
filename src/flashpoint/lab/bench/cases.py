"""What is measured, as plain data: a shape, a dtype, a mode and the options of the operator.

Axes: B batch, H heads, L length, D head dim. This module imports no torch, so that the command
line can check its arguments first.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from flashpoint.bounds import Bounds, check_within
from flashpoint.errors import InputError, describe, hint
from flashpoint.words import fields_of

Mode: TypeAlias = Literal["forward", "backward", "training", "recording"]
"""forward: nothing recorded; backward: alone, after a forward that is done; training: forward and
backward; recording: forward with the graph recorded."""

QkNorm: TypeAlias = Literal["none", "layer"]
"""layer: LayerNorm of q and k over the head dim, with gains, before the products."""

Layout: TypeAlias = Literal["heads", "tokens", "packed"]
"""How q, k and v lie in memory. heads: [B, H, L, D]; tokens: [B, L, H, D], as linear layers leave
them; packed: all three in one [B, L, 3, H, D]. Functions see [B, H, L, D] in any case."""

Mask: TypeAlias = Literal["none", "bool"]
"""bool: [B, 1, Lq, Lk], half of it true at random, so that no block of keys can be left out."""

Bias: TypeAlias = Literal["none", "-log_length", "fixed", "learned"]
"""-log_length: minus the logarithm of the length, a number, in pointwise attention only. fixed: a
tensor [1, H, Lq, Lk]; learned: one with a gradient."""

DTYPES = ("bf16", "fp16", "fp32")
ITEM_BYTES: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4}

PASSES: Mapping[Mode, float] = {"forward": 1, "recording": 1, "backward": 2.5, "training": 3.5}
"""Matrix products over forward's two: backward has five."""

MEMORY_BOUND_QUERIES = 16
"""With no more queries than this the time is that of reading k and v."""

MAX_SIZE = Bounds(1, 2**30)
_SIZE = r"(?P<{}>0*[1-9]\d{{0,17}})".format
_SHAPE = re.compile(
    f"{_SIZE('b')},{_SIZE('h')}(?:/{_SIZE('k')})?,(?:{_SIZE('q')}:)?{_SIZE('l')},{_SIZE('d')}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """B, H, L, D, where k and v may have fewer heads and q another length.

    Attributes:
        length: of k and v.
        kv_heads: of k and v; None: as many as q has.
        queries: length of q; None: that of k and v.
    """

    batch: int
    heads: int
    length: int
    dim: int
    kv_heads: int | None = None
    queries: int | None = None

    @property
    def num_kv_heads(self) -> int:
        """Heads of k and v."""
        return self.kv_heads or self.heads

    @property
    def num_queries(self) -> int:
        """Length of q."""
        return self.queries or self.length

    @property
    def q_sizes(self) -> tuple[int, int, int, int]:
        """Of q, o and their gradients, in the order of the axes."""
        return self.batch, self.heads, self.num_queries, self.dim

    @property
    def kv_sizes(self) -> tuple[int, int, int, int]:
        """Of k, v and their gradients, in the order of the axes."""
        return self.batch, self.num_kv_heads, self.length, self.dim

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.kv_heads is None else f"{self.heads}/{self.kv_heads}"
        length = f"{self.length}" if self.queries is None else f"{self.queries}:{self.length}"
        return f"{self.batch}, {heads}, {length}, {self.dim}"


_BIAS_WORDS: Mapping[Bias, str] = {
    "none": "",
    "-log_length": "bias -log n",
    "fixed": "bias",
    "learned": "learned bias",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One thing to measure.

    Attributes:
        dtype: a name out of ``DTYPES``.
        activation: what Flashpoint puts in the place of softmax, "relu4/sum" for relu4 divided by
            its sums; softmax providers ignore it.
        qk_norm: with "layer" everybody normalizes q and k too: Flashpoint inside
            ``attention_qkvpacked``, on qkv as a linear layer leaves it; the others by compiled
            norms before their attention, on q, k and v in the case's layout.
        layout: "packed" has Flashpoint in ``attention_qkvpacked``, and the others on views.
        mask, bias: tensors over the scores, or none; everybody has the same.
        launched: every call is launched and timed by itself, never from a graph, so that what the
            host does counts where it takes longer than the GPU.
    """

    shape: Shape
    dtype: str
    mode: Mode
    activation: str = "relu"
    causal: bool = False
    device: str = "cpu"
    qk_norm: QkNorm = "none"
    layout: Layout = "heads"
    mask: Mask = "none"
    bias: Bias = "none"
    launched: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What Flashpoint's functions are called with by name, besides tensors."""
        number = {"bias": -math.log(self.shape.length)} if self.bias == "-log_length" else {}
        return fields_of(self.activation) | {"causal": self.causal} | number

    @property
    def has_bias_tensor(self) -> bool:
        """Whether a matrix is added to the scores."""
        return self.bias in ("fixed", "learned")

    @property
    def has_matrix(self) -> bool:
        """Whether a mask or a bias of Lq x Lk is among the inputs."""
        return self.mask != "none" or self.has_bias_tensor

    @property
    def is_usual(self) -> bool:
        """Whether shape, dtype, mode, activation, causality and norms say it all."""
        others = (self.layout, self.mask, self.bias, self.launched)
        return others == ("heads", "none", "none", False)

    @property
    def by_sum(self) -> bool:
        """Whether weights are divided by their sums."""
        return self.activation.endswith("/sum")

    @property
    def flops(self) -> float:
        """Floating-point operations of the matrix products: 4 B H L^2 D forward, causal half."""
        batch, heads, queries, dim = self.shape.q_sizes
        seen = self.shape.length - queries / 2 if self.causal else self.shape.length
        return 4.0 * batch * heads * queries * seen * dim * PASSES[self.mode]

    @property
    def bytes_moved(self) -> int:
        """What has to be read and written at least: each tensor once in each pass."""
        q, kv = (math.prod(sizes) for sizes in (self.shape.q_sizes, self.shape.kv_sizes))
        forward, backward = 2 * q + 2 * kv, 3 * q + 4 * kv
        elements = {"backward": backward, "training": forward + backward}.get(self.mode, forward)
        return elements * ITEM_BYTES[self.dtype] + self._term_bytes

    @property
    def _term_bytes(self) -> int:
        """Of a mask and a bias: read in each pass, and the gradient written."""
        batch, heads, queries, _ = self.shape.q_sizes
        reads = 2 if self.mode == "training" else 1
        writes = int(self.bias == "learned" and self.mode in ("backward", "training"))
        mask = reads * batch if self.mask != "none" else 0
        bias = (reads + writes) * heads * ITEM_BYTES[self.dtype] if self.has_bias_tensor else 0
        return (mask + bias) * queries * self.shape.length

    @property
    def matrix_bytes(self) -> int:
        """One Lq x Lk matrix of all heads."""
        batch, heads, queries, _ = self.shape.q_sizes
        return batch * heads * queries * self.shape.length * ITEM_BYTES[self.dtype]

    @property
    def is_memory_bound(self) -> bool:
        """Whether so few queries read each key that bytes, not products, decide."""
        return self.shape.num_queries <= MEMORY_BOUND_QUERIES < self.shape.length

    @property
    def work(self) -> str:
        """Everything but the shape, in words; relu and the order of axes go without saying."""
        return " ".join((self.dtype, *self.specials, self.mode))

    @property
    def specials(self) -> tuple[str, ...]:
        """What tells it from relu over all keys, in words."""
        words = {
            "causal": self.causal,
            self.activation: self.activation != "relu",
            "packed": self.layout == "packed",
            "qk-norm": self.qk_norm != "none",
            "mask": self.mask != "none",
            _BIAS_WORDS[self.bias]: self.bias != "none",
            "launched": self.launched,
        }
        return tuple(word for word, holds in words.items() if holds)

    def __str__(self) -> str:
        return f"{self.shape}  {self.work}"


def parse_shape(text: str) -> Shape:
    """Read ``B,H,L,D``; ``H/K`` gives k and v K heads, ``Q:L`` gives q Q positions.

    Example:
        >>> parse_shape("1,8,4096,64")
        Shape(batch=1, heads=8, length=4096, dim=64, kv_heads=None, queries=None)
        >>> str(parse_shape("1,32/8,1:4096,128"))
        '1, 32/8, 1:4096, 128'
    """
    found = _SHAPE.fullmatch("".join(text.split()))
    if not found:
        raise InputError(
            f"shape {describe(text)} must be four positive whole numbers B,H,L,D, e.g. "
            "1,8,4096,64, or B,H/K,Q:L,D for K heads of k and v and Q queries, e.g. "
            "1,32/8,1:4096,128."
        )
    for name, axis in zip("bhld", ("B", "H", "L", "D"), strict=True):
        check_within(f"shape {text!r}: {axis}", int(found[name]), MAX_SIZE, is_whole=True)
    batch, heads, length, dim = (int(found[name]) for name in "bhld")
    kv_heads, queries = (int(found[name]) if found[name] else None for name in "kq")
    if kv_heads and heads % kv_heads:
        raise InputError(f"shape {text!r}: {heads} heads are no multiple of {kv_heads} kv heads.")
    if queries and queries > length:
        raise InputError(f"shape {text!r}: {queries} queries are more than {length} keys.")
    return Shape(batch, heads, length, dim, kv_heads, queries)


def parse_names(text: str, known: Iterable[str], what: str) -> tuple[str, ...]:
    """Read known names with commas between, each at most once.

    Example:
        >>> parse_names("bf16,fp32", DTYPES, "dtype")
        ('bf16', 'fp32')
    """
    names = list(known)
    return tuple(dict.fromkeys(choose(part.strip(), names, what) for part in text.split(",")))


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Read names of dtypes with commas between."""
    return parse_names(text, DTYPES, "dtype")


def choose(name: str, known: Iterable[str], what: str) -> str:
    """Return ``name`` if it is known, else raise with close matches and all known names."""
    names = list(known)
    if name in names:
        return name
    raise InputError(
        f"unknown {what} {describe(name)}. {hint(name, names)}Known: {', '.join(names)}."
    )
