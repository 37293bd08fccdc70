"""Tiles by measurement: the fastest is stored and used, and none changes a result."""

import json
import math

import pytest
import torch
from implementations import HAS_GPU, HAS_TRITON, device_of, needs_gpu
from numerics import assert_exact, make_inputs

from flashpoint import attention

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.gpu import replay
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.device import gpu_of
from flashpoint.ops.gpu.tiles import autotune, stored, table
from flashpoint.ops.gpu.tiles.table import Kind, Tiles
from flashpoint.ops.spec import Terms

SHAPE = (1, 2, 1, 33, 70, 16, 16)

pytestmark = [pytest.mark.usual_tiles, pytest.mark.usefixtures("store")]


def make_call(shape=SHAPE, dtype=torch.float32, **terms):
    inputs = make_inputs(shape)
    q, k, v = (inputs[name].to(device_of("triton"), dtype) for name in "qkv")
    return Call.dense(q, k, v, None, None, None, Terms(**terms))


class FakeTimer:
    """Makes the candidate number ``fastest`` of every kernel the fastest."""

    def __init__(self, fastest):
        self.fastest = fastest
        self.seen = {}

    def on_candidate(self, kind, tiles):
        self.seen.setdefault(kind.kernel, []).append(tiles)
        self.kernel = kind.kernel

    def __call__(self, call):
        return abs(len(self.seen[self.kernel]) - 1 - self.fastest) + 1.0

    def session(self):
        return autotune.session(self, on_candidate=self.on_candidate)


FP16_CASES = [pytest.param(torch.float16, number, id=f"fp16-{number}") for number in range(9)]
FP32_CASES = [pytest.param(torch.float32, number, id=f"fp32-{number}") for number in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "fastest"), FP16_CASES if HAS_GPU else FP16_CASES + FP32_CASES
)  # fp32 takes long to compile
def test_candidates_give_the_same_result(dtype, fastest):
    timer = FakeTimer(fastest)
    with timer.session():
        assert_exact("triton", dtype, make_inputs(SHAPE), causal=True)
    assert sorted(timer.seen) == ["dkdv", "dq", "forward"]


@pytest.mark.parametrize("fastest", range(7))
def test_candidates_of_decode_give_the_same_result(fastest):
    timer = FakeTimer(fastest)
    with timer.session(), torch.no_grad():
        inputs = make_inputs((1, 2, 1, 2, 600, 16, 16))
        q, k, v = (inputs[name].to(device_of("triton"), torch.float16) for name in "qkv")
        o = attention(q, k, v, impl="triton")
    expected = attention(q, k, v, impl="reference")
    assert list(timer.seen) == ["decode"]
    torch.testing.assert_close(o, expected, rtol=2e-3, atol=2e-3)


