"""A second call like the first is a replay: of every route, on new tensors with new values."""

from functools import partial

import pytest
import torch
from implementations import HAS_TRITON, TRITON, device_of, needs_gpu
from numerics import make_qkv
from results import assert_same, evaluate

from flashpoint import HeadNorm, attention, attention_qkvpacked

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.triton import replay

SHAPE = (2, 3, 3, 17, 17, 32, 32)


class Repeating(replay.Recorder):
    """Records in the interpreter too, and replays there by the kernel itself."""

    def __init__(self, like):
        super().__init__(like)
        self.is_repeatable = True

    def launch(self, kernel, num_programs, arguments):
        super().launch(kernel, num_programs, arguments)
        last = self.launches[-1]
        self.launches[-1] = last._replace(compiled=last.compiled or kernel)


def call_plain(q, k, v, **options):
    return attention(q, k, v, **options)


def call_packed(q, k, v, q_gain=None, k_gain=None, **options):
    qkv = torch.stack([x.transpose(1, 2) for x in (q, k, v)], 2)
    norms = {} if q_gain is None else {"q_norm": HeadNorm("layer", q_gain)}
    norms |= {} if k_gain is None else {"k_norm": HeadNorm("rms", k_gain)}
    return attention_qkvpacked(qkv, **norms, **options).transpose(1, 2)


CALLS = {
    "plain": (call_plain, ()),
    "packed": (call_packed, ()),
    "normalised": (call_packed, ("q_gain", "k_gain")),
    "queries only": (call_packed, ("q_gain",)),
    "keys only": (call_packed, ("k_gain",)),
}
ROUTES = {
    "one tile": {},
    "general": {"causal": True},
    "lengths": {"key_lengths": [9, 17]},
}


def check_replays(call, gains, shape, dtype, monkeypatch):
    """Calls on new tensors, replayed from the first one's recordings, are as fresh ones."""
    monkeypatch.setattr(replay, "Recorder", Repeating)
    monkeypatch.setattr(replay, "_recordings", {})
    for seed in (1, 2, 3):
        tensors = make_qkv(shape, dtype, seed)
        tensors |= {n: tensors["q"][0, 0, i].clone() for i, n in enumerate(gains)}
        got = evaluate(call, **tensors)
        assert len(replay._recordings) == 2
        fresh = dict(replay._recordings)
        replay._recordings.clear()
        assert_same(got, evaluate(call, **tensors))
        replay._recordings.update(fresh)


@pytest.mark.parametrize("options", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize(("call", "gains"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("impl", TRITON)
def test_second_call_follows_new_values(impl, call, gains, options, monkeypatch):
    if "key_lengths" in options:
        options = {"key_lengths": torch.tensor(options["key_lengths"], device=device_of(impl))}
    call = partial(call, impl=impl, **options)
    check_replays(call, gains, SHAPE, torch.float16, monkeypatch)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L", [65, 197, 300])
@pytest.mark.parametrize(("call", "gains"), CALLS.values(), ids=CALLS)
def test_second_call_follows_new_values_on_a_gpu(call, gains, L, causal, monkeypatch):
    """By the kernels that tokens of vision take there, those for Hopper among them."""
    call = partial(call, impl="triton", causal=causal)
    check_replays(call, gains, (2, 3, 3, L, L, 64, 64), torch.bfloat16, monkeypatch)
