"""``scaled_dot_product_attention`` means what PyTorch's does: with exp and sums it is the same."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from implementations import HAS_GPU, IMPLEMENTATIONS, device_of, needs_gpu, widest_dtype
from sdpa_calls import draw_call, run
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from flashpoint import UnsupportedError, attention, scaled_dot_product_attention
from flashpoint.ops.activation import BUILTIN

INF = math.inf
SDPA = F.scaled_dot_product_attention
softmax = partial(scaled_dot_product_attention, activation="exp", normalize="sum", floor=0)
close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("seed", range(300))
def test_random_call_equals_sdpa(seed):
    tensors, options = draw_call(seed)
    expected = run(SDPA, tensors, options)
    for got, want in zip(run(softmax, tensors, options), expected, strict=True):
        close(got, want)
    for got, want in zip(run(softmax, tensors, options, torch.float32), expected, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("seed", range(1000, 1010))
def test_every_implementation_equals_sdpa(impl, seed):
    tensors, options = draw_call(seed)
    device, dtype = device_of(impl), widest_dtype(impl)
    tensors = [x.to(device) for x in tensors]
    options = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    expected = run(SDPA, tensors, options)
    results = run(partial(softmax, impl=impl), tensors, options, dtype)
    for got, want in zip(results, expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(2000, 2010))
def test_half_precision_is_as_exact_as_sdpa(seed, dtype):
    tensors, options = draw_call(seed)
    tensors = [x.to(dtype).double() for x in tensors]
    if (mask := options.get("attn_mask")) is not None and mask.is_floating_point():
        options["attn_mask"] = mask.to(dtype).double()
    exact = run(SDPA, tensors, options)
    ours, theirs = (run(call, tensors, options, dtype) for call in (softmax, SDPA))
    for got, plain, want in zip(ours, theirs, exact, strict=True):
        assert got.dtype == dtype
        error, allowed = ((x.double() - want).abs().max() for x in (got, plain))
        eps = torch.finfo(dtype).eps * max(want.abs().max(), 1)
        assert error <= 2 * allowed + 4 * eps


def triangle(L, S):
    return torch.ones(L, S, dtype=torch.bool).tril()


q, k, v = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(0)).double()
few = slice(None), slice(None), slice(4)
LENGTHS = {"square": (q, k, v), "more keys": (q[few], k, v), "more queries": (q, k[few], v[few])}
every_length = pytest.mark.parametrize("qkv", LENGTHS.values(), ids=LENGTHS)
DIVISIONS = {
    "visible": {},
    "keys": {"length": "keys", "alpha": 0.5},
    "number": {"length": 3},
    "sum": {"normalize": "sum", "activation": "relu4"},
    "sum over keys": {"normalize": "sum", "length": "keys", "floor": 0.5},
}


@every_length
@pytest.mark.parametrize("division", DIVISIONS.values(), ids=DIVISIONS)
def test_causality_counts_from_the_top_left(qkv, division):
    got = scaled_dot_product_attention(*qkv, is_causal=True, **division)
    mask = triangle(qkv[0].shape[2], qkv[1].shape[2])
    close(got, attention(*qkv, mask=mask, **division))


@every_length
def test_causality_with_a_bias_counts_from_the_top_left(qkv):
    L, S = qkv[0].shape[2], qkv[1].shape[2]
    for bias in (0.5, torch.randn(4, L, S).double(), torch.randn(L, 1).double()):
        got = scaled_dot_product_attention(*qkv, is_causal=True, bias=bias)
        close(got, attention(*qkv, mask=triangle(L, S), bias=bias))


@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")
@every_length
def test_causal_bias_of_pytorch_is_served(qkv):
    L, S = qkv[0].shape[2], qkv[1].shape[2]
    upper = scaled_dot_product_attention(*qkv, causal_upper_left(L, S))
    close(upper, attention(*qkv, mask=triangle(L, S)))
    lower = scaled_dot_product_attention(*qkv, causal_lower_right(L, S))
    close(lower, attention(*qkv, causal=True))


@pytest.mark.parametrize("activation", BUILTIN)
def test_added_mask_hides_and_biases_for_every_activation(activation):
    added = torch.randn(2, 1, 6, 6).double()
    seen = torch.rand(2, 1, 6, 6) > 0.3
    seen[0, 0, 2] = False
    hiding = added.masked_fill(~seen, -INF)
    tensors, options = (q, k, v), {"attn_mask": hiding}
    call = partial(scaled_dot_product_attention, activation=activation)
    got = run(call, tensors, options)

    def by_attention(q, k, v, attn_mask):
        return attention(q, k, v, activation=activation, mask=seen, bias=attn_mask)

    for ours, want in zip(got, run(by_attention, tensors, {"attn_mask": added}), strict=True):
        close(ours, want)
    assert (got[0][0, :, 2] == 0).all()
    assert (got[-1][~seen] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lowest_number_hides_from_sums_as_in_sdpa(dtype):
    added = torch.zeros(6, 6).masked_fill(~triangle(6, 6), torch.finfo(dtype).min).to(dtype)
    tensors = [x.to(dtype) for x in (q, k, v)]
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        softmax(*tensors, added), SDPA(*tensors, added), rtol=4 * eps, atol=4 * eps
    )


def test_bias_adds_to_an_added_mask():
    added = torch.randn(6, 6).double()
    for bias in (2, torch.randn(4, 1, 6).double(), torch.tensor(0.5)):
        got = scaled_dot_product_attention(q, k, v, added, bias=bias, activation="sigmoid")
        close(got, attention(q, k, v, bias=added + bias, activation="sigmoid"))


def test_sum_of_mask_and_bias_is_not_rounded():
    coarse = torch.tensor([8.0, -INF] * 3).bfloat16()
    call = partial(scaled_dot_product_attention, *(x.bfloat16() for x in (q, k, v)))
    got = call(coarse, bias=0.015, scale=0, activation="exp")
    mean = v.bfloat16().double()[:, :, coarse > 0].mean(2, keepdim=True)
    want = (math.exp(8.015) * mean).expand(got.shape)
    torch.testing.assert_close(got.double(), want, rtol=0.006, atol=0)


def test_options_reach_attention():
    options = {"activation": "silu", "alpha": 0.5, "length": 7, "bias": 0.1, "impl": "reference"}
    got = scaled_dot_product_attention(q, k, v, None, 0.0, False, 0.3, False, **options)
    close(got, attention(q, k, v, scale=0.3, **options))
    got = scaled_dot_product_attention(q[few], k, v, window=(2, 1))
    close(got, attention(q[few], k, v, window=(2, 1)))
    got = scaled_dot_product_attention(q, k, v, is_causal=True, window=(2, None))
    close(got, attention(q, k, v, window=(2, 0)))


SIZES = {
    "no batch": ((0, 3, 4, 8), (0, 3, 6, 8), (0, 3, 6, 8)),
    "no heads": ((2, 0, 4, 8), (2, 0, 6, 8), (2, 0, 6, 8)),
    "no queries": ((2, 3, 0, 8), (2, 3, 6, 8), (2, 3, 6, 8)),
    "no keys": ((2, 3, 4, 8), (2, 3, 0, 8), (2, 3, 0, 8)),
    "no values": ((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 0)),
    "no batch of three": ((0, 4, 8), (0, 6, 8), (0, 6, 8)),
    "no batch of five": ((2, 0, 3, 4, 8), (2, 0, 3, 6, 8), (2, 0, 3, 6, 8)),
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_empty_call_equals_sdpa(sizes, is_causal):
    tensors = [torch.randn(size) for size in sizes]
    want = run(SDPA, tensors, {"is_causal": is_causal})
    for ours, theirs in zip(run(softmax, tensors, {"is_causal": is_causal}), want, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_result_lies_as_sdpas_does():
    for sizes in ((2, 3, 4, 8), (5, 2, 3, 4, 8), (3, 4, 8), (4, 8)):
        x = torch.randn(sizes)
        assert softmax(x, x, x).is_contiguous()
        assert softmax(x, x, x).shape == SDPA(x, x, x).shape


def test_autocast_gives_the_dtype_that_sdpa_gives():
    x = q.float()
    with torch.autocast("cpu", torch.bfloat16):
        for mask in (None, torch.randn(6, 6), torch.randn(6, 6) > 0):
            ours, theirs = (call(x, x, x.bfloat16(), mask) for call in (softmax, SDPA))
            assert ours.dtype == theirs.dtype == torch.bfloat16
            torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
        assert softmax(q, k, v).dtype == torch.float64


@pytest.fixture
def in_its_place(monkeypatch):
    """Puts a function where modules of PyTorch look for SDPA, after its name was used."""

    def put(call):
        monkeypatch.setattr(F, "scaled_dot_product_attention", call)

    return put


MASKS = {
    "none": {},
    "bool": {"attn_mask": ~triangle(5, 5)},
    "float": {"attn_mask": torch.zeros(5, 5).masked_fill(~triangle(5, 5), -INF)},
    "causal": {"attn_mask": ~triangle(5, 5), "is_causal": True},
    "padding": {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
}
MASKS["both"] = MASKS["float"] | {
    "key_padding_mask": torch.zeros(2, 5).masked_fill(MASKS["padding"]["key_padding_mask"], -INF)
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_multihead_attention_of_pytorch_runs_with_it(masks, in_its_place):
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(16, 4, batch_first=True).train(), torch.randn(2, 5, 16)

    def outcome():
        module.zero_grad()
        o, _ = module(x, x, x, need_weights=False, **masks)
        o.square().sum().backward()
        return [o, *(p.grad for p in module.parameters())]

    theirs = outcome()
    in_its_place(softmax)
    for ours, want in zip(outcome(), theirs, strict=True):
        torch.testing.assert_close(ours, want, rtol=1e-4, atol=1e-5)
    in_its_place(scaled_dot_product_attention)
    assert not torch.allclose(outcome()[0], theirs[0])


def test_dropout_of_a_module_is_refused_in_training_alone(in_its_place):
    in_its_place(scaled_dot_product_attention)
    module, x = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.1), torch.randn(5, 2, 16)
    with pytest.raises(UnsupportedError, match="dropout_p"):
        module(x, x)
    assert module.eval()(x, x).shape == x.shape


def draw_qkv(*sizes):
    return [torch.randn(size, dtype=torch.float64) for size in sizes]


def hiding_mask(L, S):
    return torch.randn(L, S).double().masked_fill(torch.rand(L, S) > 0.7, -INF)


def draw_dense(L, S):
    return draw_qkv((2, 4, L, 8), (2, 4, S, 8), (2, 4, S, 3))


COMPILED = {
    "plain": lambda L, S: (draw_dense(L, S), {}),
    "more keys": lambda L, S: (draw_dense(L, S), {"is_causal": True}),
    "more queries": lambda L, S: (draw_dense(S, L), {"is_causal": True}),
    "bool": lambda L, S: (draw_dense(L, S), {"attn_mask": torch.rand(2, 1, L, S) > 0.3}),
    "added": lambda L, S: (draw_dense(L, S), {"attn_mask": hiding_mask(L, S)}),
    "three": lambda L, S: (draw_qkv((3, L, 8), (3, S, 8), (3, S, 3)), {}),
    "broadcast": lambda L, S: (draw_qkv((2, 1, L, 8), (1, 3, S, 8), (3, S, 3)), {}),
    "grouped": lambda L, S: (
        draw_qkv((2, 3, 4, L, 8), (1, 3, 2, S, 8), (1, 3, 2, S, 3)),
        {"enable_gqa": True, "attn_mask": hiding_mask(L, S)},
    ),
}


@pytest.mark.parametrize("draw", COMPILED.values(), ids=COMPILED)
@pytest.mark.slow
def test_compiled_call_is_one_graph_for_all_lengths(draw):
    torch._dynamo.reset()
    compiled = torch.compile(softmax, fullgraph=True, dynamic=True, backend="aot_eager")
    run(compiled, *draw(5, 7))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for L, S in ((6, 9), (3, 4)):
            tensors, options = draw(L, S)
            got, want = run(compiled, tensors, options), run(SDPA, tensors, options)
            for ours, theirs in zip(got, want, strict=True):
                close(ours, theirs)


def test_compiled_causal_call_keeps_the_length_of_all_keys():
    torch._dynamo.reset()
    call = partial(scaled_dot_product_attention, length="keys", is_causal=True)
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for L, S in ((5, 7), (4, 9), (9, 4)):
        tensors = draw_dense(L, S)
        close(compiled(*tensors), call(*tensors))


class Attends(nn.Module):
    def forward(self, query, key, value, attn_mask):
        return softmax(query, key, value, attn_mask)


def test_exported_call_serves_other_lengths():
    L, S = torch.export.Dim("L", min=2, max=64), torch.export.Dim("S", min=2, max=64)
    shapes = ({2: L}, {2: S}, {2: S}, {0: L, 1: S})

    def inputs(L, S):
        return (*draw_dense(L, S), hiding_mask(L, S))

    program = torch.export.export(Attends(), inputs(5, 7), dynamic_shapes=shapes)
    given = inputs(9, 4)
    close(program.module()(*given), SDPA(*given))


def test_gradients_of_gradients_are_those_of_sdpa():
    tensors = [x[:1, :1, :3].clone().requires_grad_() for x in (q, k, v)]
    added = torch.randn(3, 3).double().masked_fill(torch.eye(3) > 0, -INF).requires_grad_()
    call = partial(softmax, impl="reference")
    with sdpa_kernel(SDPBackend.MATH):
        grads = [
            torch.autograd.grad(c(*tensors, added).square().sum(), tensors, create_graph=True)
            for c in (call, SDPA)
        ]
        ours, theirs = (
            torch.autograd.grad(sum(g.square().sum() for g in group), [*tensors, added])
            for group in grads
        )
    for got, want in zip(ours, theirs, strict=True):
        close(got, want)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gpu_does_not_wait_to_read_masks(dtype):
    device = device_of("triton") if HAS_GPU else None
    tensors = [torch.randn(2, 4, 96, 64, device=device, dtype=dtype) for _ in range(3)]
    added = torch.zeros(96, 96, device=device, dtype=dtype).masked_fill(
        torch.ones(96, 96, device=device).triu(1) > 0, -INF
    )
    expected = SDPA(*tensors, is_causal=True)
    call = partial(softmax, *tensors)
    call(attn_mask=added)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [call(attn_mask=added), call(attn_mask=added == 0), call(is_causal=True)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for got in results:
        torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
