"""Inf and NaN go where the definition lets them, and no further."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from implementations import (
    FAST,
    IMPLEMENTATIONS,
    bf16_products_mix_rows,
    device_of,
    interpreted,
    on_gpu,
)
from numerics import place_qkv
from results import assert_same, evaluate

from flashpoint import attention
from flashpoint.ops import api
from flashpoint.ops.activation import BUILTIN
from flashpoint.ops.cpu.native import build

NAN, INF = float("nan"), float("inf")


def skip_where_products_mix_rows(impl, dtype):
    if impl == "cpu" and dtype == torch.bfloat16 and bf16_products_mix_rows():
        pytest.skip("torch.bmm itself lets NaN reach other rows in bf16 on this CPU (AMX)")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@interpreted(lambda activation: activation in ("relu", "silu"))
@on_gpu(lambda activation, dtype: activation == "relu" and dtype == torch.bfloat16)
def test_nan_in_a_query_stays_in_its_row(impl, activation, dtype):
    skip_where_products_mix_rows(impl, dtype)
    tensors = place_qkv(impl, (2, 4, 2, 50, 70, 8, 8), dtype)
    for options in ({}, {"causal": True}, {"bias": 1.0}):
        tensors["q"][1, 2, 7, 3] = NAN
        o = attention(**tensors, activation=activation, impl=impl, **options)
        hit = torch.zeros_like(o, dtype=torch.bool)
        hit[1, 2, 7] = True
        assert torch.equal(o.isnan(), hit)


@pytest.mark.parametrize("length", [7, 600])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["k", "v"])  # SDPA gives zeros for a NaN in few queries
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@interpreted(lambda name, causal: name == "v" or causal)
@on_gpu(lambda dtype, length: dtype == torch.bfloat16 and length == 600)
def test_nan_propagates_as_in_sdpa(impl, dtype, name, causal, length):
    tensors = place_qkv(impl, (1, 2, 2, length, length, 8, 8), dtype)
    tensors[name][0, 1, length // 2, 3] = NAN
    ours = attention(**tensors, causal=causal, impl=impl)
    on_cpu = {name: t.cpu() for name, t in tensors.items()}
    theirs = F.scaled_dot_product_attention(**_named_for_sdpa(on_cpu), is_causal=causal)
    if impl == "reference":
        assert torch.equal(ours.isnan(), theirs.isnan())
        return
    # their tiles are smaller, so that fewer queries meet a key that they do not see
    seeing = slice(length // 2 if causal else 0, None)
    assert torch.equal(ours.cpu().isnan()[:, :, seeing], theirs.isnan()[:, :, seeing])
    assert not (ours.cpu().isnan() & ~theirs.isnan()).any()


def _named_for_sdpa(tensors):
    return {"query": tensors["q"], "key": tensors["k"], "value": tensors["v"]}


POISONS = {"inf": (INF, INF), "minus inf": (-INF, -INF), "inf - inf": (INF, -INF), "nan": (NAN, 1)}


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", FAST)
@interpreted(lambda activation, poison: activation in ("relu", "gelu") or poison == (INF, INF))
@on_gpu(lambda activation, dtype: activation in ("relu", "sigmoid") and dtype == torch.bfloat16)
@pytest.mark.pairwise
@pytest.mark.long_interpreted
def test_inf_and_nan_spread_as_in_the_reference(impl, dtype, activation, poison):
    skip_where_products_mix_rows(impl, dtype)
    for name in "qkv":
        for options in ({}, {"causal": True}, {"bias": 0.5}):
            tensors = place_qkv(impl, (1, 2, 1, 30, 40, 8, 8), dtype)
            tensors[name][0, 0, 3, 2], tensors[name][0, 0, 3, 4] = poison
            call = partial(attention, activation=activation, **options)
            got = evaluate(partial(call, impl=impl), **tensors)
            # PyTorch's gelu of infinity is NaN in fp32, on CPUs with AVX
            is_wide = dtype == torch.float32 or "bias" in options
            is_ours = is_wide and build.why_not(activation) is None
            if impl == "triton" or is_ours:
                tensors = {name: t.double() for name, t in tensors.items()}
            expected = evaluate(partial(call, impl="reference"), **tensors)
            for kind in (torch.isnan, torch.isposinf, torch.isneginf):
                assert torch.equal(kind(got["o"]), kind(expected["o"])), (name, options, kind)
            for grad in ("dq", "dk", "dv"):
                finite = got[grad].isfinite()
                assert torch.equal(finite, expected[grad].isfinite()), (grad, name, options)


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@interpreted(lambda activation: activation == "softplus")
@on_gpu(lambda activation: activation == "softplus")
@pytest.mark.long_interpreted
def test_nothing_comes_of_keys_that_do_not_exist(impl, activation, poison, monkeypatch):
    monkeypatch.setattr(api, "is_readable", lambda x: False)  # nor of bias and mask, on a GPU
    lengths = torch.tensor([3, 0, 7], device=device_of(impl))
    tensors = place_qkv(impl, (3, 2, 1, 5, 7, 4, 4))
    tensors["bias"], tensors["mask"] = torch.rand(2, 3, 1, 5, 7).to(tensors["q"])
    beyond = torch.arange(7, device=lengths.device) >= lengths.view(3, 1, 1, 1)  # [B, 1, 1, Lk]
    shapes = {"k": beyond.mT, "v": beyond.mT, "bias": beyond, "mask": beyond}
    for names in (["q", "k", "v"], list(tensors)):
        given = {name: tensors[name] for name in names}
        bad = {n: t.masked_fill(shapes[n], poison) if n in shapes else t for n, t in given.items()}
        for options in ({}, {"window": (2, 1)}):
            call = partial(
                attention, activation=activation, key_lengths=lengths, impl=impl, **options
            )
            assert_same(evaluate(call, **bad), evaluate(call, **given))
