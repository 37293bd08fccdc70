"""One way to compute attention."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

from flashpoint.lab.bench.cases import Case

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
Function: TypeAlias = Literal["pointwise", "softmax"]


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
        bind_packed: for cases with norms, a function of qkv [B, L, 3, H, D] and the two gains
            that gives [B, L, H, D]. None: norms are put before ``bind``'s.
    """

    name: str
    function: Function
    bind: Callable[[Case], Attend]
    refusal: Callable[[Case], str | None] = serve_all
    compiles: bool = False
    bind_packed: Callable[[Case], Callable[..., Tensor]] | None = None
