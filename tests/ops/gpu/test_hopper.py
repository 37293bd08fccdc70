"""The kernels for Hopper, on one: ragged, strided, grouped, causal, every activation."""

import random

import pytest
import torch
from captured import gradients_by_graph
from implementations import HAS_TRITON, device_of, needs_gpu, needs_hopper
from numerics import assert_exact, make_inputs, make_qkv, run

import flashpoint
from flashpoint.lab.selfcheck.case import Case
from flashpoint.lab.selfcheck.run import run_case
from flashpoint.ops.activation import BUILTIN
from flashpoint.ops.spec import Terms

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.gpu import dispatch, replay, sections, sign_budget
from flashpoint.ops.gpu.call import Call

pytestmark = [pytest.mark.gpu, needs_gpu, needs_hopper]
SIZES = ("B", "Hq", "Hkv", "Lq", "Lk", "D", "Dv")
SHAPES = {
    "square": (1, 2, 2, 512, 512, 64, 64),
    "ragged": (2, 2, 2, 300, 517, 128, 128),
    "blind-rows": (1, 2, 1, 700, 260, 64, 64),
    "grouped": (1, 8, 2, 401, 1100, 64, 64),
    "padded-dims": (1, 2, 2, 333, 450, 72, 120),
    "both-sides": (2, 3, 3, 300, 300, 48, 64),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def make_call(shape, dtype, activation="relu", causal=False, alpha=1.0, has_sums=False):
    q, k, v = make_qkv(shape, dtype).values()
    terms = Terms(activation, alpha, right=0 if causal else None)
    return Call.dense(q, k, v, None, None, None, terms)._replace(has_sums=has_sums)


def assert_served(shape, dtype, activation, causal, alpha=1.0, has_sums=False):
    """The kernels for Hopper, not the portable ones, compute this."""
    call = make_call(shape, dtype, activation, causal, alpha, has_sums)
    do = call.q.new_ones(*call.q.shape[:3], call.v.shape[3])
    assert dispatch.choose(call) is dispatch.HOPPER
    assert dispatch.choose(call, do) is dispatch.HOPPER


@every_shape
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_relu_matches_reference(shape, causal, dtype):
    assert_served(shape, dtype, "relu", causal)
    assert_exact("triton", dtype, make_inputs(shape), causal=causal)


@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("options", [{"causal": True}, {"scale": 0.3, "bias": -0.5}], ids=str)
def test_activation_matches_reference(activation, options):
    shape = SHAPES["grouped"]
    assert_served(shape, torch.bfloat16, activation, "causal" in options)
    assert_exact("triton", torch.bfloat16, make_inputs(shape), activation=activation, **options)


@every_shape
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("activation", ["sigmoid", "silu"])
def test_forward_in_turns_matches_reference(activation, causal, shape):
    assert_served(shape, torch.float16, activation, causal)
    assert_exact("triton", torch.float16, make_inputs(shape), activation=activation, causal=causal)


SUM = {"normalize": "sum", "floor": 1e-3}


def draw_power(seed):
    """A power of relu over any keys, by its length or its sum: lengths that cut the last block,
    a few blocks, or rows that fill no tile. fp16 holds the square alone, and no sums."""
    draw = random.Random(seed)
    group, heads, D = draw.choice([1, 1, 2]), draw.randint(1, 3), draw.choice([64, 128, 128])
    Lq, Lk = (draw.choice([192, 256, *(draw.randint(192, 900) for _ in "12")]) for _ in "qk")
    sizes = (draw.randint(1, 2), heads * group, heads, Lq)
    if draw.random() < 0.2:
        return (*sizes, Lk, D, D), torch.float16, {"activation": "relu2"}
    options = {"activation": draw.choice(["relu2", "relu3", "relu4", "relu4"])}
    options |= SUM if draw.random() < 0.7 else {}
    if draw.random() < 0.4:
        options["bias"] = draw.choice([2.0, -0.5])
        Lk = -(-Lk // 128) * 128  # what lies behind the last key would count in sums
    return (*sizes, Lk, D, D), torch.bfloat16, options


@pytest.mark.parametrize("seed", range(36))
def test_powers_over_drawn_lengths_match_reference(seed):
    shape, dtype, options = draw_power(seed)
    assert_served(shape, dtype, options["activation"], False, has_sums="normalize" in options)
    assert_exact("triton", dtype, make_inputs(shape), **options)


@pytest.mark.parametrize("Lk", [1, 64, 100, 128, 129, 144, 160, 161, 193])
@pytest.mark.parametrize("options", [{}, SUM], ids=["length", "sum"])
def test_powers_over_few_blocks_match_reference(Lk, options):
    """Up to three blocks of keys, where forward's loop has no step or one."""
    shape, options = (2, 2, 2, 192, Lk, 128, 128), {"activation": "relu4", **options}
    call = make_call(shape, torch.bfloat16, "relu4", has_sums="normalize" in options)
    assert dispatch.choose(call) is dispatch.HOPPER
    assert_exact("triton", torch.bfloat16, make_inputs(shape), **options)


def judge_with_sums(shape, activation, division, causal, impl="triton"):
    """o, sums, and the gradients of q, k and v through both, beside the reference in fp64."""
    case = Case(
        **{"seed": 0, "index": 0, "impl": impl, "function": "attention", "dtype": "bf16"},
        **dict(zip(SIZES, shape, strict=True)),
        activation=activation,
        causal=causal,
        return_sums=True,
        **division,
    )
    return run_case(case, device_of(impl))


# by alpha 1 the first rows of causal calls would hide an error of the sums' gradient
DIVISIONS = {"length": {"alpha": 0.5}, "sum": {"normalize": "sum"}}


@every_shape
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("division", DIVISIONS.values(), ids=DIVISIONS)
@pytest.mark.parametrize("activation", ["relu", "relu4"])
def test_gradients_through_result_and_sums_match_reference(activation, division, causal, shape):
    alpha = division.get("alpha", 1.0)
    assert_served(shape, torch.bfloat16, activation, causal, alpha, has_sums=True)
    outcome = judge_with_sums(shape, activation, division, causal)
    assert not outcome.is_refused, outcome.detail
    assert not outcome.is_miss, f"{outcome.line}: {outcome.detail}"


def draw_sectioned(seed):
    """A causal call of more heads than a section has, in every room of a head dim."""
    draw = random.Random(seed)
    group, D = draw.choice([1, 1, 2, 3]), draw.choice([64, 128, 192, 256])
    heads, samples = draw.randint(1, 7), draw.randint(1, 3)
    Lq, Lk = (draw.randint(192, 700) for _ in "qk")
    shape = (samples, heads * group, heads, Lq, draw.choice([Lq, Lk]), D, D)
    options = draw.choice([{}, {"activation": "relu4", **SUM}]) if D <= 128 else {}
    return shape, options, draw.randint(1, heads * samples)


@pytest.mark.parametrize("seed", range(24))
def test_heads_in_sections_match_reference(seed, monkeypatch):
    shape, options, section = draw_sectioned(seed)
    sizes = []

    def count_few(launch, processors, cache_bytes):
        sizes.append(min(section * launch.group, launch.heads))
        return sizes[-1]

    from flashpoint.ops.gpu.hopper.backward import kernel as backward
    from flashpoint.ops.gpu.hopper.forward import kernel as forward

    for module in (forward, backward):
        monkeypatch.setattr(module, "size_section", count_few)
    monkeypatch.setattr(replay, "_recordings", {})
    activation, has_sums = options.get("activation", "relu"), "normalize" in options
    assert_served(shape, torch.bfloat16, activation, True, has_sums=has_sums)
    inputs = make_inputs(shape)
    assert_exact("triton", torch.bfloat16, inputs, cancels=has_sums, causal=True, **options)
    assert len(sizes) >= 3  # forward and two launches of backward


def test_sections_are_counted_for_calls_that_the_cache_does_not_hold(monkeypatch):
    from flashpoint.ops.gpu.hopper.forward import kernel as forward

    found = []

    def count_and_note(*arguments):
        found.append(sections.size_section(*arguments))
        return found[-1]

    monkeypatch.setattr(forward, "size_section", count_and_note)
    monkeypatch.setattr(replay, "_recordings", {})
    x = torch.randn(8, 16, 2048, 192, dtype=torch.bfloat16, device="cuda")
    o = flashpoint.attention(x, x, x, causal=True, impl="triton")
    assert found[0] is not None
    one = flashpoint.attention(x[5:6], x[5:6], x[5:6], causal=True, impl="triton")
    assert found[1] is None
    assert torch.equal(o[5:6], one)


def weigh_each(activation, q_values, k_values, v, dtype):
    """o and the same in fp64, where query i and key j have the score q_i k_j and alpha is 0."""
    L, D = v.shape
    q, k = torch.zeros(2, 1, 1, L, D)
    q[..., 0] = torch.tensor(q_values).repeat(L)[:L]
    k[..., 0] = 2.0 * torch.tensor(k_values).repeat(L)[:L]
    tensors = [x.to("cuda", dtype) for x in (q, k, v.view(1, 1, L, D))]
    options = {"activation": activation, "scale": 0.5, "alpha": 0.0}
    got = flashpoint.attention(*tensors, **options, impl="triton")
    exact = flashpoint.attention(*(x.double() for x in tensors), **options, impl="reference")
    return got[0, 0].double(), exact[0, 0]


# neighbours differ much, for the scores of a group share a reciprocal
Q_VALUES = [0.0, 1.0, 3.0, 21.0, 22.0, 30.0, 41.0, 60.0, 80.0, 90.0, 700.0, 30000.0]
K_VALUES = [1.0, -1.0, 0.25, -0.5, -1.0, 0.0, -1.0, -1.0, 1.0, 1.0, 1.0, -0.125, 1.0]


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("activation", ["sigmoid", "silu", "gelu", "softplus"])
def test_every_finite_score_is_weighed_well(activation, dtype, D):
    """Column c of o is the weight of key c alone: each must have its own digits."""
    got, exact = weigh_each(activation, Q_VALUES, K_VALUES, torch.eye(256, D), dtype)
    # what fp16 holds; in bf16 a sigmoid below 2^-125 is 0, silu's times a score of up to 90 more;
    # gelu's digits cancel far below zero
    smallest = 2.0**-24 if dtype == torch.float16 else 90 * 2.0**-125
    smallest = 1e-6 if activation == "gelu" else smallest
    torch.testing.assert_close(got, exact, rtol=torch.finfo(dtype).eps, atol=smallest)


@pytest.mark.parametrize("activation", ["sigmoid", "silu"])
def test_huge_scores_are_weighed_well(activation):
    values = [1e38, 1e30, 1e10, 1e5]
    signs = [1.0, -1.0, -1.0, 1.0, -1.0]
    got, exact = weigh_each(activation, values, signs, torch.eye(256, 64), torch.bfloat16)
    torch.testing.assert_close(got, exact, rtol=2.0**-7, atol=0.0)


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["plus", "minus"])
@pytest.mark.parametrize("activation", ["sigmoid", "silu"])
def test_infinite_scores_give_the_limits(activation, sign):
    """All are infinite in every other row; silu of -Inf is NaN, as it is in PyTorch."""
    values = [1.0, float("inf")]
    got, exact = weigh_each(activation, values, [sign], torch.ones(256, 64), torch.bfloat16)
    assert exact[::2].isfinite().all()
    torch.testing.assert_close(got, exact, rtol=2.0**-7, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("activation", ["sigmoid", "silu", "gelu", "softplus"])
@pytest.mark.parametrize("poisoned", ["q", "k"])
def test_nan_stays_in_rows_that_see_it(activation, poisoned, D):
    tensors = make_qkv((1, 2, 2, 512, 512, D, D), torch.bfloat16)
    tensors[poisoned][:, :, 391] = float("nan")
    for causal in (False, True):
        o = flashpoint.attention(**tensors, activation=activation, causal=causal, impl="triton")
        rows = o.isnan().all(-1)[0, 0].nonzero().flatten().tolist()
        seen = [391] if poisoned == "q" else list(range(391 if causal else 0, 512))
        assert rows == seen
        assert o.isnan().any(-1).sum() == 2 * len(seen)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"length": "keys", "causal": True}], ids=str)
