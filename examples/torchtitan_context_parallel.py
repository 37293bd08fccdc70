"""Pointwise attention in torchtitan, its tokens on the ranks of the mesh's "cp" dimension.

    torchrun --nproc-per-node 2 examples/torchtitan_context_parallel.py

torchtitan is not installed here, and this was never run with it. The hook follows its interface of
2026: a model's ``parallelize`` function gets ``parallel_dims`` and gives every block's
``attention.inner_attention`` to context parallelism. Call ``apply_pointwise`` there in place of
``apply_cp_to_attention_module``. torchtitan cuts tokens and positions itself: its head-tail
balancer is the layout "zigzag", no balancer is "contiguous". ``Block`` and ``ParallelDims`` below
stand in for its classes, to run the hook and compare it with one process.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import flashpoint
from flashpoint.distributed import sequence_parallel, shard


class PointwiseInnerAttention(nn.Module):
    """Takes what torchtitan's inner attentions take: q, k, v, and the rest by name."""

    def __init__(self, cp_mesh: DeviceMesh | None, layout: str, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.dense, self.varlen = flashpoint.attention, flashpoint.attention_varlen
        if cp_mesh is not None:
            self.dense = sequence_parallel(cp_mesh, layout=layout)
            self.varlen = self.dense.varlen

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, attention_metadata: Any = None, **given: Any
    ) -> Tensor:
        """[B, H, L, D]; or [T, H, D] with metadata of all ranks' documents, as Varlen gets it."""
        options = {**self.options, "scale": given.get("scale")}
        if attention_metadata is None:
            return self.dense(q, k, v, causal=given.get("is_causal", True), **options)
        documents = attention_metadata  # cu_seq_q, cu_seq_k, max_q, max_k
        return self.varlen(q, k, v, *documents, causal=True, **options)


def apply_pointwise(
    blocks: Iterable[Any], parallel_dims: Any, *, layout: str = "zigzag", **options: Any
) -> None:
    """The hook: another inner attention in every block, over the mesh "cp" where there is one."""
    mesh = parallel_dims.get_mesh("cp") if parallel_dims.cp_enabled else None
    for block in blocks:
        block.attention.inner_attention = PointwiseInnerAttention(mesh, layout, **options)


class ParallelDims:
    """Stands in for torchtitan's."""

    def __init__(self, cp: int) -> None:
        self.cp_enabled = cp > 1
        self.mesh = init_device_mesh("cpu", (cp,), mesh_dim_names=("cp",)) if cp > 1 else None

    def get_mesh(self, name: str) -> DeviceMesh:
        """One dimension."""
        return self.mesh[name]


class Attention(nn.Module):
    """Stands in for torchtitan's: what it does with an inner attention, without rotations."""

    def __init__(self) -> None:
        super().__init__()
        self.wqkv, self.wo = nn.Linear(32, 3 * 32), nn.Linear(32, 32)
        self.inner_attention: nn.Module = nn.Identity()

    def forward(self, x: Tensor, documents: Any = None) -> Tensor:
        """[B, L, E], or [T, E] of packed documents."""
        q, k, v = self.wqkv(x).unflatten(-1, (3, 4, 8)).unbind(-3)
        if documents is not None:
            o = self.inner_attention(q, k, v, attention_metadata=documents, scale=None)
            return x + self.wo(o.flatten(-2))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        o = self.inner_attention(q, k, v, scale=None, enable_gqa=False)
        return x + self.wo(o.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Stands in for a transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()


def largest_difference(documents: Any) -> float:
    """Of a gradient to one process, over its largest value, with tokens as balanced there."""
    torch.manual_seed(0)
    cut, whole = Block(), Block()
    cut.load_state_dict(whole.state_dict())
    apply_pointwise([cut], ParallelDims(dist.get_world_size()), activation="relu")
    apply_pointwise([whole], ParallelDims(1), activation="relu")
    x = torch.randn(24, 32) if documents is not None else torch.randn(2, 24, 32)
    part = shard(x, dim=x.dim() - 2, layout="zigzag")
    cut.attention(part, documents).square().sum().backward()
    whole.attention(x, documents).square().sum().backward()
    for parameter in cut.parameters():
        dist.all_reduce(parameter.grad)
    pairs = zip(cut.parameters(), whole.parameters(), strict=True)
    return max(((a.grad - b.grad).abs().max() / b.grad.abs().max()).item() for a, b in pairs)


def main() -> None:
    """Sequences, then packed documents."""
    dist.init_process_group("gloo")
    ends = torch.tensor([0, 5, 6, 17, 24])
    for name, documents in (("sequences", None), ("documents", (ends, ends, 11, 11))):
        error = largest_difference(documents)
        if dist.get_rank() == 0:
            print(f"{name}: largest difference of a gradient to one process: {error:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
