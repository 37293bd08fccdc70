"""Heads that fit one tile: which calls their kernels take, how exactly, in any strides, again."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from implementations import HAS_TRITON, TRITON, device_of, interpreted, on_gpu
from numerics import assert_exact, assert_within_budget, make_inputs, make_qkv, run
from results import assert_same, evaluate

from flashpoint import (
    Activation,
    HeadNorm,
    attention,
    attention_qkvpacked,
    attention_varlen,
)
from flashpoint.ops.activation import BUILTIN

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton

from flashpoint.ops.gpu import replay
from flashpoint.ops.gpu.device import gpu_of
from flashpoint.ops.gpu.portable import whole_heads

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
on_triton = pytest.mark.parametrize("impl", TRITON)
SHAPE = (2, 3, 3, 17, 17, 32, 32)
SUMMED = {"activation": "relu4", "normalize": "sum", "floor": 1e-3}


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that are launched; nothing is replayed."""
    monkeypatch.setattr(replay, "_recordings", {})
    names, launch = [], replay.Recorder.launch

    def spy(recorder, kernel, *rest):
        names.append(kernel.__name__)
        launch(recorder, kernel, *rest)

    monkeypatch.setattr(replay.Recorder, "launch", spy)
    return names


@every_dtype
@pytest.mark.parametrize("L", [1, 17, 49, 50, 63, 64])
@on_triton
def test_every_length_is_exact(impl, L, dtype, launched):
    assert_exact(impl, dtype, make_inputs((2, 3, 3, L, L, 64, 64)))
    assert launched == ["whole_kernel", "whole_backward_kernel"]


@every_dtype
@pytest.mark.parametrize("D", [1, 3, 8, 24, 40, 64])
@on_triton
def test_every_head_dim_is_exact(impl, D, dtype, launched):
    assert_exact(impl, dtype, make_inputs((2, 2, 2, 33, 33, D, D)), activation="gelu")
    assert set(launched) == {"whole_kernel", "whole_backward_kernel"}


OPTIONS = {
    "alpha": {"alpha": 0.5},
    "no normalizer": {"alpha": 0.0},
    "keys": {"length": "keys", "alpha": 1.3},
    "number": {"length": 7},
    "scale": {"scale": 0.7},
    "far scale": {"scale": 2.0**-14},
    "bias": {"bias": -0.4},
    "all": {"alpha": 0.7, "length": 5.5, "scale": 0.3, "bias": 0.25},
}


@every_dtype
@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@on_triton
@interpreted(lambda activation, options: activation in ("relu", "silu") or len(options) > 2)
@on_gpu(lambda activation, options: activation in ("relu", "silu") or len(options) > 2)
def test_every_number_is_taken(impl, options, activation, dtype, launched):
    assert_exact(impl, dtype, make_inputs(SHAPE), activation=activation, **options)
    assert set(launched) == {"whole_kernel", "whole_backward_kernel"}


@triton.jit
def squared(s):
    return s * s


@triton.jit
def doubled(s):
    return 2.0 * s


SQUARE = Activation("square", torch.square, degree=2, triton=(squared, doubled))
BEYOND = {
    "65 tokens": ((2, 3, 3, 65, 65, 32, 32), {}),
    "wide heads": ((2, 3, 3, 17, 17, 65, 65), {}),
    "other values": ((2, 3, 3, 17, 17, 32, 16), {}),
    "more keys": ((2, 3, 3, 17, 18, 32, 32), {}),
    "grouped": ((2, 4, 2, 17, 17, 32, 32), {}),
    "own activation": (SHAPE, {"activation": SQUARE}),
    "causal": (SHAPE, {"causal": True}),
    "window": (SHAPE, {"window": (3, None)}),
    "mask": (SHAPE, {"mask": torch.linspace(0, 1, 17).bfloat16().double()}),
    "bool mask": (SHAPE, {"mask": torch.arange(17) % 3 > 0}),
    "lengths": (SHAPE, {"key_lengths": torch.tensor([17, 5])}),
}


