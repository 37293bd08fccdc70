"""One call over packed q, k and v as its kernels take it."""

from typing import Any, NamedTuple

from torch import Tensor

from flashpoint.ops.gpu.call import Problem
from flashpoint.ops.spec import NormTerms, Terms


class PackedCall(NamedTuple):
    """The tensors and terms of one call.

    Attributes:
        qkv: [B, L, 3, H, D] in any strides.
        q_gain, k_gain: [D], dense, or None.
    """

    qkv: Tensor
    q_gain: Tensor | None
    k_gain: Tensor | None
    norm: NormTerms
    terms: Terms

    def problem(
        self, bias: Tensor | None, mask: Tensor | None, lengths: Tensor | None
    ) -> Problem:
        """The same as the general kernels see it, but for the norms."""
        q, k, v = (x.transpose(1, 2) for x in self.qkv.unbind(2))
        return Problem.dense(q, k, v, bias, mask, lengths, self.terms)

    def kinds(self) -> dict[str, str]:
        """The norms of q and k by name."""
        return {"q": self.norm.q_kind, "k": self.norm.k_kind}

    def of_keys(self) -> "PackedCall":
        """The same without the norm of q."""
        return self._replace(q_gain=None, norm=self.norm._replace(q_kind="none"))

    def of_queries(self) -> "PackedCall":
        """The same without the norm of k."""
        return self._replace(k_gain=None, norm=self.norm._replace(k_kind="none"))

    def norms(self) -> dict[str, Any]:
        """What kernels take for the norms, by name."""
        norm = self.norm
        return {
            "q_gain": self.q_gain, "k_gain": self.k_gain, "q_eps": norm.q_eps, "k_eps": norm.k_eps,
            "Q_NORM": norm.q_kind, "K_NORM": norm.k_kind,
        }

    def raws(self) -> dict[str, Tensor]:
        """q and k before their norms as kernels of backward take them: [B, H, L, D]."""
        q, k, _ = (x.transpose(1, 2) for x in self.qkv.unbind(2))
        return {"q_raw": q, "k_raw": k}
