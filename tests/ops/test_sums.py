"""Rows' sums of weights, given and divided by: the laws that they add to the operator's."""

from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from implementations import (
    FAST,
    HAS_GPU,
    IMPLEMENTATIONS,
    device_of,
    interpreted,
    on_gpu,
    placed,
    serves,
    widest_dtype,
)
from numerics import assert_within_budget
from random_calls import NONNEGATIVE, calls, give, law, problems
from results import assert_same, evaluate

from flashpoint import Activation, attention, attention_qkvpacked, attention_varlen
from flashpoint.ops.activation import ACTIVATIONS

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_floor = pytest.mark.parametrize("floor", [0.0, 1e-3])
floors = st.sampled_from([0.0, 1e-3, 0.5])
division = {"normalize": st.just("sum"), "floor": floors}
powers = tuple(name for name in NONNEGATIVE if ACTIVATIONS[name].degree)


@law(
    call=calls(
        {"activation": st.sampled_from(NONNEGATIVE), "scale": st.sampled_from([None, 0.3, -1.5])},
        {"length": st.sampled_from([1, 7, 0.4])},
        division,
        sums=False,
    ),
    cuts=st.lists(st.integers(0, 8), max_size=3),
)
def test_numerators_and_sums_of_shards_add_up(impl, call, cuts):
    """What sequences over several devices rest on: o_i (z_i + floor n_i) and z_i are sums."""
    tensors, options = call
    num_keys = tensors["k"].shape[2]
    edges = sorted({0, num_keys, *(min(cut, num_keys) for cut in cuts)})
    shards = [slice(a, b) for a, b in pairwise(edges)] or [slice(0, 0)]
    floor = options["floor"] * options["length"]

    def at(x, keys):
        has_keys = isinstance(x, torch.Tensor) and x.dim() and x.shape[-1] > 1
        return x[..., keys] if has_keys else x

    def attend_shards(q, k, v, **others):
        numerator = divisor = 0.0
        for keys in shards:
            own = {n: at(x, keys) if n in ("bias", "mask") else x for n, x in others.items()}
            part = k[:, :, keys], v[:, :, keys]
            o, sums = attention(q, *part, **own, return_sums=True, impl=impl)
            numerator = numerator + o * (sums + floor)[..., None]
            divisor = divisor + sums
        whole = (divisor + floor)[..., None]
        return numerator / whole.masked_fill(whole == 0, 1), divisor

    summed = evaluate(partial(attend_shards, **placed(impl, options)), **placed(impl, tensors))
    at_once = give(impl, tensors, options | {"return_sums": True})
    assert_same({name: t.cpu() for name, t in summed.items()}, at_once)


@law(tensors=problems(), floor=floors, factor=st.sampled_from([0.25, 3.0]), data=st.data())
def test_powers_know_no_size_of_scores(impl, tensors, floor, factor, data):
    """h(c s) = c^p h(s): scores c times as large are a floor c^p times as small."""
    name = data.draw(st.sampled_from(powers))
    degree = ACTIVATIONS[name].degree
    call = partial(attention, activation=name, normalize="sum", impl=impl)
    here = placed(impl, tensors)
    scaled = call(**here | {"q": here["q"] * factor}, floor=floor * factor**degree)
    assert_same({"o": scaled}, {"o": call(**here, floor=floor)})


def visible_keys(Lq, Lk, seed):
    """A mask of which every row sees a key."""
    seen = torch.rand(2, 1, Lq, Lk, generator=torch.Generator().manual_seed(seed)) < 0.6
    seen[..., 0] = True
    return seen


SOFTMAX = {
    "all": ((2, 4, 2, 9, 12, 8, 6), {}),
    "causal": ((2, 2, 2, 13, 13, 8, 8), {"causal": True}),
    "mask": ((2, 2, 1, 9, 12, 8, 8), {"mask": visible_keys(9, 12, 1)}),
    "scale": ((1, 2, 2, 70, 130, 16, 16), {"scale": 0.5}),
    "decode": ((1, 2, 2, 1, 520, 16, 16), {}),
}
DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def sdpa(q, k, v, causal=False, mask=None, scale=None):
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=True)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(("shape", "options"), SOFTMAX.values(), ids=SOFTMAX)
@every_impl
@interpreted(lambda dtype: dtype == torch.float32)
@on_gpu(lambda dtype: dtype == torch.bfloat16)
def test_exp_over_its_sum_is_softmax(impl, shape, options, dtype):
    B, Hq, Hkv, Lq, Lk, D, Dv = shape
    generator = torch.Generator().manual_seed(0)
    sizes = {"q": (B, Hq, Lq, D), "k": (B, Hkv, Lk, D), "v": (B, Hkv, Lk, Dv)}
    wide = {n: torch.randn(s, generator=generator).to(dtype).double() for n, s in sizes.items()}
    call = partial(attention, activation="exp", normalize="sum", floor=0.0, impl=impl)
    here = {name: t.to(device_of(impl), dtype) for name, t in wide.items()}
    placed_options = placed(impl, options)
    got = evaluate(partial(call, **placed_options), **here)
    exact = evaluate(partial(sdpa, **options), **wide)
    if dtype in (torch.float64, torch.float32):
        assert_same(got, {name: t.to(got[name]) for name, t in exact.items()})
        return
    near = evaluate(partial(sdpa, **placed_options), **here)
    for name, value in got.items():
        assert_within_budget(name, value.cpu(), exact[name], near[name].cpu())


