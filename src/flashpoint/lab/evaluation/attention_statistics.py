"""What attention does, in numbers: by layer and head, over images.

A weight is counted as zero only if it is exactly zero, as relu makes them. Weights of gelu, silu
and identity may be negative: mass is their plain sum, entropy is that of their magnitudes.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flashpoint.lab.evaluation.attention_calls import AttentionCall, watch
from flashpoint.lab.evaluation.frozen import frozen
from flashpoint.shapes import Float

TILES = (64, 128)
TILE_FACTORS = (64, 2)
"""A tile of 128 is 2 x 2 tiles of 64."""
TINY = torch.finfo(torch.float32).tiny
DEAD_MASS = 1e-6
"""A head is dead if no query of any image gives it more than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadStatistics:
    """One head of one layer, averaged over images and queries.

    Attributes:
        sparsity: share of weights that are exactly zero.
        zero_tiles_64, zero_tiles_128: share of tiles of so many queries and keys that hold
            nothing but zeros, which a kernel could skip; smaller tiles at the edges count too.
        empty_rows: share of queries all of whose weights are zero.
        mass: sum of a query's weights; 1 for softmax.
        entropy: of a query's weights, normalized, in nats; empty rows left out, None if all are.
        is_dead: no query of any image has any mass to speak of.
    """

    layer: int
    head: int
    sparsity: float
    zero_tiles_64: float
    zero_tiles_128: float
    empty_rows: float
    mass: float
    entropy: float | None
    is_dead: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionStatistics:
    """All heads of a model.

    Attributes:
        num_images: that the model was shown.
        num_keys: the most that a query saw; the logarithm of it bounds the entropy.
        heads: by layer, then by head.
    """

    num_images: int
    num_keys: int
    heads: tuple[HeadStatistics, ...]

    @property
    def max_entropy(self) -> float:
        """That of a query which looks everywhere alike."""
        return math.log(self.num_keys)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a JSON file."""
        return {**asdict(self), "max_entropy": self.max_entropy}


def measure_attention(model: nn.Module, images: Iterable[Tensor]) -> AttentionStatistics:
    """Show a model batches of images [B, C, S, S] and count what its attention does.

    One block of query rows of one layer is held at a time.
    """
    counts: dict[int, _Counts] = {}

    def count(call: AttentionCall) -> None:
        counts.setdefault(call.layer, _Counts(call.q.shape[1])).add(call)

    num_images = 0
    with frozen(model), watch(model, count):
        for batch in images:
            model(batch)
            num_images += len(batch)
    return AttentionStatistics(
        num_images=num_images,
        num_keys=max((c.num_keys for c in counts.values()), default=1),
        heads=tuple(head for layer in sorted(counts) for head in counts[layer].heads(layer)),
    )


class _Counts:
    """Sums for the heads of one layer, [H] each, in fp64."""

    def __init__(self, num_heads: int) -> None:
        self.num_keys = 0
        self.num_weights = self.num_rows = 0
        self.num_tiles = dict.fromkeys(TILES, 0)
        self.nonzero, self.empty, self.mass, self.entropy, self.most = (
            torch.zeros(num_heads, dtype=torch.float64) for _ in range(5)
        )
        self.zero_tiles = {tile: torch.zeros(num_heads, dtype=torch.float64) for tile in TILES}

    def add(self, call: AttentionCall) -> None:
        """Count all weights of one call."""
        self.num_keys = max(self.num_keys, call.k.shape[2])
        for weights in call.blocks():
            self._add_rows(weights)

    def _add_rows(self, weights: Float[Tensor, "B H rows Lk"]) -> None:
        """Sums over keys in fp32, over all else in fp64."""
        size = weights.abs()
        total = size.sum(-1)  # [B, H, rows]
        safe = total.where(total > 0, 1.0)
        information = (size * size.clamp_min(TINY).log()).sum(-1)  # 0 log 0 is 0
        entropy = safe.log() - information / safe
        self.num_rows += total.numel() // total.shape[1]
        self.num_weights += weights.numel() // weights.shape[1]
        self.nonzero += _by_head(size.sign().sum(-1))
        self.empty += _by_head(total == 0)
        self.mass += _by_head(weights.sum(-1))
        self.entropy += _by_head(entropy.where(total > 0, 0.0))
        self.most = torch.maximum(self.most, total.amax((0, 2)).double().cpu())
        largest = size
        for tile, factor in zip(TILES, TILE_FACTORS, strict=True):
            largest = _largest_of_tiles(largest, factor)
            self.num_tiles[tile] += largest.numel() // largest.shape[1]
            self.zero_tiles[tile] += _by_head(largest == 0)

    def heads(self, layer: int) -> Iterable[HeadStatistics]:
        """The averages."""
        for head in range(len(self.nonzero)):
            live = self.num_rows - self.empty[head].item()
            yield HeadStatistics(
                layer=layer,
                head=head,
                sparsity=1.0 - self.nonzero[head].item() / self.num_weights,
                zero_tiles_64=self.zero_tiles[64][head].item() / self.num_tiles[64],
                zero_tiles_128=self.zero_tiles[128][head].item() / self.num_tiles[128],
                empty_rows=self.empty[head].item() / self.num_rows,
                mass=self.mass[head].item() / self.num_rows,
                entropy=self.entropy[head].item() / live if live else None,
                is_dead=self.most[head].item() <= DEAD_MASS,
            )


def _by_head(values: Tensor) -> Tensor:
    """The sum over all but the heads, in fp64 on the CPU."""
    return values.transpose(0, 1).flatten(1).sum(1, dtype=torch.float64).cpu()


def _largest_of_tiles(size: Float[Tensor, "B H rows Lk"], tile: int) -> Tensor:
    """[B, H, tiles of rows, tiles of keys]: the largest of each; at the edges smaller."""
    by_rows = torch.stack([rows.amax(2) for rows in size.split(tile, dim=2)], dim=2)
    return torch.stack([keys.amax(3) for keys in by_rows.split(tile, dim=3)], dim=3)
