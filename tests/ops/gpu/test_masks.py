"""Masks of booleans as words: what is packed, who reads it, and that replays read it anew."""

import pytest
import torch
from implementations import HAS_TRITON, TRITON, device_of, needs_gpu
from numerics import assert_exact, make_inputs

from flashpoint import attention

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.gpu import call as call_module
from flashpoint.ops.gpu import dispatch, replay
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.portable.masks import read_mask
from flashpoint.ops.spec import Terms

# sizes of masks over B, H, Lq, Lk = 2, 4, 70, 131
SHAPES = {
    "all": (2, 4, 70, 131),
    "per sample": (2, 1, 70, 131),
    "per head": (1, 4, 70, 131),
    "shared": (1, 1, 70, 131),
    "keys": (2, 1, 1, 131),
    "queries": (2, 1, 70, 1),
}
OPTIONS = {
    "plain": {"alpha": 0.7},
    "causal": {"causal": True, "activation": "gelu"},
    "window and lengths": {"window": (40, 9), "key_lengths": torch.tensor([93, 131])},
    "keys count": {"length": "keys", "activation": "sigmoid", "bias": -0.2},
    "sums": {"activation": "relu4", "normalize": "sum", "floor": 1e-3},
    "bias": {"bias": torch.linspace(-1, 1, 131).expand(1, 4, 70, 131).clone()},
}


def draw_mask(sizes, seed):
    """Half of it seen, a query that sees nothing, and one that sees all."""
    mask = torch.rand(sizes, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[..., :1, :] = False
    mask[..., -1:, :] |= sizes[2] > 1
    return mask


@pytest.fixture
def packing(monkeypatch):
    """Calls of few keys pack their masks, too."""
    monkeypatch.setattr(call_module, "MOST_KEYS_BY_POINTERS", 0)
    replay._recordings.clear()
    yield
    replay._recordings.clear()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("impl", TRITON)
@pytest.mark.pairwise
@pytest.mark.long_interpreted
@pytest.mark.usefixtures("packing")
def test_masks_of_every_shape_match_reference(impl, sizes, options):
    """Twice: the second call is a replay, whose mask is another one."""
    for seed in (0, 1):
        inputs = make_inputs((2, 4, 2, 70, 131, 32, 16), seed)
        assert_exact(impl, torch.float32, inputs, mask=draw_mask(sizes, seed), **options)


@pytest.mark.parametrize("impl", TRITON)
@pytest.mark.usefixtures("packing")
def test_packed_sequences_with_a_mask_match_reference(impl):
    """Words of one mask for all sequences, whose lengths differ."""
    from flashpoint import attention_varlen

    ends = torch.tensor([0, 40, 40, 131], dtype=torch.int32)
    mask = draw_mask((1, 2, 91, 91), 3)
    q, k, v = (torch.randn(131, 2, 16, dtype=torch.float64) for _ in range(3))
    rest = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 91, "max_seqlen_k": 91}
    expected = attention_varlen(q, k, v, **rest, mask=mask, impl="reference")
    place = device_of(impl)
    rest = {name: x.to(place) if torch.is_tensor(x) else x for name, x in rest.items()}
    single = (x.float().to(place) for x in (q, k, v))
    got = attention_varlen(*single, **rest, mask=mask.to(place), impl=impl)
    torch.testing.assert_close(got.cpu().double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", TRITON)
@pytest.mark.parametrize("num_keys", [33, 300, 513])
def test_words_hold_the_bits_of_a_mask_and_zeros_behind(impl, num_keys, monkeypatch):
    monkeypatch.setattr(call_module, "MOST_KEYS_BY_POINTERS", 0)
    place = device_of(impl)
    mask = draw_mask((2, 1, 5, num_keys), 0).to(place)
    q, k = torch.randn(2, 2, 5, 16, device=place), torch.randn(2, 2, num_keys, 16, device=place)
    call = Call.dense(q, k, k, None, mask.view(torch.uint8), None, Terms(alpha=0.5))
    read = read_mask(call, replay.Recorder(q), dispatch.PORTABLE)
    assert read.mask_words is not None
    assert read.normalizers is not None
    words = read.mask_words.cpu()
    bits = (words[..., None] >> torch.arange(32) & 1).flatten(-2).bool()
    assert torch.equal(bits[..., :num_keys], mask.cpu())
    assert not bits[..., num_keys:].any()
    counts = mask.sum(-1).clamp(min=1).float().cpu()
    gain = call.terms.gain * call.moved
    torch.testing.assert_close(read.normalizers.cpu(), gain * counts**-0.5)


def test_bytes_stay_where_words_would_not_pay():
    q, k = torch.empty(1, 1, 5, 16), torch.empty(1, 1, 300, 16)
    for kernels, sizes, terms, packs in (
        (dispatch.PORTABLE, (1, 1, 5, 300), Terms(alpha=0.0), True),
        (dispatch.PORTABLE, (1, 1, 5, 1), Terms(alpha=0.0), False),
        (dispatch.DECODE, (1, 1, 5, 300), Terms(alpha=0.0), False),
    ):
        mask = torch.ones(sizes, dtype=torch.uint8)
        call = Call.dense(q, k, k, None, mask, None, terms)
        read = read_mask(call, replay.Recorder(q), kernels)
        assert (read.mask_words is not None) == packs
        assert read.normalizers is None


@pytest.mark.gpu
@needs_gpu
def test_a_masked_call_is_replayed_on_a_gpu():
    """Its mask is read anew: another one of the same shape gives another result."""
    q, k, v = (torch.randn(2, 2, 300, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    replay._recordings.clear()
    results = []
    for seed in (0, 1, 0):
        mask = draw_mask((2, 1, 300, 300), seed).cuda()
        results.append(attention(q, k, v, mask=mask))
        assert len(replay._recordings) == 1
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[1])