BLIND = {
    "negative scores": ("relu4", {"bias": -50.0}),
    "scores of zero": ("relu", {"scale": 0.0}),
    "masked": ("exp", {"mask": torch.zeros(1, 1, 1, 1, dtype=torch.bool)}),
    "factors of zero": ("softplus", {"mask": torch.zeros(1, 1, 1, 1)}),
    "no keys": ("exp", {"key_lengths": torch.tensor([0, 0])}),
    "no keys in the window": ("sigmoid", {"window": (0, 0), "key_lengths": torch.tensor([0, 0])}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("activation", "options"), BLIND.values(), ids=BLIND)
@every_floor
@every_impl
@pytest.mark.pairwise
def test_row_of_zeros_is_zero_with_gradients_of_zero(impl, activation, options, floor, dtype):
    generator = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(2, 2, 9, 8, generator=generator).to(dtype) for n in "qkv"}
    options = placed(impl, options)
    given = {"activation": activation, "normalize": "sum", "floor": floor, "return_sums": True}
    found = evaluate(partial(attention, **given, **options, impl=impl), **placed(impl, tensors))
    for name, value in found.items():
        assert not value.any(), name


@every_floor
@every_impl
def test_some_rows_of_zeros_leave_the_others_alone(impl, floor):
    """Of queries whose scores are all negative; with NaN where nobody looks."""
    torch.manual_seed(0)
    q, k, v = (torch.rand(1, 2, 6, 4, device=device_of(impl)) for _ in range(3))
    q[:, :, ::2] *= -1
    call = partial(attention, activation="relu4", normalize="sum", floor=floor, impl=impl)
    lengths = torch.tensor([4], device=q.device)
    k[:, :, 4:], v[:, :, 4:] = torch.nan, torch.nan
    found = evaluate(partial(call, key_lengths=lengths), q=q, k=k, v=v)
    assert not found["o"][:, :, ::2].any()
    assert not found["dq"][:, :, ::2].any()
    assert found["o"][:, :, 1::2].all()
    assert all(t.isfinite().all() for t in found.values())
    alone = evaluate(call, q=q[:, :, 1::2], k=k[:, :, :4], v=v[:, :, :4])
    assert_same({"o": found["o"][:, :, 1::2]}, {"o": alone["o"]})


@every_impl
def test_query_that_sees_one_key_gives_its_value(impl):
    torch.manual_seed(0)
    q, k, v = (torch.rand(2, 2, 5, 8, device=device_of(impl)) + 0.1 for _ in range(3))
    call = partial(attention, activation="relu4", normalize="sum", floor=0.0, window=(0, 0))
    found = evaluate(partial(call, impl=impl), q=q, k=k, v=v)
    torch.testing.assert_close(found["o"], v)
    assert found["dq"].abs().max() < 1e-4
    assert found["dk"].abs().max() < 1e-4


def forms(impl):
    """The three functions on the same numbers, and how their sums come to [B, H, L]."""
    torch.manual_seed(0)
    qkv = torch.randn(2, 7, 3, 2, 8, device=device_of(impl), dtype=widest_dtype(impl))
    ends = torch.tensor([0, 7, 14], device=qkv.device)

    def dense(qkv, **options):
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        o, sums = attention(q, k, v, **options)
        return o.transpose(1, 2), sums

    def varlen(qkv, **options):
        q, k, v = qkv.flatten(0, 1).unbind(1)
        o, sums = attention_varlen(q, k, v, ends, ends, 7, 7, **options)
        return o.unflatten(0, (2, 7)), sums.unflatten(1, (2, 7)).transpose(0, 1)

    return qkv, (dense, varlen, attention_qkvpacked)


@pytest.mark.parametrize("normalize", ["length", "sum"])
@every_impl
def test_three_functions_give_the_same_sums(impl, normalize):
    qkv, functions = forms(impl)
    options = {"normalize": normalize, "activation": "softplus", "causal": True}
    first, *others = (
        evaluate(partial(f, **options, return_sums=True, impl=impl), qkv=qkv) for f in functions
    )
    assert first["sums"].shape == (2, 2, 7)
    for other in others:
        assert_same(other, first)


def one_number(x):
    return x.new_ones(()).expand_as(x)


def turned(x):
    numbers = torch.arange(x.numel(), device=x.device, dtype=x.dtype).sin()
    return numbers.view(x.shape[::-1]).permute(*reversed(range(x.dim())))


def negated(x):
    return torch._neg_view(turned(x))


