"""A call as one rank makes it: its arguments, checked, and what all ranks must agree on."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashpoint.distributed.agreement import Held
from flashpoint.distributed.call import Sizes
from flashpoint.distributed.documents import Documents
from flashpoint.distributed.scores import Rows
from flashpoint.errors import InputError, UnsupportedError, hint
from flashpoint.ops import implementations
from flashpoint.ops.activation import registered
from flashpoint.ops.check import (
    DENSE,
    PACKED,
    check_count,
    check_cu_seqlens,
    check_finite,
    check_index,
    check_inputs,
    check_scores,
    check_sign,
    is_readable,
    read_key_lengths,
)
from flashpoint.ops.implementations import Impl
from flashpoint.ops.options import FLOOR, Normalize, Number, ReturnSums, Window, read_terms
from flashpoint.ops.spec import Terms


class Varlen(NamedTuple):
    """Documents of the whole sequence, and how long the longest may be."""

    documents: Documents
    max_seqlen_q: int
    max_seqlen_k: int

    def check(self, num_queries: int, num_keys: int) -> None:
        """Whether documents are the tokens of all ranks."""
        check_cu_seqlens("q", self.documents.queries, num_queries, self.max_seqlen_q)
        check_cu_seqlens("k", self.documents.keys, num_keys, self.max_seqlen_k)


class Request(NamedTuple):
    """A call as one rank makes it, checked.

    Attributes:
        q, k, v: four axes; packed tokens are one sample.
        bias, mask: tensors with four axes, or None; a number for a bias is in the terms.
        written: what terms were made of, for errors.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    mask: Tensor | None
    terms: Terms
    key_lengths: Tensor | None
    varlen: Varlen | None
    impl: str
    return_sums: ReturnSums
    from_first: bool
    written: dict[str, Any]

    @property
    def sizes(self) -> Sizes:
        """Of all ranks' tensors."""
        q, k, v = self.q.shape, self.k.shape, self.v.shape
        return Sizes(q[0], q[1], k[1], q[3], v[3])

    @property
    def held(self) -> Held:
        """What this rank has."""
        num_queries = self.q.shape[2]
        rows = [Rows.of(x, num_queries) for x in (self.bias, self.mask)]
        return Held(num_queries, self.k.shape[2], *rows)

    def fields(self) -> dict[str, Any]:
        """What must be the same on all ranks, in this call's part."""
        inputs = {name: getattr(self, name) for name in ("q", "k", "v", "bias", "mask")}
        wants = [name for name, x in inputs.items() if x is not None and x.requires_grad]
        return {
            "dtype": str(self.q.dtype).removeprefix("torch."),
            **self.sizes._asdict(),
            **self.written,
            **self.positions(),
            "impl": self.impl,
            "return_sums": self.return_sums,
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
            "mask": _say(self.mask),
            "key_lengths": said,
            "documents": self.varlen,
            "from_first": self.from_first,
        }

    def check_whole(self, num_queries: int, num_keys: int) -> None:
        """What can be judged only by the lengths of all ranks, and by each of them alike."""
        if self.varlen is not None:
            self.varlen.check(num_queries, num_keys)
        if self.key_lengths is not None and is_readable(self.key_lengths):
            read_key_lengths(self.key_lengths, num_keys)
        for name, x in (("bias", self.bias), ("mask", self.mask)):
            if x is not None and x.shape[3] not in (1, num_keys):
                raise InputError(
                    f"{name} has {x.shape[3]} keys, and all ranks together have {num_keys}. Pass "
                    "the rows of this rank's queries, with all keys in the sequence's order."
                )


def _say(x: Tensor | None) -> str | None:
    """A bias or mask, but for its rows, which ranks have as many of as queries."""
    if x is None:
        return None
    batch, heads, _, keys = x.shape
    return f"[{batch}, {heads}, rows, {keys}] of {str(x.dtype).removeprefix('torch.')}"


