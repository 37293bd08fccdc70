"""The mathematics of one call as data: the numbers that kernels get.

    w_ij = m_ij * h(scale * q_i . k_j + b_ij)
    o_i = gain * n_i ** -alpha * sum_j w_ij * v_j                      normalize="length"
    o_i = sum_j w_ij * v_j / (sum_j w_ij + floor * n_i)                normalize="sum"

Query i stands at position p = i + Lk - Lq and sees the keys p - left <= j <= p + right that exist.
"""

from typing import NamedTuple

from flashpoint.ops.activation import registered

TINY = 2.0**-100  # under it a logarithm stays, on every device


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
