"""``flashpoint.attention`` for q, k and v that lie on several ranks, cut along the length."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Unpack, overload

import torch
from torch import Tensor

from flashpoint.distributed.agreement import Agreement, Signature
from flashpoint.distributed.call import ShardedCall, Sizes, settle_length
from flashpoint.distributed.gather import Gather
from flashpoint.distributed.group import Mesh, group_of
from flashpoint.distributed.layout import LAYOUTS, Shards
from flashpoint.distributed.reduce import Reduce
from flashpoint.distributed.ring import Ring
from flashpoint.distributed.strategy import (
    STRATEGIES,
    Choice,
    Rates,
    check_rates,
    check_serves,
    choose,
)
from flashpoint.distributed.transport import Transport
from flashpoint.distributed.ulysses import Ulysses
from flashpoint.distributed.visibility import ShardVisibility
from flashpoint.errors import FlashpointError, InputError, UnsupportedError, check_choice, hint
from flashpoint.ops import implementations, sdpa
from flashpoint.ops.activation import registered
from flashpoint.ops.check import DENSE, check_index, check_inputs, is_readable, read_key_lengths
from flashpoint.ops.implementations import Impl
from flashpoint.ops.options import (
    FLOOR,
    DenseOptions,
    Normalize,
    Number,
    ReturnSums,
    Window,
    read_terms,
)
from flashpoint.ops.spec import Terms

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
        request, lengths = self._agree((q, k, v), given, lambda made: made.fields(self))
        call = self._call(request, lengths)
        if request.key_lengths is not None and is_readable(request.key_lengths):
            read_key_lengths(request.key_lengths, call.keys.total)
        name = self._choose(call, request.q.dtype)
        with torch.autocast(q.device.type, enabled=False):
            found: Any = _FUNCTIONS[name].apply(call, request.q, request.k, request.v)
        o, sums = found
        if not return_sums:
            return o
        return (o, sums[0], sums[1]) if return_sums == "logs" else (o, sums)

    def explain(self, q: Tensor, k: Tensor, v: Tensor, **options: Unpack[DenseOptions]) -> Choice:
        """What "auto" takes for such a call and why, if all ranks hold as many tokens as this.

        Nothing is sent.
        """
        request = _read_named((q, k, v), options)
        lengths = [(q.shape[2], k.shape[2])] * self.transport.size
        return choose(self._call(request, lengths), q.dtype, self.rates)

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
            (q, k, k),
            given | {"from_first": from_first},
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

    def _agree(
        self,
        inputs: tuple[Any, Any, Any],
        given: dict[str, Any],
        fields_of: "Callable[[_Request], dict[str, Any]]",
    ) -> "tuple[_Request, list[tuple[int, int]]]":
        """A call that all ranks make, and how many queries and keys each holds.

        What is wrong with the arguments of one rank is raised on all.
        """
        request = None
        try:
            request = _read_named(inputs, given)
            held = (request.q.shape[2], request.k.shape[2])
            signature = Signature(fields_of(request), held)
        except FlashpointError as problem:
            signature = Signature({}, problem=problem)
        lengths = self._agreement.lengths(self.transport, signature)
        assert request is not None  # else all ranks have raised
        return request, lengths

    def _call(self, request: "_Request", lengths: list[tuple[int, int]]) -> ShardedCall:
        queries = Shards.of([pair[0] for pair in lengths], self.layout, "queries")
        keys = Shards.of([pair[1] for pair in lengths], self.layout, "keys")
        offset = 0 if request.from_first else keys.total - queries.total
        return ShardedCall(
            queries,
            keys,
            offset,
            request.sizes,
            settle_length(request.terms, keys.total),
            request.key_lengths,
            request.impl,
            bool(request.return_sums) or request.terms.normalize == "sum",
            bool(request.return_sums),
            self.transport,
        )

    def _choose(self, call: ShardedCall, dtype: torch.dtype) -> str:
        if self.strategy != "auto":
            check_serves(call, self.strategy)
            return self.strategy
        self.chosen = choose(call, dtype, self.rates)
        return self.chosen.strategy


class _Request(NamedTuple):
    """A call as one rank makes it, checked."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: Terms
    key_lengths: Tensor | None
    impl: str
    return_sums: ReturnSums
    from_first: bool
    written: dict[str, Any]  # what terms were made of, for errors

    @property
    def sizes(self) -> Sizes:
        """Of all ranks' tensors."""
        q, k, v = self.q.shape, self.k.shape, self.v.shape
        return Sizes(q[0], q[1], k[1], q[3], v[3])

    def fields(self, parallel: SequenceParallel) -> dict[str, Any]:
        """What must be the same on all ranks."""
        inputs = (self.q, self.k, self.v)
        wants = [name for name, x in zip("qkv", inputs, strict=True) if x.requires_grad]
        return {
            "dtype": str(self.q.dtype).removeprefix("torch."),
            **self.sizes._asdict(),
            **self.written,
            **self.positions(),
            "impl": self.impl,
            "return_sums": self.return_sums,
            "strategy": parallel.strategy,
            "layout": parallel.layout,
            "rates": parallel.rates,
            "gradients": ", ".join(wants) if torch.is_grad_enabled() and wants else "none",
        }

    def positions(self) -> dict[str, Any]:
        """What says who sees whom; key_lengths on a GPU are not read."""
        lengths = self.key_lengths
        said = None if lengths is None else "given"
        if lengths is not None and is_readable(lengths):
            said = lengths.tolist()
        return {
            "causal": self.written["causal"],
            "window": self.written["window"],
            "key_lengths": said,
            "from_first": self.from_first,
        }


def _read_named(inputs: tuple[Any, Any, Any], given: Mapping[str, Any]) -> _Request:
    """A rank's arguments, checked, their names as well."""
    for name in given:
        if name not in _NAMES:
            raise InputError(
                f"attention has no argument {name!r}. {hint(name, _NAMES)}Over shards it takes: "
                f"{', '.join(_NAMES)}."
            )
    return _read(*inputs, **given)


def _read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    activation: Any = "relu",
    normalize: Normalize = "length",
    floor: Number = FLOOR,
    alpha: Number = 1.0,
    length: str | Number = "visible",
    scale: Number | None = None,
    bias: Number | Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    window: Window | None = None,
    key_lengths: Tensor | None = None,
    return_sums: ReturnSums = False,
    impl: Impl = "auto",
    from_first: bool = False,
) -> _Request:
    """A rank's arguments, checked as ``attention`` does."""
    q, k, v = check_inputs(q, k, v, DENSE)
    for name, x in (("bias", bias), ("mask", mask)):
        if isinstance(x, Tensor):
            raise UnsupportedError(
                f"a tensor as {name} is not served over shards of a sequence. Pass causal, "
                "window, key_lengths or a number, or attend on one rank."
            )
    division = (normalize, floor, alpha, length)
    terms = read_terms(activation, division, scale, bias, causal, window, return_sums, q.dtype)
    if from_first and window is not None:
        raise UnsupportedError(
            "is_causal counts from the first key, window from the last. Pass one."
        )
    if key_lengths is not None:
        check_index("key_lengths", key_lengths, q.shape[0], q.device)
    chosen = implementations.choose(impl, q, v, terms.activation)
    written = {
        "activation": registered(terms.activation).name,
        "normalize": normalize,
        "floor": float(floor),
        "alpha": float(alpha),
        "length": length if isinstance(length, str) else float(length),
        "scale": scale if scale is None else float(scale),
        "bias": 0.0 if bias is None else float(bias),
        "causal": causal,
        "window": window,
    }
    return _Request(q, k, v, terms, key_lengths, chosen, return_sums, from_first, written)


_NAMES = tuple(inspect.signature(_read).parameters)[3:]
