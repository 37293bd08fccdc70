"""Exported files as functions of tensors, and how near they have to be."""

import shutil
from collections import Counter

import pytest
import torch

needs_compiler = pytest.mark.skipif(
    not shutil.which("g++"), reason="AOTInductor needs a C++ compiler"
)


def open_onnx(file):
    """A file as a function of tensors, and its operations."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def run(*tensors):
        names = [given.name for given in session.get_inputs()]
        feed = {name: x.numpy() for name, x in zip(names, tensors, strict=True)}
        return [torch.from_numpy(result) for result in session.run(None, feed)]

    operations = Counter(node.op_type for node in onnx.load(file).graph.node)
    return run, operations, session


def assert_same(got, wanted):
    torch.testing.assert_close(got, wanted.detach(), atol=1e-5, rtol=1e-5)
