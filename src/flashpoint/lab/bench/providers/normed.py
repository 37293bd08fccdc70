"""Norms of q and k before an attention that has none inside."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.providers.compiled import compiled
from flashpoint.lab.bench.providers.provider import Attend

EPS = 1e-6


def normalise(x: Tensor, gain: Tensor) -> Tensor:
    """LayerNorm over the head dim in fp32 (fp64 for fp64), rounded to x's dtype."""
    wide = x if x.dtype == gain.dtype else x.float()
    return F.layer_norm(wide, x.shape[-1:], gain.to(wide.dtype), eps=EPS).to(x.dtype)


def normalise_both(q: Tensor, k: Tensor, q_gain: Tensor, k_gain: Tensor) -> tuple[Tensor, Tensor]:
    """Both, so that a compiler sees them together."""
    return normalise(q, q_gain), normalise(k, k_gain)


def normalise_first(attend: Attend, case: Case) -> Callable[..., Tensor]:
    """The attention behind the norms, which are compiled on a GPU: takes the gains too."""
    norms = compiled(normalise_both) if case.device == "cuda" else normalise_both

    def attend_normalised(
        q: Tensor, k: Tensor, v: Tensor, q_gain: Tensor, k_gain: Tensor
    ) -> Tensor:
        return attend(*norms(q, k, q_gain, k_gain), v)

    return attend_normalised