def test_session_finds_stores_and_later_calls_use_the_fastest(store):
    call = make_call(dtype=torch.float16)
    timer = FakeTimer(2)
    with timer.session() as tuned:
        attention(call.q, call.k, call.v, impl="triton")
    (found,) = tuned.found
    assert found.before == timer.seen["forward"][0]
    assert found.after == timer.seen["forward"][2] != found.before
    assert (found.before_ms, found.after_ms) == (3.0, 1.0)
    stored.forget()  # as in another process
    tiles = table.forward_tiles(call)
    assert Tiles(*(tiles[name] for name in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"))) == (
        found.after
    )


def test_gain_within_noise_changes_nothing():
    call = make_call(dtype=torch.float16)
    times = iter([1.0, *[0.99] * 20])
    with autotune.session(lambda call: next(times)) as tuned:
        attention(call.q, call.k, call.v, impl="triton")
    assert tuned.found[0].before == tuned.found[0].after


def test_failing_candidates_are_skipped():
    call = make_call(dtype=torch.float16)
    calls = []

    def timer(call):
        calls.append(call)
        if len(calls) != 3:
            raise RuntimeError("out of resources")
        return 1.0

    with autotune.session(timer) as tuned:
        attention(call.q, call.k, call.v, impl="triton")
    kind = Kind.of("forward", call)
    gpu = gpu_of(call.q.device)
    assert tuned.found[0].before_ms == math.inf
    assert tuned.found[0].after == autotune._CANDIDATES["forward"][1]
    assert table.usual_tiles(kind, gpu) == tuned.found[0].after


def test_nothing_is_stored_where_every_candidate_fails(store):
    def timer(call):
        raise RuntimeError("out of resources")

    call = make_call(dtype=torch.float16)
    with autotune.session(timer) as tuned:
        o = attention(call.q, call.k, call.v, impl="triton")
    assert o.isfinite().all()
    assert tuned.found == []
    assert not store.exists()


def test_full_memory_is_not_taken_for_a_failing_candidate():
    def timer(call):
        raise torch.OutOfMemoryError("CUDA out of memory")

    call = make_call(dtype=torch.float16)
    with autotune.session(timer), pytest.raises(torch.OutOfMemoryError):
        attention(call.q, call.k, call.v, impl="triton")


def test_rehearsals_are_repeated_and_not_recorded():
    call = make_call(dtype=torch.float16)
    kept = []

    def timer(call):
        assert isinstance(call.__self__, autotune.Rehearsal)
        call()
        kept.append(call.__self__)
        return 1.0

    with autotune.session(timer):
        attention(call.q, call.k, call.v, impl="triton")
    assert kept
    assert all(len(x.steps) == 1 and not x.launches and not x.is_repeatable for x in kept)
    assert not any(recorder in kept for recorder in replay._recordings.values())


@pytest.fixture
def timed(monkeypatch):
    """A timer in the place of the GPU's; gives the calls it has timed."""
    calls = []

    def bench_ms(call):
        calls.append(call)
        return float(len(calls))

    monkeypatch.setattr(autotune, "bench_ms", bench_ms)
    return calls


def test_first_call_does_not_tune_unless_asked(timed, monkeypatch, store):
    monkeypatch.setattr(autotune, "_is_timeable", lambda call: True)
    call = make_call()
    for value in (None, "0", ""):
        if value is not None:
            monkeypatch.setenv("FLASHPOINT_AUTOTUNE", value)
        attention(call.q, call.k, call.v, impl="triton")
    assert timed == []
    assert not store.exists()


def test_variable_tunes_a_kind_once(timed, monkeypatch, store):
    monkeypatch.setattr(autotune, "_is_timeable", lambda call: True)
    monkeypatch.setenv("FLASHPOINT_AUTOTUNE", "1")
    call = make_call()
    attention(call.q, call.k, call.v, impl="triton")
    assert len(timed) == 5
    assert len(json.loads(store.read_text())["tiles"]) == 1
    attention(call.q, call.k, call.v, impl="triton")
    autotune._tried.clear()  # as in another process
    attention(call.q, call.k, call.v, impl="triton")
    assert len(timed) == 5


@pytest.mark.skipif(HAS_GPU, reason="is about tensors that no GPU can time")
def test_interpreted_call_does_not_tune(timed, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_AUTOTUNE", "1")
    call = make_call()
    attention(call.q, call.k, call.v, impl="triton")
    assert timed == []


def test_captured_call_does_not_tune(monkeypatch):
    class OnGpu:
        class q:
            is_cuda = True

    for capturing in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda x=capturing: x)
        assert autotune._is_timeable(OnGpu) is not capturing


@pytest.mark.gpu
@needs_gpu
def test_variable_tunes_on_a_gpu(monkeypatch, store):
    monkeypatch.setenv("FLASHPOINT_AUTOTUNE", "1")
    inputs = make_inputs((1, 2, 1, 130, 140, 64, 64))
    assert_exact("triton", torch.float16, inputs, causal=True)
    kernels = {key.split(" | ")[0] for key in json.loads(store.read_text())["tiles"]}
    assert kernels == {"forward", "dkdv", "dq"}
