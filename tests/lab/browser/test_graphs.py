"""Graphs of a model beside PyTorch: logits, weights, and a graph without them."""

from collections import Counter
from functools import cache

import onnx
import onnxruntime
import pytest
import torch

from flashpoint.convert import export_onnx
from flashpoint.lab.browser.graphs import TENSORS, WithWeights, make_graphs
from flashpoint.lab.evaluation.attention_calls import watch
from flashpoint.models.registry import create_model

SETTINGS = {
    **{"image_size": 8, "patch_size": 2, "channels": 1, "num_classes": 5},
    **{"width": 32, "depth": 2, "num_heads": 2, "mlp_dim": 48},
}


@cache
def make_model(attention, pool="gap"):
    torch.manual_seed(0)
    model = create_model("vit", **SETTINGS, attention=attention, pool=pool).eval()
    torch.nn.init.normal_(model.head.weight)  # which starts at zero
    return model


@cache
def graphs_of(attention, pool="gap"):
    return make_graphs(make_model(attention, pool))


def make_session(graph, tensors):
    """onnxruntime as a page uses it: tensors beside the graph, in memory."""
    options = onnxruntime.SessionOptions()
    options.add_external_initializers_from_files_in_memory([TENSORS], [tensors], [len(tensors)])
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def layer_weights(model, image):
    """Of all layers, as the library computes them block by block."""
    found = []
    with torch.no_grad(), watch(model, lambda call: found.append(torch.cat([*call.blocks()], 2))):
        model(image)
    return torch.stack(found, dim=1)


@pytest.mark.parametrize(("attention", "pool"), [("relu", "gap"), ("softmax", "token")])
def test_graphs_compute_what_the_model_does(attention, pool):
    model = make_model(attention, pool)
    image = torch.randn(1, 1, 8, 8)
    graphs = graphs_of(attention, pool)
    feed = {"images": image.numpy()}
    logits, weights = make_session(graphs.maps, graphs.tensors).run(None, feed)
    (alone,) = make_session(graphs.logits, graphs.tensors).run(None, feed)
    with torch.no_grad():
        wanted = model(image)
    torch.testing.assert_close(torch.from_numpy(logits), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.from_numpy(alone), wanted, rtol=1e-4, atol=1e-5)
    exact = layer_weights(model, image)
    torch.testing.assert_close(torch.from_numpy(weights), exact, rtol=1e-4, atol=1e-6)
    assert ((weights == 0) == (exact.numpy() == 0)).all()
    assert (weights == 0).any() == (attention == "relu")


def test_graph_that_is_timed_is_the_exported_model(tmp_path):
    """But for its batch, which is one there: attention as it is served, no weights beside it."""
    model = make_model("relu")
    graphs = graphs_of("relu")
    export_onnx(model, tmp_path / "model.onnx", torch.randn(1, 1, 8, 8))
    timed, exported = onnx.load_from_string(graphs.logits), onnx.load(tmp_path / "model.onnx")
    counts = [Counter(node.op_type for node in proto.graph.node) for proto in (timed, exported)]
    assert counts[0] == counts[1]
    assert counts[0]["Softmax"] == 0
    assert len(timed.graph.initializer) == len(exported.graph.initializer)
    assert max(len(graphs.logits), len(graphs.maps)) < len(graphs.tensors)  # which lie there once


def test_model_itself_is_not_changed():
    model = make_model("relu")
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    WithWeights(model)(torch.randn(1, 1, 8, 8))
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks
