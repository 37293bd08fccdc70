"""Relatives of relu attention by name: what each needs of a layer, as its paper has it.

A name covers how scores become weights, what divides their sum, and what its paper puts behind
it: a norm or a gate. Scores are q . k in HSTU and GAU, q . k / sqrt(d) in all others. What else a
paper changes in its blocks is not part of it: the single head and shared projection of GAU, silu
on q, k and v and relative positions in GAU and HSTU, the second view of threshold attention.
"""

from dataclasses import dataclass
from typing import Any

from flashpoint.layers.output import Gate, OutputNorm
from flashpoint.layers.qk_norm import QkNorm
from flashpoint.layers.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedAttention:
    """An attention of the literature: its mathematics, and options of the layer around it.

    Attributes:
        paper: its number on arXiv.
        spec: how scores become weights.
        qk_norm, gate, output_norm: as ``layers.Attention`` takes them.

    Example:
        >>> from flashpoint import AttentionSpec
        >>> from flashpoint.layers import Attention
        >>> rela = AttentionSpec.named("rela")
        >>> Attention(64, 4, **rela.for_layer()).norm
        GatedRMSNorm((64,), eps=1e-06, elementwise_affine=True)
    """

    paper: str
    spec: AttentionSpec
    qk_norm: QkNorm = "none"
    gate: Gate = "none"
    output_norm: OutputNorm = "none"

    def for_layer(self) -> dict[str, Any]:
        """Arguments of ``layers.Attention``."""
        return {"spec": self.spec, **self._options()}

    def for_model(self) -> dict[str, Any]:
        """Settings of a model, for ``flashpoint.create_model`` or a config."""
        return {"attention": self.spec, **self._options()}

    def _options(self) -> dict[str, Any]:
        return {"qk_norm": self.qk_norm, "gate": self.gate, "output_norm": self.output_norm}


RELATIVES = {
    # sigmoid(s - log n): n keys of score 0 weigh about 1 together, as in softmax
    "sigmoid_attention": NamedAttention(
        paper="2409.04431",
        spec=AttentionSpec(activation="sigmoid", alpha=0.0, bias="-log_length"),
    ),
    # norm(sum_j silu(q_i . k_j) v_j / N) * silu(x W), N all keys, padding too, as the code of its
    # paper has it; its authors' STULayer has 1 / sqrt(d) inside silu
    "hstu": NamedAttention(
        paper="2402.17152",
        spec=AttentionSpec(activation="silu", length="keys", scale=1.0),
        gate="silu",
        output_norm="layer",
    ),
    # the norm takes the place of a factor
    "rela": NamedAttention(
        paper="2104.07012",
        spec=AttentionSpec(activation="relu", alpha=0.0),
        output_norm="gated_rms",
    ),
    # relu(q . k / N)^2 = relu(q . k)^2 / N^2, times silu(x W)
    "gau": NamedAttention(
        paper="2202.10447",
        spec=AttentionSpec(activation="relu2", alpha=2.0, length="keys", scale=1.0),
        gate="silu",
    ),
    # s^3 / sqrt(n)
    "polynomial": NamedAttention(
        paper="2410.18613", spec=AttentionSpec(activation="cube", alpha=0.5)
    ),
    # relu(s - tau)^p with tau 1 and p 2; bias="learned", bias_start=-1 learns tau
    "threshold": NamedAttention(
        paper="2601.12145", spec=AttentionSpec(activation="relu2", alpha=0.0, bias=-1.0)
    ),
}
