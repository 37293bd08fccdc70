"""Packed sequences: each is a problem of its own, whatever lies beside it."""

import itertools
from functools import partial

import pytest
import torch
from implementations import (
    FAST,
    IMPLEMENTATIONS,
    IN_PYTHON,
    TRITON,
    compiler_of,
    device_of,
    interpreted,
    on_gpu,
    widest_dtype,
)
from numerics import assert_within_budget
from results import assert_same, evaluate
from torch.utils.flop_counter import FlopCounterMode

from flashpoint import Activation, attention, attention_varlen
from flashpoint.lab.selfcheck.judge import Sums
from flashpoint.ops import api
from flashpoint.ops.activation import BUILTIN

# tokens of each sequence: queries, keys
PACKINGS = {
    "usual": [(3, 3), (5, 5), (1, 1), (4, 4)],
    "one sequence": [(6, 6)],
    "one token": [(1, 1)],
    "cross": [(2, 5), (6, 3), (1, 7)],
    "empty between": [(0, 0), (3, 4), (0, 0), (2, 2), (0, 0)],
    "queries without keys": [(3, 0), (2, 4), (0, 5)],
    "nothing in any": [(0, 0), (0, 0)],
    "no sequence": [],
    "no queries at all": [(0, 3), (0, 1)],
    "past a tile": [(300, 20), (3, 1030)],
}
OPTIONS = {
    "default": {},
    "causal": {"causal": True},
    "window": {"window": (2, 1), "alpha": 0.5},
    "causal window": {"window": (1, None), "causal": True, "length": "keys"},
    "causal root": {"causal": True, "alpha": 0.5},
    "causal power": {"causal": True, "alpha": 1.7},
    "keys": {"length": "keys", "alpha": -0.5, "bias": -0.3},
    "keys root": {"length": "keys", "alpha": 0.5, "window": (3, 1)},
    "number": {"length": 10, "scale": 0.7},
}


def make_packed(impl, packing, heads=(4, 2), dtype=None, index=torch.int32):
    """q, k, v to differentiate, and where the sequences lie; D=3, Dv=2."""
    ends = torch.tensor([(0, 0), *packing]).cumsum(0).to(index)
    longest = [max((pair[side] for pair in packing), default=0) for side in (0, 1)]
    generator = torch.Generator().manual_seed(0)
    sizes = {"q": (0, heads[0], 3), "k": (1, heads[1], 3), "v": (1, heads[1], 2)}
    device, dtype = device_of(impl), widest_dtype(impl) if dtype is None else dtype
    tensors = {
        name: torch.randn(int(ends[-1, side]), *rest, generator=generator, dtype=torch.float64)
        for name, (side, *rest) in sizes.items()
    }
    where = {
        "cu_seqlens_q": ends[:, 0].contiguous().to(device),
        "cu_seqlens_k": ends[:, 1].contiguous().to(device),
        "max_seqlen_q": longest[0],
        "max_seqlen_k": longest[1],
    }
    return {name: t.to(device, dtype) for name, t in tensors.items()}, where


