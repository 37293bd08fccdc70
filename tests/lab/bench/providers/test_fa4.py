"""FlashAttention-4 by its own layout, and left out where it cannot compute."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from flashpoint.lab.bench.calls import make_call, make_inputs
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.providers import fa4
from flashpoint.lab.bench.providers.registry import PROVIDERS

CASE = Case(shape=Shape(2, 4, 40, 16, kv_heads=2), dtype="bf16", mode="forward", causal=True)
ON_GPU = replace(CASE, device="cuda")


def flash_attn_func(q, k, v, *, causal):
    """A stand-in with its signature: [B, L, H, D] in and out, and a second result."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return o.transpose(1, 2), None


@pytest.fixture
def installed(monkeypatch):
    module = ModuleType("flash_attn.cute")
    module.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", module)
    monkeypatch.setattr(fa4, "find_spec", lambda _: True)


@pytest.mark.usefixtures("installed")
def test_it_is_softmax_in_our_layout():
    inputs = make_inputs(CASE)
    theirs, usual = (make_call(PROVIDERS[name], CASE, inputs)() for name in ("fa4", "sdpa"))
    torch.testing.assert_close(theirs, usual)


def test_what_it_cannot_compute_is_left_out(monkeypatch):
    refusal = PROVIDERS["fa4"].refusal
    assert refusal(CASE) == "FlashAttention-4 needs a CUDA device"
    assert refusal(replace(ON_GPU, dtype="fp32")) == "FlashAttention-4 has no fp32"
    monkeypatch.setattr(fa4, "find_spec", lambda _: None)
    assert refusal(ON_GPU) == "FlashAttention-4 is not installed; pip install flash-attn-4"


@pytest.mark.usefixtures("installed")
def test_gpus_before_hopper_are_left_out(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert PROVIDERS["fa4"].refusal(ON_GPU) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    assert "capability 9.0 or more, this GPU has (8, 9)" in PROVIDERS["fa4"].refusal(ON_GPU)