def test_length_matches_reference(options):
    assert_exact("triton", torch.bfloat16, make_inputs(SHAPES["ragged"]), **options)


@pytest.mark.parametrize("alpha", [-0.3, 0.5, 1.7])
@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_power_of_visible_keys_matches_reference(dtype, activation, alpha):
    shape, options = SHAPES["blind-rows"], {"activation": activation, "alpha": alpha}
    assert_served(shape, dtype, causal=True, **options)
    assert_exact("triton", dtype, make_inputs(shape), causal=True, **options)


# with a head dim for which signs are stored
SIGNED_SHAPES = {
    "ragged": SHAPES["ragged"],
    "blind-rows": (1, 4, 2, 700, 260, 128, 128),
    "grouped": (2, 8, 2, 401, 1100, 128, 128),
    "padded-dims": SHAPES["padded-dims"],
    "many-tiles": (3, 12, 12, 777, 1029, 128, 128),
}


@pytest.fixture
def count_signed(monkeypatch):
    """Short calls store signs too; gives a function: set the most words, get heads per launch."""
    from flashpoint.ops.gpu.hopper.backward import kernel as hopper_backward

    monkeypatch.setattr(sign_budget.Work, "gains_by", lambda *_: True)

    monkeypatch.setattr(hopper_backward, "SIGNED_ROWS", {False: 1, True: 1})

    def count(call, most_words=2**24):
        monkeypatch.setattr(sign_budget, "MOST_WORDS", most_words)
        monkeypatch.setattr(replay, "_recordings", {})
        processors = torch.cuda.get_device_properties(call.q.device).multi_processor_count
        return hopper_backward.count_signed_heads(call, processors)

    return count


