"""What keeps relu attention near a distribution: the regularization of arXiv 2302.06461.

With the weights s_ij of query i over its n_i visible keys, normalizer and gain included:

    penalty_i = | log sum_j s_ij | + max(H_i - 0.7 log n_i, 0)

H_i is the entropy of the row after dividing it by its sum. Neither term needs the weights
themselves. With r_ij = relu(score_ij) unscaled and s_ij = f_i r_ij, all follows from two sums that
the fused operator gives beside its result (``return_sums="logs"``), in O(n) memory:

    R_i = sum_j r_ij         E_i = sum_j r_ij log r_ij
    sum_j s_ij = f_i R_i     H_i = log R_i - E_i / R_i

The gain has its gradient from the first term; the entropy does not depend on it.

Rows without mass. log z has no value at 0 and a boundless slope near it, so under FLOOR it goes on
as a straight line, log FLOOR + z / FLOOR - 1: finite, and still pulling upwards. The entropy of a
row whose R_i is under FLOOR counts as 0. Above FLOOR both are exact. A row whose every score is
negative costs 1 - log FLOOR and, as relu has it, no gradient.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.errors import UnsupportedError
from flashpoint.layers.attention import Attention
from flashpoint.layers.spec import AttentionSpec
from flashpoint.layers.visibility import Visibility, visibility_of
from flashpoint.shapes import Float, Int

FLOOR = 1e-3
SHARE = 0.7
"""Of log n, the entropy of equal weights: more is penalized."""


class MeasuredRows(NamedTuple):
    """What one attention gives to the penalty.

    Attributes:
        raw, raw_log: sums of r = relu(score) and of r log r over the keys that a query sees,
            [B, H, Lq], in fp32 or more.
        gain, alpha: of its factor, as ``Attention.factor_terms`` gives them.
        visibility: who sees whom.
    """

    raw: Tensor
    raw_log: Tensor
    gain: Any
    alpha: Any
    visibility: Visibility


class RowSums(NamedTuple):
    """Sums over the keys that a query sees, [N, B, H, Lq, 1] of N layers, in fp32 or more.

    Attributes:
        counts: n, how many keys that are; broadcasts.
        raw: R, the sum of relu(score).
        raw_log: E, the sum of r log r of the same.
        mass: the size of the sum of weights, f R; a learned gain may have turned negative.
    """

    counts: Tensor
    raw: Tensor
    raw_log: Tensor
    mass: Tensor

    def entropy(self) -> Float[Tensor, "N B H Lq 1"]:
        """H, in nats; 0 where there is almost no mass."""
        divisor = self.raw.clamp(min=FLOOR)
        return (divisor.log() - self.raw_log / divisor).where(self.raw >= FLOOR, 0)

    def penalty(self) -> Float[Tensor, "N B H Lq 1"]:
        """Both terms."""
        log_mass = self.mass.clamp(min=FLOOR).log() + (self.mass / FLOOR).clamp(max=1.0) - 1.0
        excess = self.entropy() - SHARE * self.counts.clamp(min=1).log()
        return log_mass.abs() + F.relu(excess)


def has_penalty(spec: AttentionSpec) -> bool:
    """Whether the penalty is defined: for relu whose weights are not divided by their sum.

    Example:
        >>> [has_penalty(AttentionSpec.parse(word)) for word in ("relu", "relu/sum", "softmax")]
        [True, False, False]
    """
    return spec.activation == "relu" and not spec.by_sum


def attend_and_measure(
    layer: Attention,
    x: Float[Tensor, "B Lq E"],
    context: Float[Tensor, "B Lk C"] | None = None,
    *,
    causal: bool = False,
    key_lengths: Int[Tensor, " B"] | None = None,
) -> tuple[Float[Tensor, "B Lq E"], MeasuredRows]:
    """The layer's output, and what ``penalize`` needs of the same queries and keys.

    Args:
        layer: one that ``has_penalty``.
        x, context: as the layer takes them.
        causal, key_lengths: as for ``flashpoint.attention``.
    """
    if not has_penalty(layer.spec):
        raise UnsupportedError(
            f"the penalty is defined for relu attention, this layer has "
            f"{layer.spec.word!r}. Train it without."
        )
    q, k, v = layer.project(x, context)
    visibility = visibility_of(layer.attend, q, k, None, causal, key_lengths)
    y, raw, raw_log = layer.finish_with_sums(x, q, k, v, visibility)
    return y, MeasuredRows(raw, raw_log, *layer.factor_terms(), visibility)


def penalize(
    layer: Attention,
    rows: Sequence[MeasuredRows],
    query_lengths: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """The mean penalty of layers whose queries see alike: over heads and valid queries.

    A query is valid if it exists, by ``query_lengths``, and sees a key. All layers are computed
    at once, since one's numbers are too few for a GPU to be busy. Where ranks share a sequence,
    each gets its queries' part of the mean over all: these add up to it.

    Args:
        layer: any of them; they share its spec.
        rows: of each.
        query_lengths: how many queries of each sample exist. None: all.

    Example:
        >>> layer = Attention(64, 4)
        >>> y, rows = attend_and_measure(layer, torch.randn(2, 10, 64), causal=True)
        >>> penalize(layer, [rows]).shape
        torch.Size([])
    """
    sums, visibility = row_sums(layer, rows), rows[0].visibility
    valid = sums.counts > 0
    if query_lengths is not None:
        row = visibility.positions().view(1, 1, -1, 1)
        valid = valid & (row < query_lengths.view(-1, 1, 1, 1))
    penalties = sums.penalty()
    return visibility.mean(penalties, valid.expand_as(penalties))


def row_sums(layer: Attention, rows: Sequence[MeasuredRows]) -> RowSums:
    """The sums of layers whose queries see alike, with their counts and masses."""
    visibility = rows[0].visibility
    raw, raw_log = (
        torch.stack(parts).unsqueeze(-1)  # [N, B, H, Lq, 1]
        for parts in zip(*((row.raw, row.raw_log) for row in rows), strict=True)
    )
    counts = visibility.counts()
    if not isinstance(counts, Tensor):
        counts = raw.new_full((1, 1, 1, 1), counts)
    terms = zip(*((row.gain, row.alpha) for row in rows), strict=True)
    gain, alpha = (_stacked(term) for term in terms)
    mass = (layer.factor(visibility, gain, alpha) * raw).abs()
    return RowSums(counts.to(raw.dtype), raw, raw_log, mass)


def _stacked(terms: Sequence[Any]) -> Any:
    """[N, 1, #H, 1, 1] of learned ones; layers of one spec share what is a number."""
    return torch.stack([t[None] for t in terms]) if isinstance(terms[0], Tensor) else terms[0]
