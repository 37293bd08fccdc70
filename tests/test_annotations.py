"""The shapes written in signatures hold at run time, checked by beartype in a fresh process."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CALLS = """
import os
from importlib.util import find_spec

from jaxtyping import TypeCheckError, install_import_hook

os.environ["TRITON_INTERPRET"] = "1"
with install_import_hook("flashpoint.ops", "beartype.beartype"):
    from flashpoint.ops.api import attention, attention_qkvpacked, attention_varlen
    from flashpoint.ops.qk_norm import HeadNorm
import torch

q = torch.randn(2, 4, 5, 8, requires_grad=True)
k, v = torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 6)
lengths = torch.tensor([3, 5])
mask, bias = torch.rand(2, 1, 1, 7), torch.randn(4, 5, 7)
packed = torch.randn(9, 2, 8)
qkv, gain = torch.randn(2, 5, 3, 4, 8, requires_grad=True), torch.ones(8)
norms = {"q_norm": HeadNorm("layer", gain), "k_norm": HeadNorm("rms")}
ends = torch.tensor([0, 3, 9])
for impl in ("reference", "cpu", *(["triton"] if find_spec("triton") else [])):
    attention(q, k, v, impl=impl).sum().backward()
    attention(q, k, v, causal=True, key_lengths=lengths, mask=mask, bias=bias, impl=impl)
    attention(q, k, v, length="keys", window=(2, None), bias=1, activation="gelu", impl=impl)
    attention_varlen(packed, packed, packed, ends, ends, 6, 6, causal=True, impl=impl)
    attention_qkvpacked(qkv, **norms, key_lengths=lengths, bias=bias[:, :, :5], impl=impl)
    attention_qkvpacked(qkv, **norms, impl=impl).sum().backward()
try:
    attention(q, k[..., :5], v)
except TypeCheckError:
    pass
else:
    raise AssertionError("the hook checks nothing")
"""


def test_annotated_shapes_hold_at_run_time():
    # -B: the hook would leave bytecode without its checks for other modules' hooks to find
    subprocess.run([sys.executable, "-B", "-c", CALLS], check=True)
