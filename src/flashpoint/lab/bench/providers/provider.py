"""One way to compute attention, and what several share: compilation, and norms before them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, ParamSpec, TypeAlias, TypeVar

import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F
from torch import Tensor

from flashpoint.lab.bench.cases import Case

P = ParamSpec("P")
R = TypeVar("R")
Attend: TypeAlias = Callable[..., Tensor]
"""Of q, k and v, and by name of ``mask`` and ``bias`` where the case has them."""
Function: TypeAlias = Literal["pointwise", "softmax"]
EPS = 1e-6
"""Of norms."""


def serve_all(case: Case) -> str | None:
    """Refuse nothing."""
    del case
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """A name, and how to get from a case to a function of q, k and v.

    Attributes:
        function: what is computed, and so what its error is measured against.
        bind: the options of a case put in; may be slow, is not timed.
        refusal: why a case is left out, or None.
        compiles: the first call of each case runs torch.compile.
        bind_packed: for cases with norms or in the packed layout, a function of qkv
            [B, L, 3, H, D] and the gains, if any, that gives [B, L, H, D]. None: norms are put
            before ``bind``'s, and it takes views.
    """

    name: str
    function: Function
    bind: Callable[[Case], Attend]
    refusal: Callable[[Case], str | None] = serve_all
    compiles: bool = False
    bind_packed: Callable[[Case], Callable[..., Tensor]] | None = None


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """One graph for one shape, or an error; its backward may run many times."""
    functorch_config.donated_buffer = False  # else backward refuses retain_graph
    return torch.compile(function, fullgraph=True, dynamic=False)


def normalize(x: Tensor, gain: Tensor) -> Tensor:
    """LayerNorm over the head dim in fp32 (fp64 for fp64), rounded to x's dtype."""
    wide = x if x.dtype == gain.dtype else x.float()
    return F.layer_norm(wide, x.shape[-1:], gain.to(wide.dtype), eps=EPS).to(x.dtype)


def normalize_both(q: Tensor, k: Tensor, q_gain: Tensor, k_gain: Tensor) -> tuple[Tensor, Tensor]:
    """Both, so that a compiler sees them together."""
    return normalize(q, q_gain), normalize(k, k_gain)


def normalize_tokens(
    q: Tensor, k: Tensor, q_gain: Tensor, k_gain: Tensor
) -> tuple[Tensor, Tensor]:
    """Both, read and written token by token: the attention behind them gives such an output."""
    q, k = normalize_both(q.transpose(1, 2), k.transpose(1, 2), q_gain, k_gain)
    return q.transpose(1, 2), k.transpose(1, 2)


def normalize_first(attend: Attend, case: Case) -> Callable[..., Tensor]:
    """The attention behind the norms, which are compiled on a GPU: takes the gains too."""
    plain = normalize_both if case.layout == "heads" else normalize_tokens
    norms = compiled(plain) if case.device == "cuda" else plain

    def attend_normalized(
        q: Tensor, k: Tensor, v: Tensor, q_gain: Tensor, k_gain: Tensor, **terms: Tensor
    ) -> Tensor:
        return attend(*norms(q, k, q_gain, k_gain), v, **terms)

    return attend_normalized
