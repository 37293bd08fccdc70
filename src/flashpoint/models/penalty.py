"""What keeps relu attention near a distribution: the regularisation of arXiv 2302.06461.

With the weights s_ij of query i over its n_i visible keys, normalizer and gain included:

    penalty_i = | log sum_j s_ij | + max(H_i - 0.7 log n_i, 0)

H_i is the entropy of the row after dividing it by its sum. Neither term needs the weights
themselves. With r_ij = relu(score_ij) unscaled and s_ij = f_i r_ij, all follows from two sums that
the fused operator gives with values of one, in O(n) memory:

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
from flashpoint.layers.visibility import Visibility
from flashpoint.ops.implementations import HAS_TRITON, INTERPRETED
from flashpoint.ops.spec import Activation
from flashpoint.shapes import Float, Int

FLOOR = 1e-3
SHARE = 0.7
"""Of log n, the entropy of equal weights: more is penalised."""

_TINY = 2.0**-100  # under it the logarithm stays, on every device
_made: dict[str, Activation] = {}


class RowMeans(NamedTuple):
    """What one attention gives to the penalty.

    Attributes:
        raw, raw_log: means of r = relu(score) and of r log r over the keys that a query sees,
            [B, H, Lq, 1].
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
) -> tuple[Float[Tensor, "B Lq E"], RowMeans]:
    """The layer's output, and what ``penalise`` needs of the same queries and keys."""
    q, k, v = layer.project(x, context)
    y = layer.finish(x, q, k, v, causal=causal, key_lengths=key_lengths)
    return y, row_means(layer, q, k, causal=causal, key_lengths=key_lengths)


def row_means(
    layer: Attention,
    q: Float[Tensor, "B H Lq D"],
    k: Float[Tensor, "B Hkv Lk D"],
    *,
    causal: bool = False,
    key_lengths: Int[Tensor, " B"] | None = None,
) -> RowMeans:
    """What the penalty needs of every row, by two calls of the fused operator.

    Args:
        layer: one that ``has_penalty``.
        q, k: as ``layer.project`` gives them.
        causal, key_lengths: as for ``flashpoint.attention``.
    """
    if not has_penalty(layer.spec):
        raise UnsupportedError(
            f"the penalty is defined for relu attention, this layer has "
            f"{layer.spec.word!r}. Train it without."
        )
    visibility = Visibility.of(q, k, None, causal, key_lengths)
    raw, raw_log = (layer.mean_weight(q, k, visibility, h) for h in ("relu", r_log_r()))
    return RowMeans(raw, raw_log, *layer.factor_terms(), visibility)


def penalise(
    layer: Attention,
    rows: Sequence[RowMeans],
    query_lengths: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """The mean penalty of layers whose queries see alike: over heads and valid queries.

    A query is valid if it exists, by ``query_lengths``, and sees a key. All layers are computed
    at once, since one's numbers are too few for a GPU to be busy.

    Args:
        layer: any of them; they share its spec.
        rows: of each.
        query_lengths: how many queries of each sample exist. None: all.

    Example:
        >>> layer = Attention(64, 4)
        >>> q, k, v = layer.project(torch.randn(2, 10, 64))
        >>> penalise(layer, [row_means(layer, q, k, causal=True)]).shape
        torch.Size([])
    """
    sums = row_sums(layer, rows)
    valid = sums.counts > 0
    if query_lengths is not None:
        row = torch.arange(sums.raw.shape[-2], device=valid.device).view(1, 1, -1, 1)
        valid = valid & (row < query_lengths.view(-1, 1, 1, 1))
    penalties = sums.penalty()
    valid = valid.expand_as(penalties)
    return penalties.where(valid, 0).sum() / valid.sum().clamp(min=1)


def row_sums(layer: Attention, rows: Sequence[RowMeans]) -> RowSums:
    """The sums of layers whose queries see alike, from their means."""
    visibility = rows[0].visibility
    means = torch.stack([part for row in rows for part in (row.raw, row.raw_log)])
    means = means.to(torch.promote_types(means.dtype, torch.float32))
    counts = visibility.counts()
    if not isinstance(counts, Tensor):
        counts = means.new_full((1, 1, 1, 1), counts)
    counts = counts.to(means.dtype)
    # Sums leave fp16's range; means stay within it, and so do their gradients.
    raw, raw_log = (counts * means).unflatten(0, (-1, 2)).unbind(1)  # [N, B, H, Lq, 1]
    terms = zip(*((row.gain, row.alpha) for row in rows), strict=True)
    gain, alpha = (_stacked(term) for term in terms)
    return RowSums(counts, raw, raw_log, (layer.factor(visibility, gain, alpha) * raw).abs())


def _stacked(terms: Sequence[Any]) -> Any:
    """[N, 1, #H, 1, 1] of learned ones; layers of one spec share what is a number."""
    return torch.stack([t[None] for t in terms]) if isinstance(terms[0], Tensor) else terms[0]


def r_log_r() -> Activation:
    """The activation relu(s) log relu(s); made by the first call, which must not be compiled.

    Example:
        >>> r_log_r().weights_of(torch.tensor([-1.0, 0.0, 1.0, torch.e])).tolist()
        [0.0, 0.0, 0.0, 2.7182817459106445]
    """
    if "r_log_r" not in _made:
        pair = None
        if HAS_TRITON and (INTERPRETED or torch.cuda.is_available()):
            from flashpoint.ops.gpu import activations

            pair = activations.r_log_r, activations.r_log_r_slope
        _made["r_log_r"] = Activation("r_log_r", _value, _slope, triton=pair)
    return _made["r_log_r"]


def _value(scores: Tensor) -> Tensor:
    return torch.where(scores <= 0, 0, scores * scores.clamp(min=_TINY).log())


def _slope(scores: Tensor) -> Tensor:
    return torch.where(scores <= 0, 0, 1 + scores.clamp(min=_TINY).log())
