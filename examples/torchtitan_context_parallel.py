"""Pointwise attention in torchtitan 0.3.0, its tokens on the ranks of the mesh's "cp" dimension.

    torchrun --nproc-per-node 2 examples/torchtitan_context_parallel.py

Call the hook in the function that the model spec has as ``parallelize_fn``::

    def parallelize(model, *, parallel_dims, **settings):
        apply_pointwise(model.layers.values(), parallel_dims, activation="relu")
        return parallelize_llama(model, parallel_dims=parallel_dims, **settings)

With the backend "partial_dtensor" call it after ``parallelize_llama``. Give the layers' configs
``inner_attention = ScaledDotProductAttention.Config()``: torchtitan then makes no masks. It cuts
tokens and positions itself: its balancer "headtail" is the layout "zigzag", None is "contiguous".
Documents need a trainer that gives ``attention_masks`` to its model; tests/examples/titan_llama.py
has one, and compares torchtitan's own Llama on two processes with one. Here ``Attention`` and
``parallel_dims`` stand in for torchtitan's, which need not be installed.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

import flashpoint
from flashpoint.distributed import sequence_parallel, shard


class PointwiseInnerAttention(nn.Module):
    """Takes what torchtitan's inner attentions take: q, k, v, and the rest by name."""

    def __init__(self, cp_mesh: DeviceMesh | None, layout: str, **options: Any) -> None:
        super().__init__()
        self.options, self.ranks = options, 1 if cp_mesh is None else cp_mesh.size()
        self.dense, self.varlen = flashpoint.attention, flashpoint.attention_varlen
        if cp_mesh is not None:
            self.dense = sequence_parallel(cp_mesh, layout=layout)
            self.varlen = self.dense.varlen

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, attention_masks: Any = None, **given: Any
    ) -> Tensor:
        """[B, L, H, D] of this rank; with VarlenMetadata of all ranks' documents, or without."""
        if isinstance(q, DTensor):
            local = (x.to_local() for x in (q, k, v))
            o = self(*local, attention_masks=attention_masks, **given)
            return DTensor.from_local(o, q.device_mesh, q.placements)
        options = {"causal": given.get("is_causal", True), "scale": given.get("scale")}
        options |= self.options
        if attention_masks is None:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return self.dense(q, k, v, **options).transpose(1, 2)
        if not hasattr(attention_masks, "cu_seq_q"):
            name = type(attention_masks).__name__
            raise TypeError(f"attention_masks must be VarlenMetadata or None, not {name}")
        ends, longest = attention_masks.cu_seq_q, attention_masks.max_q  # of all rows in one
        length, outputs = q.shape[1] * self.ranks, list[Tensor]()
        for row, tokens in enumerate(zip(q, k, v, strict=True)):
            own = ends - row * length
            own = own[(own >= 0) & (own <= length)]
            outputs.append(self.varlen(*tokens, own, own, longest, longest, **options))
        return torch.stack(outputs)


def apply_pointwise(
    blocks: Iterable[Any], parallel_dims: Any, *, layout: str = "zigzag", **options: Any
) -> None:
    """The hook: another inner attention in every block, over the mesh "cp" where there is one."""
    mesh = parallel_dims.get_mesh("cp") if parallel_dims.cp_enabled else None
    for block in blocks:
        block.attention.inner_attention = PointwiseInnerAttention(mesh, layout, **options)


class Attention(nn.Module):
    """Stands in for torchtitan's: what it does with an inner attention, without rotations."""

    def __init__(self) -> None:
        super().__init__()
        self.wqkv, self.wo = nn.Linear(32, 3 * 32), nn.Linear(32, 32)
        self.inner_attention: nn.Module = nn.Identity()

    def forward(self, x: Tensor, documents: Any = None) -> Tensor:
        """[B, L, E]."""
        q, k, v = self.wqkv(x).unflatten(-1, (3, 4, 8)).unbind(-3)
        o = self.inner_attention(q, k, v, attention_masks=documents, scale=None, enable_gqa=False)
        return x + self.wo(o.flatten(2))


def parallel_dims(cp: int) -> SimpleNamespace:
    """Stands in for torchtitan's ParallelDims."""
    if cp == 1:
        return SimpleNamespace(cp_enabled=False)
    mesh = init_device_mesh("cpu", (cp,), mesh_dim_names=("cp",))
    return SimpleNamespace(cp_enabled=True, get_mesh=mesh.__getitem__)


def largest_difference(documents: Any) -> float:
    """Of a gradient to one process, over its largest value, with tokens as balanced there."""
    torch.manual_seed(0)
    cut, whole = Attention(), Attention()
    cut.load_state_dict(whole.state_dict())
    for attention, cp in ((cut, dist.get_world_size()), (whole, 1)):
        apply_pointwise([SimpleNamespace(attention=attention)], parallel_dims(cp))
    x = torch.randn(2, 24, 32)
    cut(shard(x, dim=1, layout="zigzag"), documents).square().sum().backward()
    whole(x, documents).square().sum().backward()
    for parameter in cut.parameters():
        dist.all_reduce(parameter.grad)
    pairs = zip(cut.parameters(), whole.parameters(), strict=True)
    return max(((a.grad - b.grad).abs().max() / b.grad.abs().max()).item() for a, b in pairs)


def main() -> None:
    """Sequences, then packed documents."""
    dist.init_process_group("gloo")
    packed = SimpleNamespace(cu_seq_q=torch.tensor([0, 5, 6, 17, 24, 33, 48]), max_q=15)
    for name, documents in (("sequences", None), ("documents", packed)):
        error = largest_difference(documents)
        if dist.get_rank() == 0:
            print(f"{name}: largest difference of a gradient to one process: {error:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
