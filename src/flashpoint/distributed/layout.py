"""Which tokens of a sequence each rank holds, and how shards become a whole again."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from flashpoint.distributed.agreement import Agreement, Held, Signature
from flashpoint.distributed.group import Mesh, group_of
from flashpoint.distributed.transport import Transport
from flashpoint.errors import InputError, check_choice, describe
from flashpoint.ops.check import check_tensor

LAYOUTS = ("contiguous", "zigzag")
Range = tuple[int, int]
"""The first token of a run of tokens, and the one behind its last."""


class Shards(NamedTuple):
    """A sequence cut up.

    Attributes:
        ranges: by rank, the runs of tokens that it holds, one after another.
    """

    ranges: tuple[tuple[Range, ...], ...]

    @classmethod
    def of(cls, lengths: Sequence[int], layout: str, name: str) -> "Shards":
        """Those of ranks that hold so many tokens each; ``name`` is of what, for an error."""
        if layout == "contiguous":
            ends = list(itertools.accumulate(lengths, initial=0))
            return cls(tuple((pair,) for pair in itertools.pairwise(ends)))
        shards = cls.split(sum(lengths), len(lengths), layout)
        for rank, (given, expected) in enumerate(zip(lengths, shards.lengths, strict=True)):
            if given != expected:
                raise InputError(
                    f"rank {rank} holds {given} of {sum(lengths)} {name}; in zigzag shards it "
                    f"holds {expected}. Cut the sequence by flashpoint.distributed.shard."
                )
        return shards

    @classmethod
    def split(cls, length: int, num_ranks: int, layout: str) -> "Shards":
        """As even as can be. Zigzag: of twice as many chunks one from either end."""
        check_choice("layout", layout, LAYOUTS)
        num_chunks = num_ranks * (2 if layout == "zigzag" else 1)
        least, more = divmod(length, num_chunks)
        sizes = [least + (i < more) for i in range(num_chunks)]
        chunks = list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))
        if layout == "contiguous":
            return cls(tuple((chunk,) for chunk in chunks))
        pairs = zip(chunks[:num_ranks], reversed(chunks[num_ranks:]), strict=True)
        return cls(tuple(pairs))

    @property
    def lengths(self) -> list[int]:
        """How many tokens each rank holds."""
        return [sum(stop - start for start, stop in held) for held in self.ranges]

    @property
    def total(self) -> int:
        """How many tokens there are."""
        return sum(self.lengths)

    def join(self, parts: Sequence[Tensor], dim: int = 2) -> Tensor:
        """The whole sequence from the shards of all ranks."""
        if all(len(held) == 1 for held in self.ranges):
            return torch.cat(list(parts), dim)
        pieces: list[tuple[Range, Tensor]] = []
        for held, part in zip(self.ranges, parts, strict=True):
            sizes = [stop - start for start, stop in held]
            pieces += zip(held, part.split(sizes, dim), strict=True)
        return torch.cat([piece for _, piece in sorted(pieces, key=lambda pair: pair[0])], dim)

    def take(self, whole: Tensor, rank: int, dim: int = 2) -> Tensor:
        """A rank's shard of the whole sequence."""
        runs = [whole.narrow(dim, start, stop - start) for start, stop in self.ranges[rank]]
        return runs[0] if len(runs) == 1 else torch.cat(runs, dim)


def shard(x: Tensor, mesh: Mesh = None, *, dim: int = 1, layout: str = "contiguous") -> Tensor:
    """This rank's part of a tensor that all ranks of a group hold, cut along ``dim``.

    Args:
        x: the same on all ranks; for ``dim`` 1 tokens [B, L, E].
        mesh: a process group, a DeviceMesh of one dimension, or None for all ranks.
        dim: the axis of the length, which need not be a multiple of the ranks.
        layout: "contiguous", one run of tokens; or "zigzag", the r-th chunk and the r-th from the
            end, so that ranks have the same work in causal attention.
    """
    group = group_of(mesh)
    dim = _axis(x, dim)
    shards = Shards.split(x.shape[dim], dist.get_world_size(group), layout)
    return shards.take(x, dist.get_rank(group), dim)


@torch.no_grad()
def unshard(x: Tensor, mesh: Mesh = None, *, dim: int = 1, layout: str = "contiguous") -> Tensor:
    """The whole tensor from the shards of a group's ranks; arguments as for ``shard``.

    It has no gradient: losses are taken of shards, and their gradients added up.
    """
    transport = Transport(group_of(mesh), "unshard")
    try:
        check_choice("layout", layout, LAYOUTS)
        dim = _axis(x, dim)
        shape = [*x.shape[:dim], "L", *x.shape[dim + 1 :]]
        dtype = str(x.dtype).removeprefix("torch.")
        fields = {"call": "unshard", "layout": layout, "dtype": dtype, "shape": shape}
        signature = Signature(fields, Held(x.shape[dim]))
    except InputError as problem:
        signature = Signature({}, problem=problem)
    lengths = [held.queries for held in Agreement("always").ask(transport, signature)]
    shards = Shards.of(lengths, layout, "tokens")
    shapes = [[(*x.shape[:dim], length, *x.shape[dim + 1 :])] for length in lengths]
    parts = transport.all_gather([x], shapes, "tokens")
    return shards.join([part for (part,) in parts], dim)


def _axis(x: Tensor, dim: int) -> int:
    """An axis of x, counted from its first."""
    check_tensor("x", x)
    if not isinstance(dim, int) or not -x.dim() <= dim < x.dim():
        raise InputError(
            f"dim={describe(dim)} is no axis of x, which has {x.dim()} dimensions, shape "
            f"{list(x.shape)}."
        )
    return dim % x.dim()