def attend_each(q, k, v, where, bias=None, mask=None, **options):
    """The same by ``attention``, one sequence after another."""
    cu_q, cu_k = where["cu_seqlens_q"].tolist(), where["cu_seqlens_k"].tolist()
    rows = [q[:0] @ v.new_zeros(q.shape[2], v.shape[2])]
    for b, (q0, q1, k0, k1) in enumerate(zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False)):
        batch = [t.transpose(0, 1)[None] for t in (q[q0:q1], k[k0:k1], v[k0:k1])]
        corner = (slice(b, b + 1), slice(None), slice(q1 - q0), slice(k1 - k0))
        shape = (len(cu_q) - 1, q.shape[1], where["max_seqlen_q"], where["max_seqlen_k"])
        here = {
            name: x.expand(shape)[corner] if isinstance(x, torch.Tensor) else x
            for name, x in (("bias", bias), ("mask", mask))
        }
        rows.append(attention(*batch, **here, **options)[0].transpose(0, 1))
    return torch.cat(rows)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@interpreted(
    lambda packing, options: (
        packing is not PACKINGS["past a tile"]
        and (options is OPTIONS["causal window"] or packing is PACKINGS["cross"])
    )
)
@on_gpu(
    lambda packing, options: (
        options is OPTIONS["causal window"]
        and packing in (PACKINGS["cross"], PACKINGS["no queries at all"], PACKINGS["no sequence"])
    )
)
@pytest.mark.long_interpreted
def test_sequences_are_problems_of_their_own(impl, packing, options):
    tensors, where = make_packed(impl, packing)
    options = options | {"activation": "sigmoid", "impl": impl}
    got = evaluate(partial(attention_varlen, **where, **options), **tensors)
    assert got["o"].shape == (*tensors["q"].shape[:2], 2)
    assert got["o"].is_contiguous()
    assert_same(got, evaluate(partial(attend_each, where=where, **options), **tensors))


# axes of [B, Hq, max Lq, max Lk] that a bias or mask has; the others broadcast
AXES = {
    "all": (0, 1, 2, 3),
    "keys": (3,),
    "queries": (2,),
    "samples": (0,),
    "heads": (1,),
    "none": (),
}


@pytest.mark.parametrize("kind", ["bias", "float mask", "bool mask", "bias and mask"])
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@interpreted(lambda axes, kind: axes == AXES["all"] or (axes, kind) == ((), "bias and mask"))
@on_gpu(lambda axes, kind: axes == AXES["all"] and kind in ("float mask", "bias and mask"))
@pytest.mark.long_interpreted
def test_each_sequence_uses_the_corner_of_bias_and_mask(impl, axes, kind):
    tensors, where = make_packed(impl, [(3, 4), (5, 2), (0, 3), (1, 0), (2, 6)])
    full = (5, 4, 5, 6)
    shape = [size if axis in axes else 1 for axis, size in enumerate(full)]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(tensors["q"])
    options = {"activation": "softplus", "causal": True, "impl": impl}
    if "bias" in kind:
        tensors["bias"] = x
    if kind == "float mask":
        tensors["mask"] = x
    elif "mask" in kind:
        options["mask"] = x > -0.5
    got = evaluate(partial(attention_varlen, **where, **options), **tensors)
    assert_same(got, evaluate(partial(attend_each, where=where, **options), **tensors))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_bias_outside_the_corners_has_no_gradient_and_no_effect(impl, monkeypatch):
    monkeypatch.setattr(api, "is_readable", lambda x: False)  # as on a GPU
    tensors, where = make_packed(impl, [(2, 3), (3, 1)])
    bias = tensors["q"].new_zeros(2, 1, 3, 3)
    unused = torch.ones_like(bias, dtype=torch.bool)
    unused[0, :, :2, :3] = False
    unused[1, :, :3, :1] = False
    call = partial(attention_varlen, **where, activation="sigmoid", impl=impl)
    plain = evaluate(call, **tensors, bias=bias)
    assert not plain["dbias"][unused].any()
    assert plain["dbias"][~unused].all()
    for poison in (float("nan"), float("inf")):
        assert_same(evaluate(call, **tensors, bias=bias.masked_fill(unused, poison)), plain)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_neighbours_never_meet(impl, poison):
    tensors, where = make_packed(impl, [(2, 3), (3, 2), (2, 2)])
    call = partial(attention_varlen, **where, activation="gelu", impl=impl)
    clean = evaluate(call, **tensors)
    dirty = {name: t.clone() for name, t in tensors.items()}
    for t, rows in (
        (dirty["q"], slice(2, 5)),
        (dirty["k"], slice(3, 5)),
        (dirty["v"], slice(3, 5)),
    ):
        t[rows] = poison
    found = evaluate(call, **dirty)
    for name, rows in {"o": 2, "dq": 2, "dk": 3, "dv": 3}.items():
        for part in (slice(rows), slice(5, None)):
            assert torch.equal(found[name][part], clean[name][part]), name