@every_dtype
@pytest.mark.parametrize(("shape", "options"), BEYOND.values(), ids=BEYOND)
@on_triton
def test_calls_beyond_are_exact_by_other_kernels(impl, shape, options, dtype, launched):
    assert_exact(impl, dtype, make_inputs(shape), **options)
    assert not {"whole_kernel", "whole_backward_kernel"} & set(launched)


@on_triton
def test_fp32_is_exact_by_other_kernels(impl, launched):
    assert_exact(impl, torch.float32, make_inputs(SHAPE))
    assert not {"whole_kernel", "whole_backward_kernel"} & set(launched)


@every_dtype
@on_triton
def test_sequences_in_a_row_take_other_kernels(impl, dtype, launched):
    tensors = make_qkv((1, 2, 2, 20, 20, 16, 16), dtype)
    ends = torch.tensor([0, 9, 20], device=device_of(impl))
    ends = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 11, "max_seqlen_k": 11}
    call = partial(attention_varlen, **ends, impl=impl)
    evaluate(call, **{name: t[0].transpose(0, 1) for name, t in tensors.items()})
    assert launched
    assert not {"whole_kernel", "whole_backward_kernel"} & set(launched)


STRIDES = {
    "tokens first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "head dim apart": lambda x: x.mT.contiguous().mT,
    "every other token": lambda x: x.repeat_interleave(2, 2)[:, :, ::2],
    "odd pitch": lambda x: F.pad(x, (0, 1))[..., :-1],
    "odd address": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "one sample repeated": lambda x: x[:1].expand(x.shape),
    "one number repeated": lambda x: x[:1, :1, :1, :1].expand(x.shape),
}


@every_dtype
@pytest.mark.parametrize("name", ["q", "k", "v", "do", "all"])
@pytest.mark.parametrize("strides", STRIDES.values(), ids=STRIDES)
@on_triton
@on_gpu(lambda name, dtype: dtype == torch.bfloat16 or name == "all")
def test_strides_change_nothing(impl, strides, name, dtype, launched):
    inputs = {n: x.to(device_of(impl), dtype) for n, x in make_inputs(SHAPE).items()}
    apart = {n: strides(x) if name in (n, "all") else x for n, x in inputs.items()}
    found = []
    for given in (apart, {n: x.contiguous() for n, x in apart.items()}):
        leaves = {n: given[n].requires_grad_() for n in ("q", "k", "v")}
        o = attention(**leaves, activation="silu", impl=impl)
        grads = torch.autograd.grad(o, list(leaves.values()), given["do"])
        assert all(x.is_contiguous() for x in (o, *grads))
        found.append({"o": o.detach()} | dict(zip(("dq", "dk", "dv"), grads, strict=True)))
    assert_same(*found, torch.finfo(dtype).eps)
    assert set(launched) == {"whole_kernel", "whole_backward_kernel"}


