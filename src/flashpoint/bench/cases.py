"""What is measured, as plain data: a shape, a dtype, a mode and the options of the operator.

Axes: B batch, H heads, L length of queries and keys, D head dim. This module imports no torch, so
that the command line can check its arguments first.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from flashpoint.errors import InputError, describe, hint

Mode: TypeAlias = Literal["forward", "recording", "training"]
"""forward: nothing recorded; recording: the graph is recorded; training: forward and backward."""

DTYPES = ("bf16", "fp16", "fp32")

BACKWARD_FLOPS = 2.5
"""Five matrix products in backward for every two in forward."""


@dataclass(frozen=True, slots=True)
class Shape:
    """B, H, L, D of q, k and v alike."""

    batch: int
    heads: int
    length: int
    dim: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The four sizes in the order of the tensor's axes."""
        return self.batch, self.heads, self.length, self.dim

    def __str__(self) -> str:
        return ", ".join(str(size) for size in self.sizes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One thing to measure.

    Attributes:
        dtype: a name out of ``DTYPES``.
        activation: what Flashpoint puts in the place of softmax; softmax providers ignore it.
    """

    shape: Shape
    dtype: str
    mode: Mode
    activation: str = "relu"
    causal: bool = False
    device: str = "cpu"

    @property
    def flops(self) -> float:
        """Floating-point operations of the matrix products: 4 B H L^2 D forward, causal half."""
        forward = 4.0 * self.shape.batch * self.shape.heads * self.shape.length**2 * self.shape.dim
        passes = 1 + BACKWARD_FLOPS if self.mode == "training" else 1
        return forward * passes / (2 if self.causal else 1)

    def __str__(self) -> str:
        return f"{self.shape}  {self.dtype} {self.mode}"


def parse_shape(text: str) -> Shape:
    """Read ``B,H,L,D``.

    Example:
        >>> parse_shape("1,8,4096,64")
        Shape(batch=1, heads=8, length=4096, dim=64)
    """
    parts = text.split(",")
    sizes = [int(part) for part in parts if part.strip().isdecimal()]
    if len(parts) != 4 or len(sizes) != 4 or min(sizes) < 1:
        raise InputError(
            f"shape {text!r} must be four positive whole numbers B,H,L,D, e.g. 1,8,4096,64."
        )
    return Shape(*sizes)


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Read names of dtypes with commas between, each at most once.

    Example:
        >>> parse_dtypes("bf16,fp32")
        ('bf16', 'fp32')
    """
    names = [part.strip() for part in text.split(",")]
    return tuple(dict.fromkeys(choose(name, DTYPES, "dtype") for name in names))


def choose(name: str, known: Iterable[str], what: str) -> str:
    """Return ``name`` if it is known, else raise with close matches and all known names."""
    names = list(known)
    if name in names:
        return name
    raise InputError(
        f"unknown {what} {describe(name)}. {hint(name, names)}Known: {', '.join(names)}."
    )
