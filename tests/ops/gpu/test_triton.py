"""What only Triton's kernels have: refusals, activations of their own, ways to load, powers."""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from implementations import (
    HAS_TRITON,
    TRITON,
    device_of,
    interpreted,
    needs_gpu,
    on_gpu,
)
from numerics import assert_exact, assert_within_budget, make_inputs, make_qkv, run
from results import assert_same, evaluate

from flashpoint import Activation, InputError, UnsupportedError, attention, attention_varlen

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
import triton.language as tl

from flashpoint.ops.gpu import call as call_module
from flashpoint.ops.gpu import dispatch, replay
from flashpoint.ops.gpu.normalizer import over_power, power_of

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
on_triton = pytest.mark.parametrize("impl", TRITON)
on_a_gpu = pytest.mark.gpu


def refusal(call, error=UnsupportedError):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


# Memory that nobody wrote


@on_triton
def test_fresh_memory_is_nan_in_these_tests(impl):
    device = device_of(impl)
    q = torch.ones(2, 3, device=device)
    assert torch.empty(5, device=device).isnan().all()
    assert q.new_empty(2, 2).isnan().all()
    assert torch.empty_like(q).isnan().all()


# Refusals


def test_fp64_is_refused():
    q = torch.zeros(1, 1, 3, 8, dtype=torch.float64, device=device_of("triton"))
    assert refusal(lambda: attention(q, q, q, impl="triton")) == (
        "impl='triton' serves float16, bfloat16 and float32, not float64. Pass impl='reference'."
    )


@pytest.mark.parametrize(("D", "Dv"), [(257, 8), (8, 257)])
def test_head_dim_beyond_the_largest_is_refused(D, Dv):
    q = torch.zeros(1, 1, 3, D, device=device_of("triton"))
    v = torch.zeros(1, 1, 3, Dv, device=q.device)
    assert refusal(lambda: attention(q, q, v, impl="triton")) == (
        f"impl='triton' serves head dims up to 256, not D={D}, Dv={Dv}. Pass impl='reference'."
    )


def test_cpu_tensors_are_refused_where_kernels_are_compiled():
    code = """
import torch, flashpoint
q = torch.zeros(1, 1, 3, 8)
for call in (
    lambda: flashpoint.attention(q, q, q, impl="triton"),
    lambda: flashpoint.attention_varlen(
        q[0], q[0], q[0], torch.tensor([0, 1]), torch.tensor([0, 1]), 1, 1, impl="triton"
    ),
):
    try:
        call()
    except flashpoint.UnsupportedError as error:
        print(error)
"""
    usual = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, env=usual, capture_output=True, text=True, check=True)
    line = (
        "impl='triton' needs CUDA tensors, q is on cpu. Move the tensors, or pass impl='auto'.\n"
    )
    assert printed.stdout == 2 * line


def test_activation_without_kernels_is_refused():
    mine = Activation("mine", torch.sin)
    assert refusal(lambda: attention(**make_qkv(), activation=mine, impl="triton")) == (
        "impl='triton' needs activation 'mine' as @triton.jit functions too. "
        "Pass Activation(..., triton=(h, derivative)), or impl='reference'."
    )


@on_a_gpu
@needs_gpu
@pytest.mark.parametrize("case", ["activation", "fp64", "head dim"])
def test_auto_takes_the_reference_for_what_kernels_do_not_serve(case):
    shape = (1, 2, 1, 5, 7, 300 if case == "head dim" else 8, 8)
    tensors = make_qkv(shape, torch.float64 if case == "fp64" else torch.float32)
    options = {"activation": Activation("mine", torch.sin)} if case == "activation" else {}
    got = evaluate(partial(attention, **options), **tensors)
    expected = evaluate(partial(attention, impl="reference", **options), **tensors)
    assert all(torch.equal(got[name], expected[name]) for name in got)


@on_a_gpu
@needs_gpu
def test_auto_takes_triton_for_cuda_tensors():
    tensors = make_qkv()
    assert torch.equal(attention(**tensors), attention(**tensors, impl="triton"))


# Activations of one's own


@triton.jit
def leaky(s):
    return tl.where(s > 0.0, s, 0.01 * s)


@triton.jit
def leaky_slope(s):
    return tl.where(s > 0.0, 1.0, 0.01)


@triton.jit
def shifted_exp(s):
    return tl.exp(s - 1.0)


PAIRS = {
    "leaky": (F.leaky_relu, (leaky, leaky_slope), {"degree": 1}),
    "exp": (lambda s: (s - 1).exp(), (shifted_exp, shifted_exp), {}),  # not zero at zero
}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True, "bias": 0.3},
    "lengths": {"key_lengths": torch.tensor([0, 33]), "window": (50, 4), "alpha": 0.5},
}


