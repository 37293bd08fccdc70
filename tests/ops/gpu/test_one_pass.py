"""Backward in one pass, on a Hopper GPU: drawn calls, replays, graphs, and who asks for order.

Other tests of kernels run in PyTorch's deterministic mode, so that fresh memory is NaN; one pass
serves no call there. Here it does, and memory is NaN all the same.
"""

import random

import pytest
import torch
from captured import gradients_by_graph
from implementations import HAS_TRITON, needs_gpu, needs_hopper
from numerics import assert_exact, assert_judged, make_inputs, run

import flashpoint
from flashpoint.lab.selfcheck.judge import Sums

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.gpu import attend, replay
from flashpoint.ops.spec import Terms

pytestmark = [pytest.mark.gpu, needs_gpu, needs_hopper]
LENGTH = ("relu", "relu2", "relu6", "sigmoid", "silu", "gelu", "softplus", "identity")
SUM = ("relu", "relu3", "relu4", "exp")
NUMBERS = ({}, {}, {"scale": 0.3, "bias": -0.5}, {"scale": -0.2, "bias": 0.5})


@pytest.fixture
def noted(monkeypatch):
    """Calls that one pass served."""
    from flashpoint.ops.gpu.hopper.backward import kernel, once

    calls = []

    def launch(call, *rest):
        calls.append(call)
        return once.launch_one_pass(call, *rest)

    monkeypatch.setattr(kernel, "launch_one_pass", launch)
    monkeypatch.setattr(replay, "_recordings", {})
    return calls


@pytest.fixture
def launched(noted, monkeypatch):
    """The same from 192 rows on, where kernels for Hopper begin, in deterministic mode too."""
    from flashpoint.ops.gpu.hopper.backward import kernel, once

    monkeypatch.setattr(kernel, "joins_sides", lambda call: False)
    monkeypatch.setattr(once, "keeps_order", lambda: False)
    monkeypatch.setattr(once, "LEAST_ROWS", 192)
    return noted


