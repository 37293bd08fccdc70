"""Packed q, k and v with norms inside: numerics, norms, and where Inf and NaN may go."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from implementations import (
    FAST,
    IMPLEMENTATIONS,
    IN_PYTHON,
    TRITON,
    device_of,
    interpreted,
    on_gpu,
    placed,
    widest_dtype,
)
from numerics import assert_within_budget
from packed_numerics import assert_exact, make_inputs, norms, run
from results import assert_same, evaluate

from flashpoint import HeadNorm, attention, attention_qkvpacked
from flashpoint.ops.activation import BUILTIN

NAN = float("nan")
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
KINDS = {
    "no norm": (None, None),
    "layer": ("layer", "layer"),
    "rms": ("rms", "rms"),
    "layer and rms": ("layer", "rms"),
    "keys only": (None, "layer"),
}
every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_fast = pytest.mark.parametrize("impl", FAST)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_kind = pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)


@every_dtype
@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("gains", [False, True], ids=["bare", "gains"])
@every_kind
@every_fast
@interpreted(lambda activation, gains: activation == "relu" or (activation == "silu" and gains))
@on_gpu(lambda activation, gains: activation == "relu" or (activation == "silu" and gains))
@pytest.mark.pairwise
def test_every_norm_and_activation_is_exact(impl, kinds, gains, activation, dtype):
    inputs = make_inputs(gains=gains)
    assert_exact(impl, dtype, inputs, kinds, activation=activation)


@every_dtype
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L", [1, 2, 49, 50, 196, 197, 257])
@every_fast
@interpreted(lambda L, causal: L < 196 or not causal)
@pytest.mark.pairwise
def test_every_length_is_exact(impl, L, causal, dtype):
    assert_exact(impl, dtype, make_inputs(L=L), ("layer", "layer"), causal=causal)


@every_dtype
@pytest.mark.parametrize("D", [8, 24, 32, 64, 128])
@every_fast
def test_every_head_dim_is_exact(impl, D, dtype):
    inputs = make_inputs(1, 50, 2, D)
    assert_exact(impl, dtype, inputs, ("rms", "layer"), activation="sigmoid", bias=-1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("impl", TRITON)
def test_few_programs_do_the_work_of_many(impl, dtype, monkeypatch):
    """Each goes over several heads or blocks of rows, and adds up its share of the gains'."""
    from flashpoint.ops.gpu import replay
    from flashpoint.ops.gpu.device import gpu_of
    from flashpoint.ops.gpu.portable import qk_norm_passes, whole_heads

    small = gpu_of(device_of(impl))._replace(processors=1)
    for module in (qk_norm_passes, whole_heads):
        monkeypatch.setattr(module, "gpu_of", lambda _: small)
    monkeypatch.setattr(qk_norm_passes, "TILE", 256)
    monkeypatch.setattr(replay, "_recordings", {})
    assert_exact(impl, dtype, make_inputs(5, 33, 4), ("layer", "rms"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("impl", TRITON)
def test_statistics_of_rows_are_those_of_their_norms(impl, dtype):
    """Kernels that take gradients through the norms read means and r from memory."""
    from flashpoint.ops.gpu.call import Call
    from flashpoint.ops.gpu.portable.qk_norm_passes import normalize_heads
    from flashpoint.ops.gpu.replay import Recorder
    from flashpoint.ops.spec import NormTerms, Terms

    qkv = make_inputs(3, 11, 5, 24)["qkv"].to(device_of(impl), dtype)
    norm = NormTerms("layer", 1e-5, "rms", 1e-2)
    call = Call.packed(qkv, None, None, None, None, None, norm, Terms())
    made = normalize_heads(call, Recorder(qkv), has_statistics=True)
    q, k, _ = qkv.double().unbind(2)
    for name, x, has_mean, eps in (("q", q, True, 1e-5), ("k", k, False, 1e-2)):
        mean = x.mean(-1, keepdim=True)
        x = x - mean if has_mean else x
        r = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        torch.testing.assert_close(made[f"{name}_statistics"], torch.cat([mean, r], -1).float())
        torch.testing.assert_close(made[f"{name}_hat"], (x * r).to(dtype))


OPTIONS = {
    "alpha": {"alpha": 0.5, "causal": True},
    "keys": {"length": "keys", "causal": True, "scale": 0.3},
    "number": {"length": 7, "bias": 0.25},
    "window": {"window": (3, 2)},
    "bias": {"bias": torch.linspace(-1, 1, 17).bfloat16().double().view(17, 1)},
    "mask": {"mask": torch.linspace(0, 1, 34).bfloat16().double().view(2, 1, 1, 17)},
    "bool mask": {"mask": torch.arange(2 * 17 * 17).view(2, 1, 17, 17) % 3 > 0},
    "lengths": {"key_lengths": torch.tensor([0, 11])},
    "all": {
        "bias": torch.linspace(-1, 1, 2).double().view(2, 1, 1),
        "mask": torch.linspace(0, 1, 17).bfloat16().double(),
        "window": (6, None),
        "key_lengths": torch.tensor([17, 4]),
    },
}


@every_dtype
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@every_fast
def test_every_option_is_exact(impl, options, dtype):
    assert_exact(impl, dtype, make_inputs(), ("layer", "rms"), activation="gelu", **options)


@every_dtype
@every_fast
def test_keys_with_a_large_mean_keep_their_digits(impl, dtype):
    inputs = make_inputs(L=40, H=3, D=32)
    inputs["qkv"][:, :, 1] = (inputs["qkv"][:, :, 1] + 30.0).bfloat16().double()
    for kinds in (("layer", "layer"), ("layer", "rms")):
        assert_exact(impl, dtype, inputs, kinds, activation="silu")


@every_dtype
@pytest.mark.parametrize("value", [0.0, 3.0])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@every_fast
def test_rows_without_spread_are_exact(impl, kind, value, dtype):
    inputs = make_inputs()
    inputs["qkv"][0, 3] = inputs["qkv"][1, :, 1, 0] = value
    assert_exact(impl, dtype, inputs, (kind, kind), activation="softplus")


@every_fast
def test_gains_may_be_wider_than_the_rest(impl):
    inputs = make_inputs()
    dtype = torch.float16
    found = {}
    for gain_dtype in (torch.float32, dtype):
        place = partial(torch.Tensor.to, device=device_of(impl))
        qkv = place(inputs["qkv"]).to(dtype).requires_grad_()
        gains = [place(inputs[n]).to(gain_dtype).requires_grad_() for n in ("q_gain", "k_gain")]
        o = attention_qkvpacked(qkv, **norms(("layer", "rms"), *gains), impl=impl)
        grads = torch.autograd.grad(o, [qkv, *gains], place(inputs["do"]).to(dtype))
        assert [g.dtype for g in grads] == [dtype, gain_dtype, gain_dtype]
        found[gain_dtype] = [o, *grads]
    for wide, narrow in zip(*found.values(), strict=True):  # what bf16 holds, fp16 holds
        assert torch.equal(wide.to(dtype), narrow)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("gains", [False, True], ids=["bare", "gains"])
@every_impl
def test_norm_is_pytorchs_own(impl, gains, kind):
    inputs = placed(impl, make_inputs(gains=gains))
    gain = (inputs.get("q_gain"), inputs.get("k_gain"))
    q, k, v = (x.transpose(1, 2) for x in inputs["qkv"].unbind(2))
    norm = {"layer": F.layer_norm, "rms": F.rms_norm}[kind]
    q, k = (norm(x, (16,), g, eps=1e-5) for x, g in zip((q, k), gain, strict=True))
    expected = attention(q, k, v, causal=True, impl=impl).transpose(1, 2)
    options = {f"{n}_norm": HeadNorm(kind, g, 1e-5) for n, g in zip("qk", gain, strict=True)}
    got = attention_qkvpacked(inputs["qkv"], causal=True, impl=impl, **options)
    assert_same({"o": got}, {"o": expected})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_impl
def test_normalised_rows_are_rounded_once(impl, dtype):
    """What the products take is the fp32 norm in qkv's dtype, as autocast makes it of a layer."""
    inputs = make_inputs(D=32)
    qkv = inputs["qkv"].to(device_of(impl), dtype)
    gain = torch.linspace(0.5, 2, 32, device=qkv.device)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    q, k = (F.layer_norm(x.float(), (32,), gain, eps=1e-6).to(dtype) for x in (q, k))
    expected = attention(q, k, v, impl=impl).transpose(1, 2)
    got = attention_qkvpacked(qkv, **norms(("layer", "layer"), gain, gain), impl=impl)
    if impl in IN_PYTHON:
        assert torch.equal(got, expected)  # by PyTorch's norm on both sides
    assert_within_budget("o", got, expected.double(), expected)


STRIDES = {
    "q, k, v apart": lambda x: x.permute(2, 0, 1, 3, 4).contiguous().permute(1, 2, 0, 3, 4),
    "heads first": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "head dim apart": lambda x: x.transpose(1, 4).contiguous().transpose(1, 4),
    "every other token": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "one sample repeated": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("strides", STRIDES.values(), ids=STRIDES)
@every_impl
def test_strides_change_nothing(impl, strides):
    inputs = placed(impl, make_inputs(L=19))
    inputs["qkv"] = strides(inputs["qkv"])
    dtype = widest_dtype(impl)
    options = {"inputs": inputs, "kinds": ("layer", "rms"), "causal": True}
    dense = options | {"inputs": {n: x.contiguous() for n, x in inputs.items()}}
    got = run(impl, dtype, **options)
    assert got["o"].is_contiguous()
    assert_same(got, run(impl, dtype, **dense))


@every_impl
def test_gradient_of_any_strides_is_taken(impl):
    inputs = placed(impl, make_inputs())
    dense = run(impl, widest_dtype(impl), inputs, ("layer", "layer"))
    apart = inputs | {"do": inputs["do"].transpose(1, 3).contiguous().transpose(1, 3)}
    assert_same(run(impl, widest_dtype(impl), apart, ("layer", "layer")), dense)
    same = inputs | {"do": torch.ones_like(inputs["do"])}
    repeated = inputs | {"do": torch.ones_like(inputs["do"][:1, :1]).expand_as(inputs["do"])}
    first, second = (
        run(impl, widest_dtype(impl), given, ("layer", "layer")) for given in (same, repeated)
    )
    assert_same(first, second)


@every_fast
def test_same_call_twice_gives_the_same_bits(impl):
    inputs = make_inputs(3, 70, 3)
    first, second = (run(impl, torch.float32, inputs, ("layer", "rms")) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("causal", [False, True], ids=["one tile", "general"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3, 4], ids=["batch", "row", "part", "head", "dim"])
@pytest.mark.parametrize("impl", TRITON)
def test_offsets_beyond_int32_are_reached(impl, axis, causal, monkeypatch):
    far = 2**30 + 8  # the third of anything starts past 2**31 elements
    try:
        with monkeypatch.context() as patch:  # leave 4 GiB of memory unwritten
            patch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
            pool = torch.empty(2 * far + 4096, dtype=torch.float16, device=device_of(impl))
    except RuntimeError as error:  # of which out of memory is one
        pytest.skip(f"no room for {2 * far} elements: {error}")
    dense = torch.randn(3, 3, 3, 3, 3, generator=torch.Generator().manual_seed(0)).to(pool)
    strides = [256, 64, 16, 4, 1]
    strides[axis] = far
    spread = pool.as_strided(dense.shape, strides).copy_(dense)
    call = partial(attention_qkvpacked, **norms(("layer", "rms")), causal=causal)
    got = evaluate(partial(call, impl=impl), qkv=spread)
    reference = partial(call, impl="reference")
    exact, plain = (evaluate(reference, qkv=x) for x in (dense.double(), dense))
    for name, value in got.items():  # other strides may add in another order
        assert_within_budget(name, value, exact[name], plain[name])


@pytest.mark.parametrize("kind", [None, "layer", "rms"])
@every_impl
def test_nan_in_a_query_stays_in_its_row(impl, kind):
    inputs = placed(impl, make_inputs(L=50))
    inputs["qkv"][1, 7, 0, 1, 3] = NAN
    o = attention_qkvpacked(inputs["qkv"], **norms((kind, kind)), impl=impl)
    hit = torch.zeros_like(o, dtype=torch.bool)
    hit[1, 7, 1] = True
    assert torch.equal(o.isnan(), hit)


@pytest.mark.parametrize("poison", [NAN, float("inf")])
@pytest.mark.parametrize("kind", [None, "layer", "rms"])
@every_impl
def test_nothing_comes_of_keys_that_do_not_exist(impl, kind, poison):
    inputs = placed(impl, make_inputs(3, 9))
    lengths = torch.tensor([4, 0, 9], device=inputs["qkv"].device)
    bad = inputs | {"qkv": inputs["qkv"].clone()}
    for b, length in enumerate(lengths.tolist()):
        bad["qkv"][b, length:, 1:] = poison
    for options in ({}, {"window": (2, 1)}):
        found = [
            run(impl, widest_dtype(impl), x, (kind, kind), key_lengths=lengths, **options)
            for x in (bad, inputs)
        ]
        assert_same(*found)


@pytest.mark.parametrize("size", [(0, 5), (2, 0)], ids=["no samples", "no tokens"])
@every_impl
def test_empty_inputs_give_empty_results(impl, size):
    inputs = make_inputs(*size)
    got = run(impl, widest_dtype(impl), inputs, ("layer", "rms"))
    assert got["o"].shape == (*size, 2, 16)
    assert got["dqkv"].shape == inputs["qkv"].shape
    assert not got["dq_gain"].any()
    assert not got["dk_gain"].any()


@pytest.mark.parametrize("alone", ["qkv", "q_gain", "k_gain"])
@every_fast
def test_any_one_tensor_may_want_a_gradient(impl, alone):
    inputs = placed(impl, make_inputs())
    leaves = {n: inputs[n].requires_grad_(n == alone) for n in ("qkv", "q_gain", "k_gain")}
    gains = (leaves["q_gain"], leaves["k_gain"])
    o = attention_qkvpacked(leaves["qkv"], **norms(("layer", "rms"), *gains), impl=impl)
    o.backward(inputs["do"])
    full = run(impl, widest_dtype(impl), inputs, ("layer", "rms"))
    assert_same({alone: leaves[alone].grad}, {alone: full[f"d{alone}"]})
    assert all(leaves[n].grad is None for n in leaves if n != alone)


@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("impl", IN_PYTHON)
def test_gradients_agree_with_finite_differences(impl, activation):
    inputs = make_inputs(2, 4, 2, 3)
    bias = torch.linspace(-1, 1, 4, dtype=torch.float64)
    mask = torch.linspace(0.1, 1, 16, dtype=torch.float64).view(4, 4)
    leaves = [inputs["qkv"], inputs["q_gain"], inputs["k_gain"], bias, mask]
    leaves = [x.to(device_of(impl)).requires_grad_() for x in leaves]

    def call(qkv, q_gain, k_gain, bias, mask, kinds):
        options = {"activation": activation, "bias": bias, "mask": mask, "causal": True}
        return attention_qkvpacked(qkv, **norms(kinds, q_gain, k_gain), **options, impl=impl)

    for kinds in (("layer", "rms"), ("rms", "layer")):
        assert torch.autograd.gradcheck(partial(call, kinds=kinds), leaves, fast_mode=True)


def test_second_derivatives_of_the_reference_are_right():
    inputs = make_inputs(1, 3, 1, 3)
    leaves = [inputs[name].requires_grad_() for name in ("qkv", "q_gain", "k_gain")]

    def call(qkv, *gains, kinds):
        options = norms(kinds, *gains)
        return attention_qkvpacked(qkv, activation="silu", **options, impl="reference")

    for kinds in itertools.permutations(("layer", "rms")):
        assert torch.autograd.gradgradcheck(partial(call, kinds=kinds), leaves, fast_mode=True)