@every_dtype
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("function", "pair", "others"), PAIRS.values(), ids=PAIRS)
@on_triton
@interpreted(lambda dtype, options: dtype == torch.float32 or not options)
@on_gpu(lambda dtype, pair, options: dtype == torch.bfloat16 or (pair[0] is leaky and not options))
def test_own_pair_of_kernels_matches_its_torch_version(
    impl, function, pair, others, options, dtype
):
    mine = Activation("mine", function, triton=pair, **others)
    inputs = make_inputs((2, 2, 1, 40, 70, 16, 16))
    assert_exact(impl, dtype, inputs, activation=mine, **options)


@on_triton
def test_own_pair_of_kernels_serves_packed_sequences_and_bias(impl):
    mine = Activation("mine", *PAIRS["exp"][:1], triton=PAIRS["exp"][1])
    tensors = {name: t[0].transpose(0, 1) for name, t in make_qkv((1, 4, 2, 9, 9, 8, 8)).items()}
    tensors["bias"] = torch.linspace(-1, 1, 5, device=device_of(impl)).view(1, 1, 1, 5)
    ends = torch.tensor([0, 4, 9], device=device_of(impl))
    call = partial(
        attention_varlen,
        cu_seqlens_q=ends,
        cu_seqlens_k=ends,
        max_seqlen_q=5,
        max_seqlen_k=5,
        activation=mine,
    )
    got = evaluate(partial(call, impl=impl), **tensors)
    assert_same(got, evaluate(partial(call, impl="reference"), **tensors))


@pytest.mark.parametrize("pair", [leaky, (leaky,), (leaky, F.relu), [leaky, leaky_slope]])
def test_wrong_pair_of_kernels_is_refused(pair):
    line = refusal(lambda: Activation("mine", F.leaky_relu, triton=pair), InputError)
    assert line.startswith(
        "Activation 'mine': triton must be a pair of @triton.jit functions (h, derivative) or None"
    )
    assert "\n" not in line


# Shapes and strides


@every_dtype
@pytest.mark.parametrize(
    ("D", "Dv"), [(72, 72), (80, 80), (88, 88), (96, 96), (256, 256), (16, 256), (128, 40), (3, 5)]
)
@on_triton
@interpreted(lambda dtype, D: dtype == torch.float32 or D in (72, 3))
@on_gpu(lambda dtype, D: dtype == torch.bfloat16 or D in (72, 3))
def test_any_head_dim_matches_reference(impl, D, Dv, dtype):
    inputs = make_inputs((1, 2, 1, 33, 70, D, Dv))
    assert_exact(impl, dtype, inputs, activation="silu", causal=True)


@pytest.mark.usual_tiles
@every_dtype
@on_triton
def test_tiles_of_the_usual_size_match_reference(impl, dtype):
    inputs = make_inputs((1, 2, 1, 150, 140, 16, 16))
    assert_exact(impl, dtype, inputs, causal=True)