@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@interpreted(lambda activation: activation in ("relu", "softplus"))
@on_gpu(lambda activation: activation == "softplus")
def test_blind_queries_are_zero_with_zero_gradients(impl, activation):
    tensors, where = make_packed(impl, [(3, 0), (5, 2), (2, 2)])
    blind = [0, 1, 2, 3, 4, 5]  # no keys at all; then 5 queries of which 3 precede the keys
    leaves = [t.requires_grad_() for t in tensors.values()]
    o = attention_varlen(*leaves, **where, activation=activation, causal=True, impl=impl)
    assert o.isfinite().all()
    assert not o[blind].any()
    for grad in torch.autograd.grad(o[blind].sum(), leaves, retain_graph=True):
        assert torch.equal(grad, torch.zeros_like(grad))
    for grad in torch.autograd.grad(o.sum(), leaves):
        assert grad.isfinite().all()


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@on_gpu(lambda index: index == torch.int32)
def test_index_type_and_spare_room_change_nothing(impl, index):
    packing = PACKINGS["cross"]
    tensors, where = make_packed(impl, packing, index=torch.int64)
    call = partial(attention_varlen, causal=True, impl=impl)
    tight = evaluate(partial(call, **where), **tensors)
    _, where = make_packed(impl, packing, index=index)
    roomy = where | {"max_seqlen_q": 50, "max_seqlen_k": 70}
    assert_same(evaluate(partial(call, **roomy), **tensors), tight)
    mixed = where | {"cu_seqlens_k": where["cu_seqlens_k"].long()}
    assert_same(evaluate(partial(call, **mixed), **tensors), tight)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_strides_of_tokens_and_indices_change_nothing(impl):
    tensors, where = make_packed(impl, PACKINGS["cross"])
    call = partial(attention_varlen, window=(3, 1), impl=impl)
    dense = evaluate(partial(call, **where), **tensors)
    strided = {name: t.transpose(0, 1).contiguous().transpose(0, 1) for name, t in tensors.items()}
    twice = {
        name: x.repeat_interleave(2)[::2] if isinstance(x, torch.Tensor) else x
        for name, x in where.items()
    }
    assert_same(evaluate(partial(call, **where), **strided), dense)
    assert_same(evaluate(partial(call, **twice), **tensors), dense)


