"""Where careless kernels break: nothing to see, odd strides, huge numbers, tile edges."""

import sys
from functools import partial

import pytest
import torch
from implementations import (
    FAST,
    IMPLEMENTATIONS,
    IN_PYTHON,
    device_of,
    interpreted,
    is_interpreted,
    on_gpu,
    placed,
    serves,
    widest_dtype,
)
from numerics import assert_exact, assert_within_budget, make_inputs, place_qkv, run
from results import assert_same, evaluate

from flashpoint import attention
from flashpoint.ops.activation import BUILTIN

ALPHAS = (-0.5, 0.0, 0.5, 1.0, 2.0)
NAN, INF = float("nan"), float("inf")


# B, Hq, Hkv, Lq, Lk, D, Dv
SMALLEST = {
    "no queries": (2, 4, 2, 0, 3, 4, 5),
    "no keys": (2, 4, 2, 3, 0, 4, 5),
    "neither": (2, 4, 2, 0, 0, 4, 5),
    "no samples": (0, 4, 2, 3, 4, 4, 5),
    "no heads": (2, 0, 0, 3, 4, 4, 5),
    "no query heads": (2, 0, 2, 3, 4, 4, 5),
    "no values": (2, 4, 2, 3, 4, 4, 0),
    "one of each": (1, 1, 1, 1, 1, 1, 1),
    "one query": (2, 4, 2, 1, 5, 4, 5),
    "one key": (2, 4, 2, 5, 1, 4, 5),
    "one dim": (2, 4, 2, 3, 5, 1, 5),
    "one value dim": (2, 4, 2, 3, 5, 4, 1),
    "wide values": (2, 4, 2, 3, 5, 2, 33),
    "many heads for one": (1, 600, 1, 2, 3, 4, 5),
}


@pytest.mark.parametrize("options", [{}, {"causal": True, "length": "keys"}, {"window": (1, 0)}])
@pytest.mark.parametrize("shape", SMALLEST.values(), ids=SMALLEST)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@interpreted(lambda shape, options: shape != SMALLEST["many heads for one"] and not options)
@on_gpu(
    lambda shape, options: (
        not options and (0 in shape or shape in (SMALLEST["one of each"], SMALLEST["one query"]))
    )
)
def test_smallest_shapes_have_output_and_gradients(impl, shape, options):
    B, Hq, _, Lq, Lk, _, Dv = shape
    tensors = place_qkv(impl, shape)
    tensors["bias"] = torch.ones(Lq, Lk, dtype=widest_dtype(impl), device=device_of(impl))
    for names in ("qkv", ["q", "k", "v", "bias"]):
        inputs = {name: tensors[name] for name in names}
        got = evaluate(partial(attention, activation="sigmoid", impl=impl, **options), **inputs)
        assert got["o"].shape == (B, Hq, Lq, Dv)
        assert {name: got[f"d{name}"].shape for name in inputs} == {
            name: t.shape for name, t in inputs.items()
        }
        on_cpu = {name: t.cpu() for name, t in inputs.items()}
        plain = partial(attention, activation="sigmoid", impl="reference", **options)
        assert_same({n: t.cpu() for n, t in got.items()}, evaluate(plain, **on_cpu))
        if Lk == 0:
            assert not got["o"].any()


def hidden_row():
    mask = torch.ones(6, 3, dtype=torch.bool)
    mask[4] = False
    return mask


# options that leave some of 6 queries blind for 3 keys, and which they are
BLIND = {
    "mask": ({"mask": hidden_row()}, [4]),
    "window": ({"window": (1, 1)}, [0, 1]),
    "narrow window": ({"window": (0, 0)}, [0, 1, 2]),
    "causal": ({"causal": True}, [0, 1, 2]),
    "no key": ({"key_lengths": torch.tensor([0, 0])}, [0, 1, 2, 3, 4, 5]),
    "few keys, far window": (
        {"key_lengths": torch.tensor([1, 1]), "window": (1, 0)},
        [0, 1, 2, 5],
    ),
}