@pytest.mark.parametrize("shape", SIGNED_SHAPES.values(), ids=SIGNED_SHAPES)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_signs_match_reference(shape, causal, dtype, count_signed):
    assert count_signed(make_call(shape, dtype, causal=causal)) > 0
    assert_exact("triton", dtype, make_inputs(shape), causal=causal)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0.3, "bias": -0.5},
        {"scale": -0.2, "bias": 0.5, "causal": True},
        {"alpha": 0.0, "causal": True},
        {"alpha": 0.5, "causal": True},
        {"alpha": 0.7, "causal": True},
        {"length": "keys", "causal": True},
    ],
    ids=str,
)
def test_signs_with_options_match_reference(options, dtype, count_signed):
    shape = SIGNED_SHAPES["ragged"]
    assert count_signed(make_call(shape, dtype, causal="causal" in options)) > 0
    assert_exact("triton", dtype, make_inputs(shape), **options)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_signs_of_some_heads_at_a_time_change_nothing(causal, count_signed):
    shape = SIGNED_SHAPES["grouped"]
    call = make_call(shape, torch.bfloat16, causal=causal)
    dense = make_inputs(shape)
    inputs = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in dense.items()}
    results = []
    for heads, most_words in ((4, 2**24), (3, 3 * 4 * 4 * 9 * 512), (1, 4 * 4 * 9 * 512)):
        assert count_signed(call, most_words) <= heads
        for _ in range(2):  # launched, and replayed
            results.append(run("triton", torch.bfloat16, inputs, causal=causal))
        launches = [len(recorder.launches) for recorder in replay._recordings.values()]
        assert max(launches) == 2 * -(-4 // count_signed(call, most_words))
    for result in results[1:]:
        assert all(torch.equal(result[name], x) for name, x in results[0].items())


def test_signs_too_many_for_their_memory_are_not_stored(count_signed):
    shape = SIGNED_SHAPES["grouped"]
    call = make_call(shape, torch.bfloat16)
    assert count_signed(call, 4 * 4 * 9 * 512) == 1
    assert count_signed(call, 4 * 4 * 9 * 512 - 1) == 0
    assert_exact("triton", torch.bfloat16, make_inputs(shape))


def test_signs_in_a_cuda_graph_follow_new_inputs(count_signed):
    shape = SIGNED_SHAPES["blind-rows"]
    assert count_signed(make_call(shape, torch.bfloat16, causal=True), 2 * 6 * 3 * 512) == 1
    assert all(map(torch.equal, *gradients_by_graph(shape)))