def read_request(inputs: tuple[Any, Any, Any], given: Mapping[str, Any]) -> Request:
    """A rank's arguments, checked, their names as well."""
    _check_names("attention", given, _NAMES)
    return _read(*inputs, **given)


def read_varlen(
    inputs: tuple[Any, Any, Any], ends: tuple[Any, Any, Any, Any], given: Mapping[str, Any]
) -> Request:
    """The same of packed tokens; ``ends`` are cu_seqlens and the longest of queries and keys."""
    _check_names("attention_varlen", given, _VARLEN_NAMES)
    q, k, v = check_inputs(*inputs, PACKED)
    cu_q, cu_k, max_seqlen_q, max_seqlen_k = ends
    for name, x in (("bias", given.get("bias")), ("mask", given.get("mask"))):
        if isinstance(x, Tensor):
            raise UnsupportedError(
                f"a tensor as {name} is not served for documents over shards. Pass causal, window "
                "or a number, or tokens of one sequence with a mask."
            )
    num = cu_q.shape[0] if isinstance(cu_q, Tensor) and cu_q.dim() else 0
    for name, x, size in (("cu_seqlens_q", cu_q, max(num, 1)), ("cu_seqlens_k", cu_k, num)):
        check_index(name, x, size, x.device if isinstance(x, Tensor) else q.device)
    check_count("max_seqlen_q", max_seqlen_q)
    check_count("max_seqlen_k", max_seqlen_k)
    documents = Documents(tuple(cu_q.tolist()), tuple(cu_k.tolist()))
    request = _read(*(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)), **given)
    return request._replace(varlen=Varlen(documents, max_seqlen_q, max_seqlen_k))


def _check_names(function: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise InputError(
                f"{function} has no argument {name!r}. {hint(name, known)}Over shards it takes: "
                f"{', '.join(known)}."
            )


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
) -> Request:
    """A rank's arguments, checked as ``attention`` does."""
    q, k, v = check_inputs(q, k, v, DENSE)
    division = (normalize, floor, alpha, length)
    terms = read_terms(activation, division, scale, bias, causal, window, return_sums, q.dtype)
    added = _read_scores("bias", bias if isinstance(bias, Tensor) else None, q)
    mask = _read_scores("mask", mask, q)
    check_sign(mask, terms)
    if from_first and window is not None:
        raise UnsupportedError(
            "is_causal counts from the first key, window from the last. Pass one."
        )
    if key_lengths is not None:
        check_index("key_lengths", key_lengths, q.shape[0], q.device)
    chosen = implementations.choose(impl, q, v, terms.activation)
    written = _write(terms, division, scale) | {"causal": causal, "window": window}
    written["bias"] = terms.bias if added is None else _say(added)
    how = (terms, key_lengths, None, chosen, return_sums, from_first, written)
    return Request(q, k, v, added, mask, *how)


def _write(
    terms: Terms, division: tuple[Normalize, Number, Number, str | Number], scale: Number | None
) -> dict[str, Any]:
    """What the mathematics was made of, by the names that users know."""
    normalize, floor, alpha, length = division
    return {
        "activation": registered(terms.activation).name,
        "normalize": normalize,
        "floor": float(floor),
        "alpha": float(alpha),
        "length": length if isinstance(length, str) else float(length),
        "scale": scale if scale is None else float(scale),
    }


def _read_scores(name: str, x: Any, q: Tensor) -> Tensor | None:
    """A bias or mask with four axes, checked but for the number of its keys."""
    if x is None:
        return None
    num_keys = x.shape[-1] if isinstance(x, Tensor) and x.dim() else 1
    x = check_scores(name, x, (*q.shape[:3], num_keys), q.device)
    if x.is_floating_point() and is_readable(x):
        check_finite(name, x)
    return x


_NAMES = tuple(inspect.signature(_read).parameters)[3:]
_VARLEN_NAMES = tuple(name for name in _NAMES if name not in ("key_lengths", "from_first"))