@pytest.mark.parametrize(("options", "rows"), BLIND.values(), ids=BLIND)
@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@interpreted(lambda activation: activation == "sigmoid")
@on_gpu(lambda activation, options: activation == "sigmoid" and options is not BLIND["window"][0])
@pytest.mark.long_interpreted
def test_row_that_sees_nothing_is_zero_with_zero_gradients(impl, activation, options, rows):
    options = placed(impl, options)
    tensors = place_qkv(impl, (2, 2, 1, 6, 3, 4, 5))
    tensors["bias"] = torch.ones(6, 3, dtype=widest_dtype(impl), device=device_of(impl))
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    for alpha in (0.5, 1.0) if impl == "triton" else ALPHAS:
        o = attention(**leaves, **options, activation=activation, alpha=alpha, impl=impl)
        assert o.isfinite().all()
        assert not o[:, :, rows].any()
        for grad in torch.autograd.grad(o[:, :, rows].sum(), leaves.values(), retain_graph=True):
            assert torch.equal(grad, torch.zeros_like(grad))
        for name, grad in zip(leaves, torch.autograd.grad(o.sum(), leaves.values()), strict=True):
            assert grad.isfinite().all(), name


def spread(x):
    """The same values as every other element along each axis, NaN between them."""
    wide = torch.full([2 * size for size in x.shape], NAN, dtype=x.dtype, device=x.device)
    view = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    return view.copy_(x)