@pytest.mark.parametrize("derivative", [None, torch.cos], ids=["found", "stated"])
@pytest.mark.parametrize("impl", IN_PYTHON)
def test_own_activation_is_used_in_every_sequence(impl, derivative):
    tensors, where = make_packed(impl, PACKINGS["queries without keys"])
    options = {"activation": Activation("sine", torch.sin, derivative), "impl": impl}
    got = evaluate(partial(attention_varlen, **where, **options), **tensors)
    assert_same(got, evaluate(partial(attend_each, where=where, **options), **tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("impl", FAST)
@on_gpu(lambda options, dtype: dtype == torch.bfloat16 or not options)
@pytest.mark.pairwise
@pytest.mark.long_interpreted
def test_lower_precision_stays_within_the_budget(impl, options, dtype):
    rounded, where = make_packed(impl, [(40, 70), (0, 3), (130, 20), (9, 9)], dtype=dtype)
    call = partial(attention_varlen, **where, activation="silu", **options)
    got = evaluate(partial(call, impl=impl), **rounded)
    plain = evaluate(partial(call, impl="reference"), **rounded)
    exact = evaluate(
        partial(call, impl="reference"), **{name: t.double() for name, t in rounded.items()}
    )
    for name, value in got.items():
        assert value.dtype == dtype
        assert_within_budget(name, value, exact[name], plain[name], Sums(group=2))


# entries of cu_seqlens of 150 queries and 160 keys, and the longest sequences
LEFT_OVER = {
    "before": ([2, 5, 12], [3, 3, 15], (7, 12)),
    "behind": ([0, 5, 8], [0, 9, 10], (5, 9)),
    "both sides": ([1, 4, 4, 6], [2, 7, 9, 11], (3, 5)),
    "long sequences": ([0, 7, 12], [0, 9, 15], (3, 4)),
    "long queries": ([0, 7, 12], [0, 9, 15], (2, 20)),
    "all but one": ([11, 12], [0, 1], (1, 1)),
    "everything": ([4, 4], [15, 15], (3, 3)),
    "no sequence": ([5], [0], (3, 3)),
    "no room": ([0, 12], [0, 15], (0, 0)),
}


@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "length": "keys"}], ids=["all", "causal"]
)
@pytest.mark.parametrize(("cu_q", "cu_k", "longest"), LEFT_OVER.values(), ids=LEFT_OVER)
@pytest.mark.parametrize("impl", ["reference", *TRITON])
@pytest.mark.pairwise
def test_tokens_of_no_sequence_give_zeros_with_zero_gradients(
    impl, cu_q, cu_k, longest, options, monkeypatch
):
    monkeypatch.setattr(api, "is_readable", lambda x: False)  # as on a GPU
    index = partial(torch.tensor, device=device_of(impl))
    call = partial(attention_varlen, activation="sigmoid", impl=impl, **options)
    kept = [
        [list(range(a, min(b, a + most))) for a, b in itertools.pairwise(cu)]
        for cu, most in zip((cu_q, cu_k), longest, strict=True)
    ]
    rows = [index([*itertools.chain(*sequences)], dtype=torch.int64) for sequences in kept]
    ends = [index([0, *itertools.accumulate(map(len, sequences))]) for sequences in kept]

    def attend_kept(q, k, v):
        o = call(q[rows[0]], k[rows[1]], v[rows[1]], *ends, *longest)
        return o.new_zeros(len(q), *o.shape[1:]).index_copy(0, rows[0], o)

    def attend_all(q, k, v):
        return call(q, k, v, index(cu_q), index(cu_k), *longest)

    tensors, _ = make_packed(impl, [(150, 160)])
    for name, place in (("q", 0), ("k", 1), ("v", 1)):  # nothing may come of the others
        poisoned = torch.full_like(tensors[name], float("nan"))
        tensors[name] = poisoned.index_copy(0, rows[place], tensors[name][rows[place]])
    assert_same(evaluate(attend_all, **tensors), evaluate(attend_kept, **tensors))


@pytest.mark.slow
@pytest.mark.parametrize("impl", FAST)
def test_compiled_call_is_one_graph_for_any_packing(impl):
    def call(q, k, v, ends):
        return attention_varlen(q, k, v, ends, ends, 8, 8, causal=True, impl=impl)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=compiler_of(impl))
    for lengths in ((3, 6), (1, 7, 3, 4)):
        tensors, where = make_packed(impl, [(n, n) for n in lengths], dtype=torch.float32)
        ends = where["cu_seqlens_q"].long()
        got, expected = (evaluate(partial(f, ends=ends), **tensors) for f in (compiled, call))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", FAST)
def test_flops_count_each_sequence(impl):
    q = torch.randn(9, 2, 8, device=device_of(impl))
    ends = torch.tensor([0, 3, 9], device=q.device)
    with FlopCounterMode(display=False) as counter:
        attention_varlen(q, q, q, ends, ends, 6, 6, impl=impl)
    assert counter.get_total_flops() == 4 * 2 * 8 * (3 * 3 + 6 * 6)
    q, ends = q.to("meta"), ends.to("meta")
    with FlopCounterMode(display=False) as counter:
        attention_varlen(q, q, q, ends, ends, 6, 6, impl=impl)
    assert counter.get_total_flops() == 4 * 2 * 8 * 2 * (6 * 6)  # all that can be known
