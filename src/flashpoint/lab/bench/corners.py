"""The suite ``corners``: options off the road of relu in head dims 64 to 128, stated for an H200.

Each is measured beside the best softmax attention with the same shape, mask and bias. q, k and v
lie as linear layers leave them, [B, L, H, D] seen as [B, H, L, D], or packed in one tensor.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from flashpoint.lab.bench.cases import Shape
from flashpoint.lab.bench.entry import BEST_SDPA, Entry, Limits, SpeedLimit

FLEX = "flex_softmax"
"""FlexAttention compiles for seconds, and is measured where there is a mask or a bias."""

RIVALS = (*BEST_SDPA["cuda"], "fa4", FLEX)
"""The fastest of these that serves a case."""

USUAL = Shape(8, 16, 2048, 64)
IMAGES = (Shape(1024, 6, 65, 64), Shape(512, 6, 130, 64), Shape(512, 6, 145, 64))
"""64 patches and a class token; between the kernels for short and for long sequences."""


class Goal(NamedTuple):
    """A speed-up that is promised, and one that is hoped for."""

    must: float
    aim: float | None = None


def _corner(entry: Entry, forward: Goal | None, backward: Goal | None) -> Iterator[Entry]:
    """The entry in the modes that have a goal; with a learned bias forward records its graph."""
    dtype = entry.only_dtype or "bf16"
    rivals = (*RIVALS, "sdpa") if entry.launched else RIVALS
    has_matrix = entry.mask != "none" or entry.bias in ("fixed", "learned")
    for mode, goal in (
        ("recording" if entry.bias == "learned" else "forward", forward),
        ("backward", backward),
    ):
        if goal is not None:
            limit = SpeedLimit(rivals=rivals, must=goal.must, aim=goal.aim)
            yield replace(
                entry,
                mode=mode,
                limits={dtype: Limits(speed=(limit,))},
                providers=tuple(name for name in rivals if name != FLEX),
                slow_providers=(FLEX,) if has_matrix else (),
            )


def _of(shape: Shape) -> Entry:
    """relu over all keys, to be changed."""
    return Entry(shape=shape, mode="forward", layout="tokens")


def _activations() -> Iterator[Entry]:
    for shape in (USUAL, Shape(1, 16, 16384, 64)):
        for name in ("gelu", "softplus"):
            entry = replace(_of(shape), activation=name)
            yield from _corner(entry, Goal(0.9, 1.2), Goal(0.75, 1.0))
    for shape, forward in ((USUAL, Goal(1.0, 1.15)), (Shape(8, 16, 2048, 128), Goal(1.05, 1.2))):
        shifted = replace(_of(shape), activation="sigmoid", bias="-log_length")
        yield from _corner(shifted, forward, Goal(0.9, 1.1))
        yield from _corner(replace(_of(shape), activation="silu"), forward, Goal(0.9, 1.1))


def _head_dims() -> Iterator[Entry]:
    small = replace(_of(Shape(4, 8, 2048, 32)), causal=True)
    yield from _corner(small, Goal(1.5), Goal(1.0, 1.3))
    for dim in (192, 256):
        large = replace(_of(Shape(8, 16, 2048, dim)), causal=True)
        yield from _corner(large, Goal(1.0, 1.15), Goal(0.9, 1.05))


def _dtypes() -> Iterator[Entry]:
    entry = replace(_of(Shape(2, 8, 2048, 64)), only_dtype="fp32")
    yield from _corner(entry, Goal(0.9, 1.3), Goal(0.8, 1.2))


def _matrices() -> Iterator[Entry]:
    """Masks and biases; at last the gradient of the bias that windows of one size share."""
    yield from _corner(replace(_of(USUAL), mask="bool"), Goal(1.1, 1.4), Goal(1.05, 1.3))
    yield from _corner(replace(_of(USUAL), bias="fixed"), Goal(1.4), Goal(1.05))
    yield from _corner(replace(_of(USUAL), bias="learned"), Goal(3.0), Goal(1.4))
    windows = replace(_of(Shape(1024, 6, 49, 64)), bias="learned")
    yield from _corner(windows, None, Goal(1.5))


def _images() -> Iterator[Entry]:
    """Packed q, k and v, without and with norms."""
    for shape in IMAGES:
        packed = replace(_of(shape), layout="packed")
        yield from _corner(packed, Goal(1.6), Goal(1.4))
        yield from _corner(replace(packed, qk_norm="layer"), Goal(1.6), Goal(1.4))
    for shape, must in (
        (Shape(512, 6, 196, 64), 2.1),
        (Shape(128, 12, 577, 64), 1.8),
        (Shape(128, 6, 784, 64), 1.9),
    ):
        packed = replace(_of(shape), layout="packed", qk_norm="layer")
        yield from _corner(packed, None, Goal(must))


def _long() -> Iterator[Entry]:
    """Backward where a bit for every score takes much memory; 8 query heads to a key head."""
    for shape in (Shape(1, 8, 32768, 128), Shape(1, 32, 16384, 128, kv_heads=4)):
        yield from _corner(_of(shape), None, Goal(1.2))


def _launched() -> Iterator[Entry]:
    for shape in (Shape(64, 6, 197, 64), Shape(256, 6, 50, 64)):
        yield from _corner(replace(_of(shape), launched=True), Goal(1.5), Goal(1.0))


ENTRIES: tuple[Entry, ...] = (
    *(*_activations(), *_head_dims(), *_dtypes(), *_matrices()),
    *(*_images(), *_long(), *_launched()),
)