def draw(seed):
    """Shape, dtype and options: lengths that cut the last block, tiles without rows, groups."""
    pick = random.Random(seed)
    group, heads, samples = pick.choice([1, 1, 2, 3]), pick.randint(1, 4), pick.randint(1, 3)
    Lq, Lk = (pick.choice([192, 256, *(pick.randint(192, 900) for _ in "123")]) for _ in "qk")
    Lk = pick.choice([Lq, Lk, Lk])
    D, Dv = (pick.choice([64, 64, 40, 56]) for _ in "kv")
    dtype = pick.choice([torch.bfloat16, torch.bfloat16, torch.float16])
    options = {"causal": pick.random() < 0.5}
    if dtype == torch.bfloat16 and pick.random() < 0.5:
        options |= {"activation": pick.choice(SUM), "normalize": "sum", "floor": 1e-3}
        if options["activation"] == "exp" and not options["causal"]:
            Lk = -(-Lk // 128) * 128  # what lies behind the last key would count in sums
    else:
        options |= {"activation": pick.choice(LENGTH), **pick.choice(NUMBERS)}
        options |= pick.choice([{}, {"alpha": 0.5}, {"alpha": 0.0}, {"length": "keys"}])
        if dtype == torch.float16:  # whose range normalizers by position would leave
            options["causal"] = False
    return (samples, heads * group, heads, Lq, Lk, D, Dv), dtype, options


@pytest.mark.parametrize("seed", range(80))
def test_drawn_calls_match_reference(seed, launched):
    shape, dtype, options = draw(seed)
    cancels = "normalize" in options
    assert_exact("triton", dtype, make_inputs(shape), cancels=cancels, **options)
    assert len(launched) == 1


def test_many_tiles_of_each_program_match_reference(launched):
    """More tiles than processors, the last of each head cut, several heads a group."""
    shape = (3, 12, 6, 520, 1100, 64, 64)
    for options in ({"activation": "relu4", "normalize": "sum"}, {"causal": True}):
        assert_exact("triton", torch.bfloat16, make_inputs(shape), **options)
    assert len(launched) == 2


def test_replays_start_from_zero(launched):
    """Sums are cleared by every call: a second one is as near to the first as rounding allows."""
    inputs = make_inputs((2, 4, 2, 700, 300, 64, 64))
    first, again = (run("triton", torch.bfloat16, inputs) for _ in range(2))
    assert len(launched) == 1
    for name in ("o", "dk", "dv"):
        assert torch.equal(first[name], again[name])
    torch.testing.assert_close(first["dq"], again["dq"], rtol=2.0**-7, atol=1e-6)


@pytest.mark.parametrize("first", [0, 1], ids=["by-the-kernel", "off-16-bytes"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_dq_is_added_to_totals(first, causal, launched):
    """As a ring's blocks are: unrounded where the copy engine reaches them."""
    inputs = make_inputs((2, 4, 2, 700, 300, 56, 64))
    q, k, v, do = (inputs[name].to("cuda", torch.bfloat16) for name in ("q", "k", "v", "do"))
    terms = Terms("relu4", right=0 if causal else None)
    given = ((), do, q, k, v, None, None, None, terms, False, False)
    dq, *expected = attend.launch_backward(*given)
    whole = torch.randn(first + 2 * q.numel(), device="cuda")[first:]
    totals = whole.view(2, 4, 1400, 56)[:, :, 300:1000]  # rows of a ring's
    for _ in range(2):
        before = totals.clone()
        found = attend.launch_backward(*given, totals=totals)
        assert all(map(torch.equal, found, expected))
        atol = 4e-7 * float(before.abs().max())
        torch.testing.assert_close(totals - before, dq.float(), rtol=2.0**-7, atol=atol)
    totals.zero_()
    attend.launch_backward(*given, totals=totals)
    added = totals[totals != 0]  # causal: the first queries see no key
    rounded = (added == added.bfloat16()).float().mean().item()
    assert rounded < 0.1 if first == 0 else rounded == 1.0
    assert len(launched) == 2
    *_, recorder = replay._recordings.values()
    assert len(recorder.launches) == (1 if first == 0 else 4)


def test_a_cuda_graph_follows_new_inputs(launched):
    for got, expected in zip(*gradients_by_graph((1, 2, 2, 600, 600, 64, 64), 2), strict=True):
        torch.testing.assert_close(got, expected, rtol=2.0**-7, atol=1e-6)
    assert len(launched) == 1


def test_fp16_by_position_takes_two_passes(launched):
    inputs = make_inputs((1, 2, 2, 600, 600, 64, 64))
    assert_exact("triton", torch.float16, inputs, causal=True)
    assert launched == []
    assert_exact("triton", torch.float16, inputs, causal=True, alpha=0.0)
    assert len(launched) == 1


def test_packed_calls_match_reference(launched):
    """dq is rounded into its place in dqkv, between those of k and v."""
    shape = (2, 700, 3, 4, 64)
    generator = torch.Generator().manual_seed(0)
    qkv, do = (torch.randn(x, generator=generator).bfloat16() for x in (shape, (2, 700, 4, 64)))
    results = {}
    for name, dtype, impl in (
        *(("got", torch.bfloat16, "triton"), ("exact", torch.float64, "reference")),
        ("plain", torch.bfloat16, "reference"),
    ):
        leaf = qkv.to("cuda", dtype).requires_grad_()
        o = flashpoint.attention_qkvpacked(leaf, activation="silu", impl=impl)
        (grad,) = torch.autograd.grad(o, leaf, do.to("cuda", dtype))
        results[name] = {"o": o.detach(), "dqkv": grad}
    assert len(launched) == 1
    assert_judged(**results, sums=Sums(1.0, 700))


def test_whoever_asks_pytorch_for_order_gets_the_same_bits(noted):
    inputs = make_inputs((2, 16, 16, 1200, 1200, 64, 64))
    assert torch.are_deterministic_algorithms_enabled()
    results = [run("triton", torch.bfloat16, inputs, activation="silu") for _ in range(4)]
    assert noted == []
    for result in results[1:]:
        assert all(torch.equal(result[name], x) for name, x in results[0].items())
    torch.use_deterministic_algorithms(mode=False)
    run("triton", torch.bfloat16, inputs, activation="silu")
    assert len(noted) == 1
