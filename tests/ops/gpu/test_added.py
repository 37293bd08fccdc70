"""Results that are added to sums: by Hopper's kernel itself, elsewhere by one more launch."""

import math
import random

import pytest
import torch
from implementations import HAS_GPU, HAS_TRITON, device_of, needs_gpu, needs_hopper
from numerics import make_inputs, make_qkv

import flashpoint

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from addressed import Addressed, Refusing, without_a_gpu

from flashpoint.lab.selfcheck.judge import Sample, Sums, share_of
from flashpoint.ops.gpu import attend, dispatch, replay
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.spec import Terms

DEVICE = device_of("triton")
pytestmark = [pytest.mark.gpu] if HAS_GPU else []
HALF = (torch.bfloat16, torch.float16) if HAS_GPU else (torch.float16,)
SMALL_DIMS = (8, 13, 32)
ROOMS = {64: (40, 56, 64), 128: (72, 104, 128), 192: (136, 160, 192), 256: (200, 248, 256)}
SCORES = ("none", "none", "bias", "mask", "lengths")
NUM_DRAWS, NUM_LARGE = 12, 64


def draw(seed, lengths, dims, activations=("relu", "relu", "relu4", "silu")):
    """A call's shape and terms."""
    chance = random.Random(seed)
    group, heads = chance.choice([1, 1, 2]), chance.choice([1, 2])
    sizes = [chance.randrange(*lengths) for _ in range(2)]
    dims = [chance.choice(dims) for _ in range(2)]
    shape = (chance.choice([1, 2]), group * heads, heads, *sizes, *dims)
    terms = Terms(
        chance.choice(activations), chance.choice([0.0, 1.0]), right=chance.choice([None, 0])
    )
    return chance, shape, terms


def make_totals(chance, shape):
    """Numbers [B, H, Lq, Dv] amid others, in one of the layouts that sums come in."""
    B, Hq, _, Lq, _, _, Dv = shape
    before, behind = chance.choice([(0, 0), (3, 5), (8, 0)])
    rows = before + Lq + behind
    size = (B, Hq, rows, Dv)
    heads_last = chance.random() < 0.3  # any strides will do but those of columns
    if heads_last:
        size = (B, rows, Hq, Dv)
    first = chance.choice([0, 0, 1])  # the copy engine cannot reach numbers off 16 bytes
    numbers = torch.randn(first + math.prod(size), generator=torch.Generator().manual_seed(0))
    whole = numbers.to(DEVICE)[first:].view(size)
    held = whole.transpose(1, 2) if heads_last else whole
    return whole, held[:, :, before : before + Lq]


def make_scores(kind, shape, dtype):
    """A bias, a mask and lengths of keys: one of them, or none."""
    B, Hq, _, Lq, Lk, _, _ = shape
    generator = torch.Generator().manual_seed(1)
    made = {
        "bias": torch.randn(1, Hq, Lq, Lk, generator=generator).to(DEVICE, dtype),
        "mask": (torch.rand(B, 1, Lq, Lk, generator=generator) < 0.7).to(DEVICE),
        "lengths": torch.randint(0, Lk + 1, (B,), generator=generator).to(DEVICE),
    }
    return [x if name == kind else None for name, x in made.items()]


def assert_added(chance, shape, dtype, terms, has_sums, scores):
    """Twice, on other numbers: the second call is a replay. Or written over what was there."""
    whole, totals = make_totals(chance, shape)
    overwrites = chance.random() < 0.3
    bias, mask, lengths = make_scores(scores, shape, dtype)
    untouched = whole.clone()
    for seed in (0, 1):
        inputs = [make_inputs(shape, seed)[name].to(DEVICE) for name in "qkv"]
        options = {"alpha": terms.alpha, "activation": terms.activation, "mask": mask}
        options |= {"causal": terms.right == 0, "key_lengths": lengths}
        exact, plain = (
            flashpoint.attention(
                *(x.to(precision) for x in inputs),
                **options,
                bias=0.0 if bias is None else bias.to(precision),
                impl="reference",
            )
            for precision in (torch.float64, dtype)
        )
        if overwrites:
            totals.fill_(math.nan)
        before = torch.zeros_like(totals) if overwrites else totals.clone()
        given = (*(x.to(dtype) for x in inputs), bias, mask, lengths, terms)
        sums = attend.launch_forward(has_sums, *given, totals=totals, overwrites=overwrites)
        added = (totals.double() - before.double()).to(dtype)
        found = ({"o": x} for x in (added, exact, plain, before))
        share = share_of("o", [Sample(*found)], Sums(terms=shape[4], dtype=torch.float32))
        assert share.ratio <= 1.0, str(share)
        (expected,) = attend.launch_forward(has_sums, *given)[1:] or (None,)
        assert len(sums) == has_sums
        assert expected is None or torch.equal(sums[0], expected)
    totals.zero_()
    outside = whole != 0
    assert torch.equal(whole[outside], untouched[outside])
    assert outside.sum() == whole.numel() - totals.numel()


@pytest.mark.parametrize("seed", range(NUM_DRAWS))
def test_results_are_added_where_they_belong(seed, monkeypatch):
    if not HAS_GPU:
        without_a_gpu(monkeypatch)
        monkeypatch.setattr(replay, "Recorder", Addressed)
    chance, shape, terms = draw(seed, (1, 90), SMALL_DIMS)
    dtype, has_sums = chance.choice([*HALF, torch.float32]), chance.random() < 0.5
    assert_added(chance, shape, dtype, terms, has_sums, chance.choice(SCORES))
    assert HAS_GPU or Addressed.replays == 2  # of what is added, and of what it is held against


