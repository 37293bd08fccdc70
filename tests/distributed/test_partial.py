"""Sums of parts: when they are widened, where a first part goes, and who adds chunks of keys."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from implementations import needs_gpu

import flashpoint
from flashpoint.distributed import division
from flashpoint.distributed.call import ShardedCall, Sizes
from flashpoint.distributed.division import count_seen, divide, undivide
from flashpoint.distributed.layout import Shards
from flashpoint.distributed.partial import Partial, PartialGradients, Total
from flashpoint.ops import reference
from flashpoint.ops.spec import Terms

SHAPE, HALF = (1, 2, 6, 4), torch.bfloat16


def part(dtype=HALF, rows=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 2, rows, 4, generator=generator).to(dtype)


def test_one_part_is_the_sum_as_it_is():
    total = Total(SHAPE, 2, part())
    only = part()
    total.add(only, slice(0, 6))
    assert total.finish() is only


def test_first_of_several_parts_is_written_in_fp32_without_zeros():
    total = Total(SHAPE, 2, part(), more=True)
    place = total.place(slice(0, 6))
    assert place is not None
    assert place.is_new
    assert place.totals.dtype == torch.float32
    place.totals.fill_(torch.nan)
    place.take(part())
    following = total.place(slice(2, 5))
    assert following is not None
    assert not following.is_new
    assert following.totals.data_ptr() == place.totals[:, :, 2:].data_ptr()  # nothing is copied
    following.take(part(rows=3, seed=1))
    expected = part().float()
    expected[:, :, 2:5] += part(rows=3, seed=1)
    assert torch.equal(total.finish(), expected)


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("dtype", [HALF, torch.float32, torch.float64], ids=str)
def test_parts_add_up_whatever_was_known(dtype, more):
    total = Total(SHAPE, 2, part(dtype), more=more)
    total.add(part(dtype), slice(0, 6))
    total.add(part(dtype, 2, 1), slice(4, 6))
    wide = torch.promote_types(dtype, torch.float32)
    expected = part(dtype).to(wide)
    expected[:, :, 4:] += part(dtype, 2, 1)
    assert torch.equal(total.finish(), expected)


def test_wide_parts_need_no_place_of_their_own():
    total = Total(SHAPE, 2, part(torch.float32), more=True)
    assert total.place(slice(0, 6)) is None


def test_a_first_part_of_some_rows_is_added_to_zeros():
    total = Total(SHAPE, 2, part(), more=True)
    place = total.place(slice(0, 5))
    assert place is not None
    assert not place.is_new
    assert not total.finish().any()


def make_call(length, chunks, causal, impl):
    """Of one rank's queries over chunks of keys that others hold."""
    keys = Shards.split(length, chunks, "contiguous")
    terms = Terms("relu2", 1.0, right=0 if causal else None)
    queries, sizes = Shards.split(length, 1, "contiguous"), Sizes(1, 2, 2, 64, 64)
    transport = SimpleNamespace(rank=0)
    return ShardedCall(queries, keys, 0, sizes, terms, None, impl, False, False, transport)


def add_chunks(call, q, k, v, do, order):
    """o, dq, dk and dv, from chunks that come in some order."""
    (queries,) = call.queries.ranges
    partial = Partial(call, q, queries, more=True)
    held = [(call.keys.take(k, i), call.keys.take(v, i), call.keys.ranges[i]) for i in order]
    for chunk in held:
        partial.add(*chunk)
    o = divide(call, queries, partial.numerators, None, q.dtype)
    grads = undivide(call, queries, do, None, None, None, q.dtype)
    gradients = PartialGradients(call, q, queries, grads, more=True)
    found = {i: gradients.add(*chunk) for i, chunk in zip(order, held, strict=True)}
    dk, dv = (torch.cat([found[i][x] for i in sorted(found)], 2) for x in (0, 1))
    return o, gradients.dq.to(q.dtype), dk, dv


def assert_chunks_add_up(call, device, order):
    """Against fp64: each number within two percent of the largest."""
    generator = torch.Generator().manual_seed(0)
    length = call.keys.total
    q, k, v, do = (torch.randn(1, 2, length, 64, generator=generator).bfloat16() for _ in "qkvo")
    got = add_chunks(call, *(x.to(device) for x in (q, k, v, do)), order)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    options = {"activation": "relu2", "causal": call.terms.right == 0, "impl": "reference"}
    o = flashpoint.attention(*leaves, **options)
    exact = (o.detach(), *torch.autograd.grad(o, leaves, do.double()))
    for name, x, y in zip(("o", "dq", "dk", "dv"), got, exact, strict=True):
        assert (x.cpu().double() - y).abs().max() <= 0.02 * y.abs().max(), name


def launch_forward(has_sums, *inputs, totals, overwrites):
    """What the GPU's own does, by the definition."""
    o, sums = reference.attention(*inputs)
    totals.copy_(o) if overwrites else totals.add_(o)
    return [sums] if has_sums else []


def launch_backward(of_sums, do, *inputs, need_dbias, need_dmask, totals):
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        o, _ = reference.attention(*leaves, *inputs[3:])
        dq, *rest = torch.autograd.grad(o, leaves, do)
    totals.add_(dq)
    return rest


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_chunks_go_to_the_kernels_with_their_sums(causal, order, monkeypatch):
    """The first one in fresh memory, which holds anything, unless some rows see none of it."""
    stand_in = ModuleType("attend")
    stand_in.launch_forward, stand_in.launch_backward = launch_forward, launch_backward
    monkeypatch.setitem(sys.modules, "flashpoint.ops.gpu.attend", stand_in)
    usual = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda *x, **named: usual(*x, **named).fill_(torch.nan)
    )
    assert_chunks_add_up(make_call(96, 3, causal, "triton"), "cpu", order)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_chunks_add_up_on_a_gpu(causal, order):
    assert_chunks_add_up(make_call(1920, 3, causal, "triton"), "cuda", order)


HIDING = {
    "nothing": {},
    "scores": {"mask": torch.zeros(1, 1, 1, 6)},
    "window": {"terms": Terms(left=3)},
    "causal": {"terms": Terms(right=0)},
    "key-lengths": {"key_lengths": torch.tensor([4])},
    "mask": {"mask": torch.tensor([True, False] * 3).view(1, 1, 1, 6)},
}


@pytest.mark.parametrize("name", HIDING)
def test_keys_are_counted_only_where_some_are_hidden(name, monkeypatch):
    call = make_call(6, 2, causal=False, impl="reference")._replace(terms=Terms())
    call = call._replace(**HIDING[name])
    (queries,) = call.queries.ranges
    sums = torch.ones(1, 2, 6, 64)
    expected = sums / count_seen(call, queries, sums.device)
    counted = []
    monkeypatch.setattr(
        division, "count_seen", lambda *given: counted.append(1) or count_seen(*given)
    )
    torch.testing.assert_close(divide(call, queries, sums, None, sums.dtype), expected)
    assert len(counted) == (0 if name in ("nothing", "scores") else 1)
