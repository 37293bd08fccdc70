"""A ViT as two ONNX graphs that share their tensors: one for answers, one for weights as well.

``maps`` gives logits and all attention weights, ``logits`` the former alone. The second is the
first without what nobody reads any more, so that it may be timed: it is what ``export_onnx`` makes
of the model. Large tensors lie beside them, once, as ONNX's external data.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flashpoint.convert import export_onnx
from flashpoint.errors import require
from flashpoint.lab.evaluation.attention_calls import AttentionCall, watch
from flashpoint.models.vit import ViT
from flashpoint.shapes import Float

TENSORS = "tensors"
"""Where the graphs say their tensors are."""
SMALLEST = 1024
"""Bytes of a tensor that lies outside; others stay in each graph."""
ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Graphs:
    """A model for onnxruntime, one image at a time.

    Attributes:
        logits: from an image [1, C, S, S] to logits [1, K].
        maps: the same, and weights [1, layers, H, L, L].
        tensors: of both.
    """

    logits: bytes
    maps: bytes
    tensors: bytes


class WithWeights(nn.Module):
    """A ViT that returns the attention weights of all layers, too, as ``layer.weights`` has them.

    Example:
        >>> import flashpoint
        >>> model = flashpoint.create_model("vit", image_size=8, patch_size=4, width=16, depth=3,
        ...                                 num_heads=2, num_classes=5)
        >>> logits, weights = WithWeights(model)(torch.zeros(1, 3, 8, 8))
        >>> logits.shape, weights.shape
        (torch.Size([1, 5]), torch.Size([1, 3, 2, 4, 4]))
    """

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, images: Float[Tensor, "B C S S"]
    ) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B layers H L L"]]:
        """Logits and weights."""
        found: list[Tensor] = []

        def gather(call: AttentionCall) -> None:
            found.append(call.module.weights(call.q, call.k, **call.options))

        with watch(self.model, gather):
            logits = self.model(images)
        return logits, torch.stack(found, dim=1)


def make_graphs(model: ViT) -> Graphs:
    """Trace a model on the CPU and compare it with PyTorch, weights too."""
    onnx = require("onnx", "a model in a page", extra="onnx")
    config = model.config
    shape = (1, config.channels, config.image_size, config.image_size)
    example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "maps.onnx"
        export_onnx(WithWeights(model), file, example)
        proto = onnx.load(file)
    tensors = _move_tensors(proto.graph, onnx.external_data_helper)
    maps: bytes = proto.SerializeToString()
    _keep_first_output(proto.graph)
    return Graphs(logits=proto.SerializeToString(), maps=maps, tensors=tensors)


def _move_tensors(graph: Any, helper: Any) -> bytes:
    """Take large tensors out of a graph, one after another."""
    moved = bytearray()
    for tensor in graph.initializer:
        if len(tensor.raw_data) >= SMALLEST:
            moved.extend(bytes(-len(moved) % ALIGNMENT))
            helper.set_external_data(
                tensor, TENSORS, offset=len(moved), length=len(tensor.raw_data)
            )
            moved.extend(tensor.raw_data)
            tensor.ClearField("raw_data")
    return bytes(moved)


def _keep_first_output(graph: Any) -> None:
    """Drop the other outputs, and nodes and tensors that served nothing else."""
    del graph.output[1:]
    needed = {graph.output[0].name}
    kept: list[Any] = []
    for node in reversed(graph.node):  # which stand in the order of their computation
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
    for field, members in (("node", kept[::-1]), ("initializer", tensors)):
        graph.ClearField(field)
        getattr(graph, field).extend(members)
    graph.ClearField("value_info")
