"""``flashpoint.attention`` for q, k and v that lie on several ranks, cut along the length."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from flashpoint.distributed.agreement import Agreement, Held, Signature
from flashpoint.distributed.call import ShardedCall, settle_length
from flashpoint.distributed.gather import Gather
from flashpoint.distributed.group import Mesh, group_of
from flashpoint.distributed.layout import LAYOUTS, Shards
from flashpoint.distributed.reduce import Reduce
from flashpoint.distributed.request import Request, read_request, read_varlen
from flashpoint.distributed.ring import Ring
from flashpoint.distributed.scores import Rows
from flashpoint.distributed.strategy import (
    STRATEGIES,
    Choice,
    Rates,
    check_rates,
    check_serves,
    choose,
)
from flashpoint.distributed.transport import Transport
from flashpoint.distributed.ulysses import Ulysses, cut_by_heads
from flashpoint.distributed.visibility import ShardVisibility
from flashpoint.errors import FlashpointError, InputError, UnsupportedError, check_choice
from flashpoint.ops import sdpa
from flashpoint.ops.options import DenseOptions, Options, ReturnSums
from flashpoint.shapes import Float, Int

CHECKS = ("always", "first")
_FUNCTIONS: dict[str, type[torch.autograd.Function]] = {
    "gather": Gather,
    "ring": Ring,
    "reduce": Reduce,
    "ulysses": Ulysses,
}


def sequence_parallel(
    mesh: Mesh = None,
    strategy: str = "auto",
    *,
    layout: str = "contiguous",
    check: str = "always",
    timeout_s: float | None = None,
    rates: Rates | None = None,
) -> "SequenceParallel":
    """Attention over a sequence whose tokens lie on several ranks.

    The result takes the arguments of ``flashpoint.attention``, so any layer takes it as
    ``attend=``. As a context manager it serves calls of ``scaled_dot_product_attention``, of all
    threads of the process.

    Args:
        mesh: a process group, a DeviceMesh of one dimension (``mesh["sequence"]``), or None for
            all ranks.
        strategy: "gather", all keys and values come to every rank; "ring", they go round in
            blocks; "reduce", queries travel and partial outputs are added up; "ulysses", heads in
            exchange for tokens; or "auto", which sends least, or takes least time by ``rates``.
        layout: how sequences are cut, "contiguous" or "zigzag"; see ``shard``. Contiguous shards
            may have any lengths.
        check: when ranks compare their calls: "always", a few numbers each time; or "first", once
            for each shape, which wants shards that change only together.
        timeout_s: how long a CPU waits for another rank; None: as long as the group does.
        rates: speeds, for "auto".

    Example:
        >>> import flashpoint, torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> attend = sequence_parallel(strategy="ring")
        >>> q, k, v = torch.randn(3, 1, 2, 5, 16)
        >>> torch.allclose(attend(q, k, v), flashpoint.attention(q, k, v))
        True
        >>> dist.destroy_process_group()
    """
    return SequenceParallel(mesh, strategy, layout, check, timeout_s, rates)


class SequenceParallel:
    """What ``sequence_parallel`` gives: it says what it does by ``explain`` and ``chosen``.

    Attributes:
        transport: counts the elements that this rank has ``sent``.
        chosen: the ``Choice`` of the last call; None before the first, and always for a strategy
            by name.
    """

    def __init__(
        self,
        mesh: Mesh,
        strategy: str,
        layout: str,
        check: str,
        timeout_s: float | None,
        rates: Rates | None,
    ) -> None:
        check_choice("strategy", strategy, ("auto", *STRATEGIES))
        check_choice("layout", layout, LAYOUTS)
        check_choice("check", check, CHECKS)
        if rates is not None:
            check_rates(rates)
        self.strategy, self.layout, self.rates = strategy, layout, rates
        self.transport = Transport(group_of(mesh), "sequence_parallel", timeout_s)
        self.chosen: Choice | None = None
        self._agreement = Agreement(check)
        self._before: list[Callable[..., Any]] = []

    def __repr__(self) -> str:
        ranks = f"{self.transport.size} ranks"
        return f"sequence_parallel({ranks}, strategy={self.strategy!r}, layout={self.layout!r})"

    @overload
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        return_sums: Literal[False] = False,
        from_first: bool = False,
        **options: Unpack[DenseOptions],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        return_sums: ReturnSums,
        from_first: bool = False,
        **options: Unpack[DenseOptions],
    ) -> Any: ...
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        return_sums: ReturnSums = False,
        from_first: bool = False,
        **options: Unpack[DenseOptions],
    ) -> Any:
        """This rank's part of the result, from its parts of q, k and v.

        Options as for ``flashpoint.attention``, the same on all ranks; positions, n_i and
        key_lengths are of the whole sequence. ``from_first``: the first query stands at the first
        key, as in PyTorch's SDPA, not the last at the last.
        """
        given = {"return_sums": return_sums, "from_first": from_first, **options}
        found = self._agree(partial(read_request, (q, k, v), given), self._fields)
        o, *sums = self._attend(*found)
        return (o, *sums) if return_sums else o

    def varlen(
        self,
        q: Float[Tensor, "Tq Hq D"],
        k: Float[Tensor, "Tk Hkv D"],
        v: Float[Tensor, "Tk Hkv Dv"],
        cu_seqlens_q: Int[Tensor, " ends"],
        cu_seqlens_k: Int[Tensor, " ends"],
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        return_sums: ReturnSums = False,
        **options: Unpack[Options],
    ) -> Any:
        """``flashpoint.attention_varlen`` of documents that lie on several ranks.

        Args:
            q, k, v: this rank's tokens. Ranks cut the packed tokens anywhere, documents too.
            cu_seqlens_q, cu_seqlens_k: of the documents of all ranks, the same on all of them.
                Their values are read: on a GPU pass them on the CPU, where nobody waits for them.
            max_seqlen_q, max_seqlen_k: at least the longest document's length.
            return_sums: also this rank's sums, [Hq, Tq].
            **options: as for ``attention_varlen``; bias is a number, and there is no mask.

        Returns:
            [Tq, Hq, Dv] of this rank's queries.

        Example:
            >>> import flashpoint, torch.distributed as dist
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            >>> q, k, v = torch.randn(3, 5, 2, 16)
            >>> documents = (torch.tensor([0, 2, 5]), torch.tensor([0, 2, 5]), 3, 3)
            >>> o = sequence_parallel().varlen(q, k, v, *documents, causal=True)
            >>> torch.allclose(o, flashpoint.attention_varlen(q, k, v, *documents, causal=True))
            True
            >>> dist.destroy_process_group()
        """
        ends = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        given = {"return_sums": return_sums, **options}
        found = self._agree(partial(read_varlen, (q, k, v), ends, given), self._fields)
        o, *sums = self._attend(*found)
        o, sums = o[0].transpose(0, 1).contiguous(), [x[0] for x in sums]
        return (o, *sums) if return_sums else o

    def explain(self, q: Tensor, k: Tensor, v: Tensor, **options: Unpack[DenseOptions]) -> Choice:
        """What "auto" takes for such a call and why, if all ranks hold as many tokens as this.

        Nothing is sent.
        """
        request = read_request((q, k, v), options)
        call = self._call(request, [request.held] * self.transport.size)
        return choose(call, q.dtype, self.rates)

    def visibility_of(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        causal: bool,
        key_lengths: Tensor | None,
        from_first: bool = False,
    ) -> ShardVisibility:
        """How many keys this rank's queries see, for layers that learn from it; all ranks ask."""
        given = {"mask": mask, "causal": causal, "key_lengths": key_lengths}
        found = self._agree(
            partial(read_request, (q, k, k), given | {"from_first": from_first}),
            lambda made: {"call": "lengths", **made.positions()},
        )
        return ShardVisibility.of_call(self._call(*found), q)

    def __enter__(self) -> "SequenceParallel":
        self._before.append(sdpa.exchange_attend(self))
        return self

    def __exit__(self, *_: object) -> None:
        if sdpa.current_attend() is not self:
            raise InputError(
                "another `with` of sequence_parallel that began later is still open. End that "
                "one first."
            )
        sdpa.exchange_attend(self._before.pop())

    def __copy__(self) -> "SequenceParallel":
        return self

    def __deepcopy__(self, _: object) -> "SequenceParallel":
        return self  # a copied layer attends over the same ranks

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "sequence_parallel holds a process group, which cannot be pickled. Save a layer's "
            "state_dict, and call sequence_parallel again where it is loaded."
        )

    def _fields(self, request: Request) -> dict[str, Any]:
        """What must be the same on all ranks."""
        made = {"strategy": self.strategy, "layout": self.layout, "rates": self.rates}
        return {**request.fields(), **made}

    def _agree(
        self, read: Callable[[], Request], fields_of: Callable[[Request], dict[str, Any]]
    ) -> tuple[Request, list[Held]]:
        """A call that all ranks make, and what each of them holds.

        What is wrong with the arguments of one rank is raised on all.
        """
        request = None
        try:
            request = read()
            signature = Signature(fields_of(request), request.held)
        except FlashpointError as problem:
            signature = Signature({}, problem=problem)
        held = self._agreement.ask(self.transport, signature)
        assert request is not None  # else all ranks have raised
        return request, held

    def _call(self, request: Request, held: list[Held]) -> ShardedCall:
        queries = Shards.of([each.queries for each in held], self.layout, "queries")
        keys = Shards.of([each.keys for each in held], self.layout, "keys")
        request.check_whole(queries.total, keys.total)
        rows = {"bias": [each.bias for each in held], "mask": [each.mask for each in held]}
        varlen, terms = request.varlen, request.terms
        return ShardedCall(
            queries,
            keys,
            0 if request.from_first else keys.total - queries.total,
            request.sizes,
            settle_length(terms, keys.total) if varlen is None else terms,
            request.key_lengths,
            request.impl,
            bool(request.return_sums) or terms.normalize == "sum",
            bool(request.return_sums),
            self.transport,
            None if varlen is None else varlen.documents,
            request.bias,
            request.mask,
            tuple(name for name, kinds in rows.items() if Rows.are_own(kinds)),
        )

    def _attend(self, request: Request, held: list[Held]) -> list[Tensor]:
        """This rank's result, and its sums if the caller wants any."""
        call, q = self._call(request, held), request.q
        name = self._choose(call, q.dtype)
        with torch.autocast(q.device.type, enabled=False):
            if name == "ulysses":
                bias, mask = (cut_by_heads(call, each) for each in ("bias", "mask"))
                call = call._replace(bias=bias, mask=mask)
            scores = (call.bias, call.mask)
            call = call._replace(bias=_detached(call.bias), mask=_detached(call.mask))
            found: Any = _FUNCTIONS[name].apply(call, q, request.k, request.v, *scores)
        o, sums = found
        if not request.return_sums:
            return [o]
        return [o, sums[0], sums[1]] if request.return_sums == "logs" else [o, sums]

    def _choose(self, call: ShardedCall, dtype: torch.dtype) -> str:
        if self.strategy != "auto":
            check_serves(call, self.strategy)
            return self.strategy
        self.chosen = choose(call, dtype, self.rates)
        return self.chosen.strategy


def _detached(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()