@every_dtype
@on_triton
def test_parts_of_qkv_are_as_their_copies(impl, dtype):
    """Plain calls on views and on copies and a packed call are one kernel's work."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 49, 3, 2, 64, generator=generator).to(device_of(impl), dtype)
    parts = dict(zip("qkv", (x.transpose(1, 2) for x in qkv.unbind(2)), strict=True))
    call = partial(attention, activation="sigmoid", impl=impl)
    views = evaluate(call, **parts)
    copies = evaluate(call, **{n: x.contiguous() for n, x in parts.items()})
    assert_same(views, copies, torch.finfo(dtype).eps)
    packed = evaluate(
        lambda qkv: attention_qkvpacked(qkv, activation="sigmoid", impl=impl).transpose(1, 2),
        qkv=qkv,
    )
    apart = [x.transpose(1, 2) for x in packed["dqkv"].unbind(2)]
    named = zip(("o", "dq", "dk", "dv"), (packed["o"], *apart), strict=True)
    assert_same(dict(named), views, torch.finfo(dtype).eps)


@every_dtype
@on_triton
def test_few_programs_do_the_work_of_many(impl, dtype, monkeypatch, launched):
    small = gpu_of(device_of(impl))._replace(processors=1)
    monkeypatch.setattr(whole_heads, "gpu_of", lambda _: small)
    assert_exact(impl, dtype, make_inputs((5, 4, 4, 33, 33, 16, 16)))
    assert set(launched) == {"whole_kernel", "whole_backward_kernel"}


# how large q and k, v and do are: scores of about size ** 2, as far as fp16 weights carry
@pytest.mark.parametrize(
    ("activation", "size", "value"), [("relu", 300.0, 1.0), ("relu2", 16.0, 2.0**-4)]
)
@on_triton
def test_large_scores_in_fp16_cost_no_digits(impl, activation, size, value):
    factors = {"q": size, "k": size, "v": value, "do": 1.0}
    inputs = make_inputs((1, 2, 2, 60, 60, 64, 64))
    inputs = {name: (t * factors[name]).half().double() for name, t in inputs.items()}
    exact = run("reference", torch.float64, inputs, device_of(impl), activation=activation)
    got = run(impl, torch.float16, inputs, activation=activation)
    for name, value in got.items():
        assert_within_budget(name, value, exact[name], plain=exact[name].half())


BIASES = {
    "per pair": (1, 3, 17, 17),
    "of all heads": (1, 1, 17, 17),
    "per sample": (5, 3, 17, 17),
    "per key": (1, 3, 1, 17),
    "a number": (1, 1, 1, 1),
}


@pytest.mark.parametrize("options", [{}, {"activation": "silu", "alpha": 0.5}, SUMMED])
@pytest.mark.parametrize("shape", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("programs", [1, 264])
@on_triton
@interpreted(lambda shape, options, programs: programs == 1 or shape[1] == 3)
@pytest.mark.pairwise
@pytest.mark.long_interpreted
def test_a_bias_and_its_gradient_are_exact(impl, programs, shape, options, launched, monkeypatch):
    """Where a program has several heads, it sums the gradient of the bias that they share."""
    if programs == 1:
        gpu = gpu_of(torch.device(device_of(impl)))._replace(processors=1)
        monkeypatch.setattr(whole_heads, "gpu_of", lambda _: gpu)
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    inputs = make_inputs((5, 3, 3, 17, 17, 32, 32))
    assert_exact(impl, torch.float16, inputs, bias=bias, **options)
    assert "whole_backward_kernel" in launched
    summed = shape == BIASES["per pair"]
    assert ("backward_scored_kernel" in launched) == (not summed)


@pytest.mark.parametrize("sizes", [(1, 3, 17, 17), (1, 3, 17, 1)], ids=["summed", "scored"])
@on_triton
def test_packed_heads_give_the_gradient_of_a_bias_and_those_of_gains(impl, sizes, monkeypatch):
    """Programs that have several heads, and norms, which the kernel for dbias alone has not."""
    gpu = gpu_of(torch.device(device_of(impl)))._replace(processors=1)
    monkeypatch.setattr(whole_heads, "gpu_of", lambda _: gpu)
    qkv = torch.randn(5, 17, 3, 3, 32, dtype=torch.float64)
    bias, gain = torch.randn(sizes), torch.rand(32)
    got, expected = [], []
    for way, dtype, found in ((impl, torch.float16, got), ("reference", torch.float64, expected)):
        place = device_of(way)
        leaves = [x.to(place, dtype).requires_grad_() for x in (qkv, bias, gain)]
        norm = HeadNorm("rms", leaves[2])
        o = attention_qkvpacked(leaves[0], bias=leaves[1], q_norm=norm, impl=way)
        found += [o, *torch.autograd.grad(o.square().sum(), leaves)]
    for a, b in zip(got, expected, strict=True):
        assert (a.cpu().double() - b).norm() < 0.02 * b.norm()