def shifted(x):
    """The same values one element further in memory: no longer on 16 bytes."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def pitched(x):
    """The same values in rows of an odd pitch."""
    return F.pad(x, (0, 1))[..., :-1]


IRREGULAR = {"shifted": shifted, "pitched": pitched, "turned": lambda x: x.mT.contiguous().mT}


@pytest.mark.parametrize("name", ["q", "k", "v", "all"])
@pytest.mark.parametrize("layout", IRREGULAR.values(), ids=IRREGULAR)
@on_triton
@interpreted(lambda layout, name: layout is shifted or name == "all")
@on_gpu(lambda layout, name: layout is shifted or name == "all")
def test_irregular_input_takes_another_path_to_the_same_result(impl, layout, name):
    regular = make_qkv((1, 2, 1, 40, 70, 32, 16))
    odd = {n: layout(t) if name in (n, "all") else t for n, t in regular.items()}
    call = partial(attention, activation="gelu", window=(20, 3), impl=impl)
    assert_same(evaluate(call, **odd), evaluate(call, **regular))


PATHS = {
    "plain": {},
    "causal": {"causal": True, "activation": "gelu"},
    "window": {"window": (30, 5), "bias": -0.1, "activation": "sigmoid"},
    "lengths": {"key_lengths": torch.tensor([0, 93]), "causal": True},
    "float mask": {"mask": torch.linspace(-1, 1, 130)},
    "bool mask": {"mask": torch.arange(130) % 3 > 0, "causal": True},
}


@pytest.mark.parametrize("most", [0, 2**30], ids=["descriptors", "pointers"])
@pytest.mark.parametrize("options", PATHS.values(), ids=PATHS)
@every_dtype
@on_triton
@interpreted(lambda dtype: dtype == torch.float16)
@on_gpu(lambda dtype, options: dtype == torch.bfloat16 or "window" in options)
def test_both_ways_to_load_match_reference(impl, dtype, options, most, monkeypatch):
    monkeypatch.setattr(call_module, "MOST_KEYS_BY_POINTERS", most)
    replay._recordings.clear()  # of the other way
    inputs = make_inputs((2, 2, 1, 70, 130, 32, 16))
    assert_exact(impl, dtype, inputs, **options)
    replay._recordings.clear()


@every_dtype
@on_triton
def test_expanded_gradient_is_as_its_copy(impl, dtype):
    tensors = {name: t.requires_grad_() for name, t in make_qkv(dtype=dtype).items()}
    o = attention(**tensors, impl=impl)
    expanded = torch.ones((), dtype=dtype, device=o.device).expand_as(o)  # as sum() makes it
    leaves = list(tensors.values())
    got = torch.autograd.grad(o, leaves, expanded, retain_graph=True)
    expected = torch.autograd.grad(o, leaves, expanded.contiguous())
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


DECODING = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (300, 0), "alpha": 0.5},
    "lengths": {"key_lengths": torch.tensor([0, 600]), "activation": "sigmoid"},
    "power": {"key_lengths": torch.tensor([0, 600]), "causal": True, "alpha": 0.7},
    "bool mask": {"mask": torch.arange(700) % 3 > 0},
    "bias and mask": {"bias": torch.linspace(-1, 1, 700), "mask": torch.rand(2, 1, 1, 700)},
}


@every_dtype
@pytest.mark.parametrize("options", DECODING.values(), ids=DECODING)
@on_triton
@interpreted(lambda dtype, options: dtype == torch.float32 or "bias" in options or not options)
@on_gpu(lambda dtype, options: dtype == torch.bfloat16 or "bias" in options)
@pytest.mark.long_interpreted
def test_few_queries_of_many_keys_match_reference(impl, options, dtype):
    inputs = make_inputs((2, 2, 1, 3, 700, 32, 16))
    assert dispatch.DECODE_KEYS <= 700
    assert_exact(impl, dtype, inputs, **options)


# how large q and k, v and do are: scores of about size ** 2, as far as fp16 weights carry
@pytest.mark.parametrize(
    ("activation", "size", "value"), [("relu", 300.0, 1.0), ("relu2", 16.0, 2.0**-4)]
)
@on_triton
def test_large_scores_in_fp16_cost_no_digits(impl, activation, size, value):
    inputs = make_inputs((1, 2, 1, 40, 60, 64, 16))
    factors = {"q": size, "k": size, "v": value, "do": 1.0}
    inputs = {name: (t * factors[name]).half().double() for name, t in inputs.items()}
    scores = inputs["q"] @ inputs["k"].mT / 8
    assert scores.max() > {"relu": 65504, "relu2": 256}[activation]  # h overflows without care
    exact = run("reference", torch.float64, inputs, device_of(impl), activation=activation)
    got = run(impl, torch.float16, inputs, activation=activation)
    for name, value in got.items():
        assert_within_budget(name, value, exact[name], plain=exact[name].half())


# Powers of lengths


@triton.jit
def power_kernel(powers, lengths, alpha, POWER: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(powers + at, over_power(1.0, tl.load(lengths + at), alpha, POWER))


@pytest.mark.parametrize("alpha", [-1.3, 0.5, 0.7, 1.0, 1.7, 10 / 3])
def test_powers_of_lengths_have_their_digits(alpha):
    """Two exponentials and a few roundings, log2's error and rounding times alpha: in epsilons."""
    whole = torch.arange(1, 2049)
    lengths = torch.cat([whole, 2048 * whole - 1, 8191 * whole]).float().to(device_of("triton"))
    powers = torch.empty_like(lengths)
    word, number = power_of(alpha)
    power_kernel[(6,)](powers, lengths, number, word, 1024)
    exact = lengths.double() ** -torch.tensor(alpha).double()  # alpha as fp32 holds it
    error = (powers.double() / exact - 1.0).abs().max()
    assert error <= (5.0 + 3.0 * abs(alpha)) * torch.finfo(torch.float32).eps


# dk and dv of queries that see few of many keys


@pytest.mark.parametrize("activation", ["relu", "relu2"])
@pytest.mark.parametrize("hides", ["lengths", "mask", "causal"])
@pytest.mark.parametrize("alpha", [0.5, 1.0])
@on_triton
@pytest.mark.pairwise
def test_few_visible_keys_of_many_keep_fp16_gradients_finite(impl, alpha, activation, hides):
    shape = (1, 1, 1, 16, 4096, 64, 64)
    options = {
        "lengths": {"key_lengths": torch.tensor([4])},
        "mask": {"mask": (torch.arange(4096) < 4).expand(16, 4096)},
        "causal": {"causal": True, "window": (3, None)},
    }[hides]
    inputs = make_inputs(shape)
    inputs["do"] = 4 * inputs["do"]
    assert_exact(impl, torch.float16, inputs, activation=activation, alpha=alpha, **options)


@pytest.mark.parametrize("name", ["bias", "mask"])
@on_triton
def test_decoding_reads_no_head_beyond_the_last(impl, name):
    far = 2**26  # past the last head lies memory that is not ours
    memory = torch.zeros(far + 512, device=device_of(impl))
    tensor = memory.as_strided((1, 2, 1, 512), (2 * far, far, 512, 1))
    q, k, v = make_qkv((1, 2, 2, 1, 512, 16, 16)).values()
    assert attention(q, k, v, **{name: tensor}, impl=impl).isfinite().all()