@pytest.mark.parametrize("seed", range(NUM_DRAWS))
def test_dq_is_added_where_it_belongs(seed, monkeypatch):
    """Twice, as a replay too: rounded as it is without totals. dk and dv are what they were."""
    if not HAS_GPU:
        without_a_gpu(monkeypatch)
        monkeypatch.setattr(replay, "Recorder", Addressed)
    chance, shape, terms = draw(seed, (1, 90), SMALL_DIMS)
    dtype, has_sums = chance.choice([*HALF, torch.float32]), chance.random() < 0.5
    whole, totals = make_totals(chance, (*shape[:6], shape[5]))
    bias, mask, lengths = make_scores(chance.choice(SCORES), shape, dtype)
    untouched = whole.clone()
    for draw_seed in (0, 1):
        inputs = make_inputs(shape, draw_seed)
        q, k, v, do = (inputs[name].to(DEVICE, dtype) for name in ("q", "k", "v", "do"))
        dsums = torch.randn(q.shape[:3], generator=torch.Generator().manual_seed(draw_seed))
        of_sums = (dsums.to(DEVICE), None, None) if has_sums else ()
        needs = (bias is not None, False)
        given = (of_sums, do, q, k, v, bias, mask, lengths, terms, *needs)
        before = totals.clone()
        dq, *expected = attend.launch_backward(*given)
        found = attend.launch_backward(*given, totals=totals)
        assert torch.equal(totals, before + dq.float())
        assert all(map(torch.equal, found, expected))
    totals.zero_()
    outside = whole != 0
    assert torch.equal(whole[outside], untouched[outside])


def test_sums_are_rounded_to_what_they_are_written_to():
    """As those of dq are, behind a backward in one pass: rows of a packed gradient too."""
    from flashpoint.ops.gpu.hopper.backward.dq_sums import launch_clear, launch_round

    sums = torch.randn(2, 3, 70, 40, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    packed = torch.full((2, 70, 3, 3, 40), math.nan, dtype=HALF[0], device=DEVICE)
    recorder = replay.Recorder(sums)
    launch_round(recorder, sums, packed[:, :, 0].transpose(1, 2))
    assert torch.equal(packed[:, :, 0].transpose(1, 2), sums.to(HALF[0]))
    assert packed[:, :, 1:].isnan().all()
    launch_clear(recorder, sums)
    assert not sums.any()


@pytest.mark.skipif(HAS_GPU, reason="on a GPU the real launcher replays")
def test_an_addition_that_is_refused_is_made_once(monkeypatch):
    """Where the C launcher does not take its last launch, a replay is repeated by Triton's way."""
    without_a_gpu(monkeypatch)
    monkeypatch.setattr(replay, "Recorder", Refusing)
    chance, shape, terms = draw(3, (40, 90), SMALL_DIMS)
    assert_added(chance, shape, torch.float32, terms, True, "none")
    assert Addressed.replays == 2


def draw_for_hopper(seed):
    """The next room, and what is served in it: with sums keys end with a block, or causally."""
    room = list(ROOMS)[seed % len(ROOMS)]
    narrow = room <= dispatch.NARROW
    activations = ("relu", "relu", "relu4", "silu", "gelu") if narrow else ("relu",)
    chance, shape, terms = draw(seed, (192, 900), ROOMS[room], activations)
    has_sums = narrow and chance.random() < 0.4
    dtype = torch.bfloat16 if has_sums or terms.activation == "relu4" else chance.choice(HALF)
    if has_sums:
        shape = (*shape[:4], shape[4] // 128 * 128, *shape[5:])
    return chance, shape, dtype, terms, has_sums


@needs_gpu
@needs_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(NUM_LARGE))
def test_hopper_adds_by_itself(seed):
    chance, shape, dtype, terms, has_sums = draw_for_hopper(seed)
    tensors = make_qkv(shape, dtype).values()
    call = Call.dense(*tensors, None, None, None, terms)._replace(has_sums=has_sums)
    assert dispatch.choose(call) is dispatch.HOPPER
    assert_added(chance, shape, dtype, terms, has_sums, "none")


@needs_gpu
@needs_hopper
@pytest.mark.gpu
def test_a_call_for_hopper_is_one_launch_without_rounding_or_memory(monkeypatch):
    monkeypatch.setattr(replay, "_recordings", {})
    shape = (2, 4, 4, 512, 512, 64, 64)
    q, k, v = (make_inputs(shape)[name].to(DEVICE, torch.bfloat16) for name in "qkv")
    call = Call.dense(q, k, v, None, None, None, Terms())
    assert dispatch.choose(call) is dispatch.HOPPER
    totals = torch.zeros(q.shape, device=DEVICE)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        assert attend.launch_forward(False, *call[:3], *[None] * 3, Terms(), totals=totals) == []
        assert torch.cuda.max_memory_allocated() == before
    (recorder,) = replay._recordings.values()
    assert len(recorder.launches) == 1
    assert (totals != totals.bfloat16()).float().mean() > 0.9  # nothing was rounded on the way


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)], ids=str)
def test_nothing_is_added_where_there_is_nothing(sizes):
    q, k = (torch.ones(1, 2, n, 16, dtype=HALF[0], device=DEVICE) for n in sizes)
    totals = torch.ones(1, 2, sizes[0], 16, device=DEVICE)
    (sums,) = attend.launch_forward(True, q, k, k, None, None, None, Terms(), totals=totals)
    assert torch.equal(totals, torch.ones_like(totals))
    assert sums.shape == (1, 2, sizes[0])
    assert not sums.any()
    attend.launch_forward(
        False, q, k, k, None, None, None, Terms(), totals=totals, overwrites=True
    )
    assert not totals.any()
