"""The kernels for Hopper in head dims over 128, on one: pieces, backward in three launches."""

import random

import pytest
import torch
from implementations import HAS_TRITON, needs_gpu, needs_hopper
from numerics import assert_exact, make_inputs, make_qkv, run

import flashpoint

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.gpu import dispatch, replay, sign_budget
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.spec import Terms

pytestmark = [pytest.mark.gpu, needs_gpu, needs_hopper]
# B, Hq, Hkv, Lq, Lk, D, Dv
SHAPES = {
    "256": (1, 2, 2, 512, 512, 256, 256),
    "192": (1, 2, 2, 512, 512, 192, 192),
    "256-ragged": (2, 2, 2, 300, 517, 256, 256),
    "192-ragged": (2, 2, 2, 300, 517, 192, 192),
    "256-blind-rows": (1, 4, 2, 700, 260, 256, 200),
    "192-blind-rows": (1, 4, 2, 700, 260, 160, 192),
    "256-grouped": (1, 8, 2, 401, 1100, 200, 256),
    "192-grouped": (1, 8, 2, 401, 1100, 192, 136),
    "256-many-tiles": (3, 12, 12, 777, 1029, 256, 256),
    "192-many-tiles": (3, 12, 12, 777, 1029, 192, 192),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
OPTIONS = (
    {"scale": 0.3, "bias": -0.5},
    {"scale": -0.2, "bias": 0.5, "causal": True},
    {"alpha": 0.0, "causal": True},
    {"alpha": 0.5, "causal": True},
    {"alpha": 0.7, "causal": True},
    {"length": "keys", "causal": True},
    {"length": 100, "alpha": 0.5},
)
NUM_DRAWS = 24


def make_calls(shape, dtype, activation="relu", causal=False):
    """A call and the gradient that its backward is given."""
    q, k, v = make_qkv(shape, dtype).values()
    terms = Terms(activation, right=0 if causal else None)
    do = q.new_ones(*q.shape[:3], v.shape[3])
    return Call.dense(q, k, v, None, None, None, terms), do


def assert_served(shape, dtype, causal):
    """The kernels for Hopper, not the portable ones, compute this."""
    call, do = make_calls(shape, dtype, causal=causal)
    assert dispatch.choose(call) is dispatch.choose(call, do) is dispatch.HOPPER


def clear_of_zero(inputs):
    """Without rows whose score the order of a sum may move over relu's kink.

    Among 30 million scores one is 2e-7 away, and its gradient is there or not.
    """
    q, k = (inputs[name].cuda() for name in "qk")
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT
    near = (scores.abs() < 1e-4).any(-1, keepdim=True)
    assert near.float().mean() < 0.2
    return inputs | {"q": q.masked_fill(near, 0.0).to(inputs["q"].device)}


def draw(seed):
    """A shape whose head dims take one room, a dtype and options."""
    chance = random.Random(seed)
    dims = chance.choice([(136, 160, 192), (200, 208, 248, 256)])
    group, heads = chance.choice([1, 1, 2, 4]), chance.choice([1, 2, 3])
    lengths = [chance.randrange(192, 1300) for _ in range(2)]
    dims = [chance.choice(dims) for _ in range(2)]
    shape = (chance.choice([1, 2]), group * heads, heads, *lengths, *dims)
    options = dict(chance.choice(OPTIONS)) | {"causal": chance.random() < 0.6}
    return shape, chance.choice(list(DTYPES.values())), options


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_relu_matches_reference(shape, causal, dtype):
    assert_served(shape, dtype, causal)
    assert_exact("triton", dtype, clear_of_zero(make_inputs(shape)), causal=causal)


@pytest.mark.parametrize("shape", [SHAPES["256-ragged"], SHAPES["192-ragged"]], ids=["256", "192"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_match_reference(options, dtype, shape):
    assert_served(shape, dtype, options.get("causal", False))
    assert_exact("triton", dtype, make_inputs(shape), **options)


@pytest.mark.parametrize("seed", range(NUM_DRAWS))
def test_drawn_calls_match_reference(seed):
    shape, dtype, options = draw(seed)
    assert_served(shape, dtype, options["causal"])
    assert_exact("triton", dtype, make_inputs(shape, seed), **options)


@pytest.mark.parametrize(
    "dims", [(129, 129), (255, 255), (136, 255), (192, 256), (192, 128)], ids=str
)
def test_other_dims_are_exact_by_other_kernels(dims):
    """Rows that are no whole 16 bytes, and values of another room than keys."""
    shape = (1, 2, 2, 300, 400, *dims)
    call, do = make_calls(shape, torch.bfloat16)
    assert dispatch.choose(call) is dispatch.choose(call, do) is dispatch.PORTABLE
    assert_exact("triton", torch.bfloat16, make_inputs(shape), causal=True)


@pytest.mark.parametrize("D", [192, 256])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_some_heads_at_a_time_change_nothing(causal, D, monkeypatch):
    shape = (2, 8, 2, 401, 1100, D, D)
    dense = make_inputs(shape)
    inputs = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in dense.items()}
    of_a_head = 4 * sign_budget.count_words(401, 1100)
    results = []
    for heads in (4, 3, 1):
        monkeypatch.setattr(sign_budget, "MOST_WORDS", heads * of_a_head)
        monkeypatch.setattr(replay, "_recordings", {})
        for _ in range(2):  # launched, and replayed
            results.append(run("triton", torch.bfloat16, inputs, causal=causal))
        launches = max(len(recorder.launches) for recorder in replay._recordings.values())
        assert launches % 3 == 0
        assert launches >= 3 * -(-4 // heads)
    for result in results[1:]:
        assert all(torch.equal(result[name], x) for name, x in results[0].items())


def test_signs_too_many_for_their_memory_leave_backward_to_others(monkeypatch):
    shape = SHAPES["256-grouped"]
    call, do = make_calls(shape, torch.bfloat16)
    words = 4 * sign_budget.count_words(401, 1100)
    monkeypatch.setattr(sign_budget, "MOST_WORDS", words)
    assert dispatch.choose(call, do) is dispatch.HOPPER
    monkeypatch.setattr(sign_budget, "MOST_WORDS", words - 1)
    monkeypatch.setattr(replay, "_recordings", {})
    assert dispatch.choose(call) is dispatch.HOPPER
    assert dispatch.choose(call, do) is dispatch.PORTABLE
    assert_exact("triton", torch.bfloat16, make_inputs(shape))


@pytest.mark.parametrize("D", [192, 256])
@pytest.mark.parametrize("poisoned", ["q", "k"])
def test_nan_stays_in_rows_that_see_it(poisoned, D):
    """Rows of a tile share products, and blocks their buffers."""
    tensors = make_qkv((1, 2, 2, 512, 512, D, D), torch.bfloat16)
    tensors[poisoned][:, :, 391] = float("nan")
    for causal in (False, True):
        o = flashpoint.attention(**tensors, causal=causal, impl="triton")
        rows = o.isnan().all(-1)[0, 0].nonzero().flatten().tolist()
        assert rows == ([391] if poisoned == "q" else list(range(391 if causal else 0, 512)))
