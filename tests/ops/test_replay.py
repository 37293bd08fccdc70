"""A second call like the first is a replay: of every route, on new tensors with new values."""

from functools import partial

import pytest
import torch
from implementations import HAS_TRITON, TRITON
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
    "lengths": {"key_lengths": torch.tensor([9, 17])},
}


@pytest.mark.parametrize("options", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize(("call", "gains"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("impl", TRITON)
def test_second_call_follows_new_values(impl, call, gains, options, monkeypatch):
    call = partial(call, impl=impl, **options)
    monkeypatch.setattr(replay, "Recorder", Repeating)
    monkeypatch.setattr(replay, "_recordings", {})
    for seed in (1, 2, 3):
        tensors = make_qkv(SHAPE, torch.float16, seed)
        tensors |= {n: tensors["q"][0, 0, i].clone() for i, n in enumerate(gains)}
        got = evaluate(call, **tensors)
        assert len(replay._recordings) == 2
        fresh = dict(replay._recordings)
        replay._recordings.clear()
        assert_same(got, evaluate(call, **tensors))
        replay._recordings.update(fresh)