LAYOUTS = {
    "heads behind tokens": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "head dim outside": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "batch inside": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "spread": spread,
    "negative bit": lambda x: torch.complex(x, -x).conj().imag,
    "offset": lambda x: torch.cat([x.new_full((3,), NAN), x.flatten()])[3:].view(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@interpreted(lambda causal: causal)
@on_gpu(lambda causal, layout: causal and layout in (spread, LAYOUTS["offset"]))
@pytest.mark.long_interpreted
def test_strides_change_nothing(impl, causal, layout):
    tensors = place_qkv(impl, (2, 2, 1, 7, 9, 4, 5))
    tensors["bias"] = tensors["q"] @ tensors["k"].repeat_interleave(2, 1).mT
    tensors["mask"] = tensors["bias"].cos()
    call = partial(attention, activation="silu", causal=causal, impl=impl)
    for names in (["q", "k", "v"], list(tensors)):
        dense = {name: tensors[name] for name in names}
        strided = {name: layout(t) for name, t in dense.items()}
        assert_same(evaluate(call, **strided), evaluate(call, **dense))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.long_interpreted
def test_expanded_inputs_are_as_their_copies(impl):
    small = place_qkv(impl, (1, 1, 1, 7, 1, 4, 5))
    sizes = {"q": (3, 2, 7, 4), "k": (3, 1, 6, 4), "v": (3, 1, 6, 5), "bias": (3, 2, 7, 6)}
    small["bias"] = small["q"][..., :1]
    expanded = {name: small[name].expand(size) for name, size in sizes.items()}
    mask = (small["bias"] > -1).expand(sizes["bias"])
    for options in ({}, {"mask": mask}, {"mask": mask[0, 0, 0], "causal": True}):
        call = partial(attention, activation="gelu", impl=impl)
        dense = {name: t.contiguous() for name, t in expanded.items()}
        dense_options = {n: x.clone() if n == "mask" else x for n, x in options.items()}
        assert_same(
            evaluate(partial(call, **options), **expanded),
            evaluate(partial(call, **dense_options), **dense),
        )


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@on_gpu(lambda: False)
def test_inputs_may_be_one_tensor(impl):
    q, kv, _ = place_qkv(impl, (2, 4, 4, 7, 7, 4, 4)).values()
    call = partial(attention, activation="softplus", impl=impl)
    apart = evaluate(call, q=q, k=kv, v=kv)
    shared = evaluate(lambda q, kv: call(q, kv, kv), q=q, kv=kv)
    apart = {"o": apart["o"], "dq": apart["dq"], "dkv": apart["dk"] + apart["dv"]}
    assert_same(shared, apart)
    alone = evaluate(call, q=q, k=q, v=q)
    together = evaluate(lambda x: call(x, x, x), x=q)
    assert_same(together, {"o": alone["o"], "dx": alone["dq"] + alone["dk"] + alone["dv"]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@interpreted(lambda activation: activation in ("relu", "gelu"))
@on_gpu(lambda activation, dtype: activation == "relu" and dtype == torch.bfloat16)
def test_call_changes_no_input_and_repeats_bit_by_bit(impl, activation, dtype):
    tensors = place_qkv(impl, (1, 2, 1, 40, 130, 8, 8), dtype)
    tensors["mask"] = tensors["q"][..., :1].cos()
    copies = {name: t.clone() for name, t in tensors.items()}
    for names in ("qkv", tensors):
        call = partial(attention, activation=activation, causal=names == "qkv", impl=impl)
        given = {name: tensors[name] for name in names}
        first, second = evaluate(call, **given), evaluate(call, **given)
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert torch.equal(call(**given), first["o"])  # no gradient is recorded here
    assert all(torch.equal(tensors[name], copies[name]) for name in tensors)


@pytest.mark.parametrize(
    ("activation", "size", "value"), [("relu", 300.0, 2.0**-12), ("relu2", 30.0, 2.0**-8)]
)
@pytest.mark.parametrize("impl", IN_PYTHON)  # which compute fp16 in fp32; see test_triton.py
def test_scores_beyond_fp16_cost_no_digits(impl, activation, size, value):
    inputs = make_inputs((1, 2, 1, 40, 60, 64, 16))
    factors = {"q": size, "k": size, "v": value, "do": 2.0**-14}
    inputs = {name: (t * factors[name]).half().double() for name, t in inputs.items()}
    scores = inputs["q"] @ inputs["k"].mT / 8
    assert scores.max() > {"relu": 65504, "relu2": 256}[activation]
    exact = run("reference", torch.float64, inputs, activation=activation)
    assert exact["o"].abs().max() > 1e-2
    got = run(impl, torch.float16, inputs, activation=activation)
    for name, value in got.items():
        assert_within_budget(name, value.cpu(), exact[name], plain=exact[name].half())


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_offsets_beyond_int32_are_reached(impl, monkeypatch):
    step = 2**30 + 8  # the third row starts past 2**31 elements
    dtype = torch.bfloat16 if serves(impl, torch.bfloat16) else torch.float16
    try:
        with monkeypatch.context() as patch:  # leave 4 GiB of memory unwritten
            patch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
            pool = torch.empty(2 * step + 4096, dtype=dtype, device=device_of(impl))
    except RuntimeError as error:  # of which out of memory is one
        pytest.skip(f"no room for {2 * step} elements: {error}")
    dense = place_qkv(impl, (1, 2, 1, 3, 3, 8, 8), dtype)
    far = {}
    for place, (name, t) in enumerate(dense.items()):
        strides = (4096, 512, step, 1)
        far[name] = pool.as_strided(t.shape, strides, 64 * place).copy_(t)
    assert far["v"].stride(2) * 2 > 2**31
    call = partial(attention, causal=True, impl=impl)
    assert_same(evaluate(call, **far), evaluate(call, **dense))
    behind = {name: t[..., 2:, :] for name, t in far.items()}
    assert behind["q"].storage_offset() > 2**31
    assert_same(
        evaluate(call, **behind), evaluate(call, **{n: t[..., 2:, :] for n, t in dense.items()})
    )


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_unbounded_window_may_be_spelled_as_a_large_number(impl):
    tensors = place_qkv(impl, (1, 2, 1, 5, 7, 4, 4))
    full = evaluate(partial(attention, impl=impl), **tensors)
    causal = evaluate(partial(attention, causal=True, impl=impl), **tensors)
    for far in (2**31, sys.maxsize, 10**30):
        both = evaluate(partial(attention, window=(far, far), impl=impl), **tensors)
        assert_same(both, full)
        left = evaluate(partial(attention, window=(far, 0), impl=impl), **tensors)
        assert_same(left, causal)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_extreme_exponents_overflow_to_inf_and_underflow_to_zero(impl):
    tensors = {name: t.abs() + 1 for name, t in place_qkv(impl, (1, 1, 1, 2, 3, 4, 4)).items()}
    last = (0, 0, -1)
    for options in ({}, {"causal": True}, {"length": 3}, {"length": "keys"}):
        for alpha in (1e4, 1e300):
            assert attention(**tensors, alpha=-alpha, impl=impl, **options)[last].isposinf().all()
            assert not attention(**tensors, alpha=alpha, impl=impl, **options)[last].any()


@pytest.mark.parametrize("alpha", [-1e300, -0.3, 0.5, 2.0, 1e300])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_no_exponent_changes_a_query_that_sees_one_key(impl, alpha):
    tensors = place_qkv(impl, (1, 1, 1, 4, 3, 4, 4))
    call = partial(attention, **tensors, window=(0, 0), impl=impl)
    assert torch.equal(call(alpha=alpha), call(alpha=0.0))


@pytest.mark.parametrize("activation", ["relu", "relu2", "identity"])
@pytest.mark.parametrize("impl", FAST)
def test_small_scale_of_huge_products_keeps_their_range(impl, activation):
    tensors = place_qkv(impl, (1, 2, 1, 5, 7, 4, 4), torch.float32)
    large = tensors | {"q": tensors["q"] * 2.0**40, "k": tensors["k"] * 2.0**40}
    usual = attention(**tensors, activation=activation, scale=0.5, impl=impl)
    huge = attention(**large, activation=activation, scale=2.0**-81, impl=impl)
    assert_same({"o": huge}, {"o": usual}, tolerance=1e-6)


def test_number_of_threads_costs_no_digits():
    inputs = make_inputs((2, 4, 2, 150, 300, 16, 16))
    usual = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for options in ({}, {"causal": True}):
                assert_exact("cpu", torch.float32, inputs, **options)
                assert_exact("cpu", torch.float64, inputs, **options)
    finally:
        torch.set_num_threads(usual)


# B, Hq, Hkv, Lq, Lk, D, Dv around the 512 rows and 1024 keys of a tile on the CPU
CROSSING = {
    "one row more": (1, 2, 2, 513, 64, 16, 16),
    "one key more": (1, 2, 2, 64, 1025, 16, 16),
    "both": (1, 2, 1, 513, 1025, 16, 16),
    "last row of a stack": (1, 8, 2, 129, 300, 16, 16),
    "odd stack": (1, 3, 1, 171, 1030, 16, 16),
    "more queries than keys": (1, 1, 1, 1030, 70, 16, 16),
    "exactly": (1, 1, 1, 512, 1024, 16, 16),
    "many heads": (3, 10, 5, 130, 140, 16, 16),
    "decode": (2, 4, 2, 1, 3000, 16, 16),
}


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"window": (40, 3)}, {"window": (0, None), "length": "keys"}],
    ids=["all", "causal", "window", "ahead"],
)
@pytest.mark.parametrize("shape", CROSSING.values(), ids=CROSSING)
@pytest.mark.parametrize("impl", FAST)
@interpreted(lambda shape, options: shape == CROSSING["last row of a stack"] and options)
@on_gpu(
    lambda shape, options: (
        shape in (CROSSING["last row of a stack"], CROSSING["decode"]) and "causal" in options
    )
)
def test_tile_edges_leave_no_trace(impl, shape, options):
    inputs = make_inputs(shape)
    for dtype in (torch.float64, torch.float32):
        if serves(impl, dtype):
            assert_exact(impl, dtype, inputs, activation="softplus", **options)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.long_interpreted
def test_key_lengths_and_masks_cross_tiles(impl):
    Lq, Lk = (70, 150) if is_interpreted(impl) else (300, 1100)
    inputs = make_inputs((2, 2, 1, Lq, Lk, 8, 8))
    lengths = torch.tensor([Lk - 50, Lk - 20])
    mask = (torch.arange(Lk) * torch.arange(Lq).view(-1, 1)) % 3 > 0
    for options in ({}, {"mask": mask}, {"bias": mask.double()}, {"mask": mask.double() - 0.5}):
        options |= {"key_lengths": lengths, "window": (Lk * 4 // 5, 5), "activation": "sigmoid"}
        assert_exact(impl, widest_dtype(impl), inputs, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (30, 9)}], ids=str)
@pytest.mark.parametrize("activation", ["sigmoid", "softplus"])  # h(0) is not 0
@pytest.mark.parametrize("impl", FAST)
@interpreted(lambda activation, dtype: activation == "sigmoid" or dtype == torch.float32)
@on_gpu(lambda activation, options: activation == "sigmoid" and "window" not in options)
@pytest.mark.pairwise
@pytest.mark.long_interpreted
def test_keys_that_end_beside_a_block_edge_give_nothing_beyond(impl, activation, options, dtype):
    lengths = torch.tensor([1, 63, 64, 65, 127, 129])
    inputs = make_inputs((len(lengths), 2, 1, 70, 130, 16, 16))  # also blocks full of queries
    options = options | {"activation": activation, "key_lengths": lengths}
    assert_exact(impl, dtype, inputs, **options)
    got = run(impl, dtype, inputs, **options)
    for name in ("dk", "dv"):
        for b, length in enumerate(lengths):
            assert not got[name][b, :, length:].any(), (name, length)


def test_autocast_of_another_device_changes_nothing():
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    plain = attention(q, q, q)
    (dq,) = torch.autograd.grad(plain.sum(), q)
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)  # as torch.autocast does where there is a GPU
    try:
        o = attention(q, q, q)
        (grad,) = torch.autograd.grad(o.sum(), q)
    finally:
        torch.set_autocast_enabled("cuda", before)
    assert torch.equal(o, plain)
    assert torch.equal(grad, dq)


def test_shapes_are_inferred_on_the_meta_device():
    q = torch.empty(2, 4, 7, 8, device="meta")
    k, v = torch.empty(2, 2, 9, 8, device="meta"), torch.empty(2, 2, 9, 5, device="meta")
    assert attention(q, k, v).shape == (2, 4, 7, 5)