@pytest.mark.parametrize("strides", [one_number, turned, negated])
@pytest.mark.parametrize("normalize", ["length", "sum"])
@every_impl
def test_gradient_of_sums_may_lie_in_any_strides(impl, normalize, strides):
    """That of sums.sum() repeats one number."""
    qkv, functions = forms(impl)
    for function in functions:
        x = qkv.clone().requires_grad_()
        made = function(x, normalize=normalize, return_sums=True, impl=impl)
        given = [torch.ones_like(made[0]), strides(made[1])]
        got, expected = (
            torch.autograd.grad(made, x, [g(t) for t in given], retain_graph=True)[0]
            for g in (lambda t: t, lambda t: t.resolve_neg().contiguous())
        )
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("normalize", ["length", "sum"])
@every_impl
def test_gradient_of_the_sums_alone(impl, normalize):
    """Where nothing is asked of the result: z_i knows neither v nor any normalizer."""
    qkv, functions = forms(impl)
    for function in functions:
        x = qkv.clone().requires_grad_()
        _, sums = function(x, normalize=normalize, return_sums=True, impl=impl)
        (got,) = torch.autograd.grad(sums.square().sum(), x)
        assert not got[:, :, 2].any()
        q, k, _ = x.permute(2, 0, 3, 1, 4)
        expected = (q @ k.mT * 8**-0.5).relu().sum(-1)
        torch.testing.assert_close(sums, expected)
        torch.testing.assert_close(got, torch.autograd.grad(expected.square().sum(), x)[0])


@pytest.mark.parametrize("impl", FAST)
def test_sums_do_not_change_the_result(impl):
    qkv, _ = forms(impl)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    for options in ({}, {"normalize": "sum"}, {"causal": True, "alpha": 0.5}):
        o, sums = attention(q, k, v, **options, return_sums=True, impl=impl)
        torch.testing.assert_close(o, attention(q, k, v, **options, impl=impl))
        assert sums.is_contiguous()
        assert sums.dtype == widest_dtype(impl)


EMPTY = {
    "queries": (2, 2, 0, 5),
    "keys": (2, 2, 5, 0),
    "samples": (0, 2, 3, 4),
    "heads": (2, 0, 3, 4),
}


@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("normalize", ["length", "sum"])
@every_impl
def test_empty_tensors_have_sums(impl, normalize, shape):
    B, H, Lq, Lk = shape
    q, k, v = (torch.ones(B, H, L, 4, device=device_of(impl)) for L in (Lq, Lk, Lk))
    call = partial(attention, normalize=normalize, return_sums=True, impl=impl)
    found = evaluate(call, q=q, k=k, v=v)
    assert found["sums"].shape == (B, H, Lq)
    assert not any(t.any() for t in found.values())


@every_impl
def test_tokens_of_no_sequence_have_no_sums(impl):
    """Rows beyond the longest length and behind the last end; on a CPU such ends are refused."""
    if not (impl == "triton" and (HAS_GPU or device_of(impl).type == "cpu")):
        pytest.skip("ends are checked where they are readable")
    from flashpoint.ops.gpu.attend import launch_backward_varlen, launch_forward_varlen
    from flashpoint.ops.spec import Terms

    torch.manual_seed(0)
    q, k, v = (torch.randn(12, 2, 8, device=device_of(impl)) for _ in range(3))
    cu = torch.tensor([2, 5, 9], dtype=torch.int32, device=q.device)
    terms = Terms("softplus", -1.0, normalize="sum", floor=1e-3)
    inputs = (q, k, v, None, None, cu, cu, 4, 4, terms)
    o, sums = launch_forward_varlen(True, *inputs)
    inside = torch.arange(12, device=q.device)
    inside = (inside >= 2) & (inside < 9)
    assert not o[~inside].any()
    assert not sums[:, ~inside].any()
    assert (sums[:, inside] > 0).all()
    dsums = torch.ones_like(sums)
    for grad in launch_backward_varlen((dsums, o, sums), o, *inputs, False, False):
        assert not grad[~inside].any()
        assert grad[inside].isfinite().all()


def test_own_nonnegative_activation_may_be_divided():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    mine = Activation("bump", lambda s: 1 / (1 + s * s), is_nonnegative=True)
    weights = 1 / (1 + (q @ k.mT / 2).square())
    for impl in ("reference", "cpu"):
        o, sums = attention(
            q, k, v, activation=mine, normalize="sum", floor=0, return_sums=True, impl=impl
        )
        torch.testing.assert_close(sums, weights.sum(-1))
        torch.testing.assert_close(o, weights @ v / weights.sum(-1, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@every_impl
def test_weight_of_a_large_bias_behind_the_last_key_reaches_nothing(impl, dtype):
    """exp of the bias alone is infinite, and that of every score is not."""
    if not serves(impl, dtype):
        pytest.skip("fp64 in its place")
    q = torch.full((1, 1, 17, 16), 4.0, device=device_of(impl), dtype=dtype)
    v = torch.linspace(-1, 1, 17, device=q.device, dtype=dtype).view(1, 1, 17, 1).expand_as(q)
    call = partial(attention, activation="exp", normalize="sum", floor=0, bias=100.0)
    got = evaluate(partial(call, impl=impl), q=q, k=-q, v=v)
    exact = evaluate(partial(call, impl="reference"), q=q.double(), k=-q.double(), v=v.double())
    for name, value in got.items():
        torch.testing.assert_close(value.double(), exact[name], rtol=0.02, atol=0.02)
