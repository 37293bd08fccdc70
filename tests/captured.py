"""Gradients that a CUDA graph has captured, on inputs that came after."""

import torch
from numerics import make_qkv
from torch import Tensor

import flashpoint


def gradients_by_graph(
    shape: tuple[int, ...], num_replays: int = 1
) -> tuple[list[Tensor], list[Tensor]]:
    """dq, dk and dv of a causal call by a graph, replayed on other inputs, and those by a call."""
    tensors = {name: x.requires_grad_() for name, x in make_qkv(shape, torch.bfloat16).items()}
    do = torch.randn_like(tensors["q"])

    def gradients(tensors: dict[str, Tensor]) -> list[Tensor]:
        o = flashpoint.attention(**tensors, causal=True, impl="triton")
        return list(torch.autograd.grad(o, list(tensors.values()), do))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        gradients(tensors)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(tensors)
    fresh = {name: x.requires_grad_() for name, x in make_qkv(shape, torch.bfloat16, 1).items()}
    with torch.no_grad():
        for name, x in tensors.items():
            x.copy_(fresh[name])
    for _ in range(num_replays):
        graph.replay()
    return captured, gradients(fresh)
