"""Laws of the operator, over random shapes, strides, masks and options.

Tiles are cut down to a few rows and keys here, so that small problems cross many edges.
"""

from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from unittest import mock

import pytest
import textbook
import torch
from hypothesis import given
from hypothesis import strategies as st
from implementations import FAST, HAS_GPU, placed, serves, widest_dtype
from random_calls import (
    any_calls,
    calls,
    divided,
    give,
    law,
    lengths,
    numbers,
    positions,
    quick,
    score_shape,
    scored,
    small_triton_tiles,
    whole,
)
from results import TOLERANCES, assert_same, evaluate

from flashpoint import attention, attention_varlen
from flashpoint.ops.cpu import forward, tiling

# tiles of the interpreter are cut here, not by the fixture for all
pytestmark = [] if HAS_GPU else [pytest.mark.usual_tiles]


@pytest.fixture(autouse=True, scope="module")
def _small_tiles():
    with ExitStack() as stack:
        stack.enter_context(
            mock.patch.multiple(tiling, ROWS=4, KEYS=3, AREA_PER_THREAD=1, LARGEST_AREA=40)
        )
        stack.enter_context(mock.patch.object(forward, "SMALL", 16))
        for patch in small_triton_tiles():
            stack.enter_context(patch)
        yield


@quick
@given(any_calls())
def test_reference_is_the_textbook_formula(call):
    tensors, options = call
    options |= {"return_sums": True}
    absent = {"bias": None, "mask": None, "key_lengths": None}
    expected = textbook.attention(**absent | tensors | options)
    got = attention(**tensors, **options, impl="reference")
    for name, value, known in zip(("o", "sums"), got, expected, strict=True):
        assert_same({name: value}, {name: known})


@law(FAST, 200, call=any_calls())
@pytest.mark.long_interpreted
def test_every_option_agrees_with_the_reference(impl, call):
    tensors, options = call
    for dtype in (torch.float64, torch.float32):
        if not serves(impl, dtype):
            continue
        tensors = {name: t.to(dtype) for name, t in tensors.items()}
        got, expected = give(impl, tensors, options), give("reference", tensors, options)
        assert_same(got, expected)
        unrecorded = attention(**placed(impl, tensors | options), impl=impl)
        unrecorded = unrecorded if options["return_sums"] else (unrecorded,)
        for value, name in zip(unrecorded, ("o", "sums", "logs"), strict=False):
            assert torch.equal(value.cpu(), got[name])


@law(
    call=calls(numbers, {"length": st.sampled_from([1, 7, 0.4])}, sums=False),
    cuts=st.lists(st.integers(0, 8), max_size=3),
)
def test_shards_of_the_keys_add_up(impl, call, cuts):
    tensors, options = call
    num_keys = tensors["k"].shape[2]
    edges = sorted({0, num_keys, *(min(cut, num_keys) for cut in cuts)})
    shards = [slice(a, b) for a, b in pairwise(edges)] or [slice(0, 0)]

    def attend_shards(q, k, v, **others):
        parts = [
            attention(q, k[:, :, at], v[:, :, at], **keys_of(others, at), impl=impl)
            for at in shards
        ]
        return torch.stack(parts).sum(0)

    at_once = give(impl, tensors, options)
    summed = evaluate(partial(attend_shards, **placed(impl, options)), **placed(impl, tensors))
    assert_same({name: t.cpu() for name, t in summed.items()}, at_once)


def keys_of(options, index):
    """Options with bias and mask at some of the keys."""
    cut = {}
    for name in ("bias", "mask"):
        x = options.get(name)
        if isinstance(x, torch.Tensor) and x.dim() and x.shape[-1] > 1:
            cut[name] = x[..., index]
    return options | cut


@law(call=calls(numbers, lengths), data=st.data())
def test_order_of_the_keys_does_not_matter(impl, call, data):
    tensors, options = call
    order = torch.tensor(
        data.draw(st.permutations(range(tensors["k"].shape[2]))), dtype=torch.int64
    )
    shuffled = {
        name: t[:, :, order] if name in "kv" else t for name, t in keys_of(tensors, order).items()
    }
    straight = give(impl, tensors, options)
    for name in ("dk", "dv"):
        straight[name] = straight[name][:, :, order]
    assert_same(
        give(impl, shuffled, keys_of(options, order)), keys_of_gradients(straight, order, tensors)
    )


def keys_of_gradients(found, index, tensors):
    """Gradients of bias and mask at some of the keys, where they have a key axis."""
    cut = keys_of({name: found[f"d{name}"] for name in ("bias", "mask") if name in tensors}, index)
    return found | {f"d{name}": t for name, t in cut.items()}


@law(call=calls(numbers, masked=False), data=st.data())
def test_padding_changes_no_sample(impl, call, data):
    tensors, options = call
    B, _, num_keys, _ = tensors["k"].shape
    tensors = {name: tensors[name] for name in "qkv"}
    exist = data.draw(st.lists(st.integers(0, num_keys), min_size=B, max_size=B))
    beyond = torch.arange(num_keys) >= torch.tensor(exist).view(B, 1, 1, 1)  # [B, 1, 1, Lk]

    def attend_each(q, k, v):
        parts = [
            attention(q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n], **options, impl=impl)
            for b, n in enumerate(exist)
        ]
        return whole(parts)

    alone = evaluate(attend_each, **placed(impl, tensors))
    alone = {name: t.cpu() for name, t in alone.items()}
    dirty = tensors | {n: tensors[n].masked_fill(beyond.mT, float("nan")) for n in "kv"}
    assert_same(give(impl, dirty, options | {"key_lengths": torch.tensor(exist)}), alone)
    assert_same(give(impl, tensors, options | {"mask": ~beyond}), alone)


@law(call=calls(numbers, masked=False))
def test_causal_is_a_loop_over_prefixes(impl, call):
    tensors, options = call
    options = {name: x for name, x in options.items() if name != "bias"}
    tensors = {name: tensors[name] for name in "qkv"}

    def attend_prefixes(q, k, v):
        rows = [attention(q[:, :, :0], k, v, **options, impl=impl)]
        for i in range(q.shape[2]):
            seen = max(i + k.shape[2] - q.shape[2] + 1, 0)
            row = q[:, :, i : i + 1]
            rows.append(attention(row, k[:, :, :seen], v[:, :, :seen], **options, impl=impl))
        return whole(rows, 2)

    looped = evaluate(attend_prefixes, **placed(impl, tensors))
    at_once = give(impl, tensors, options | {"causal": True})
    assert_same(at_once, {name: t.cpu() for name, t in looped.items()})


@law(call=calls(numbers, lengths, positions, masked=False))
def test_window_is_a_mask(impl, call):
    tensors, options = call
    *_, Lq, Lk = score_shape(tensors)
    left, right = options["window"] or (None, None)
    key, position = torch.arange(Lk), torch.arange(Lq).view(-1, 1) + Lk - Lq
    mask = torch.ones(Lq, Lk, dtype=torch.bool)
    if left is not None:
        mask &= key >= position - left
    if right is not None:
        mask &= key <= position + right
    if options["causal"]:
        mask &= key <= position
    masked = options | {"mask": mask, "window": None, "causal": False}
    assert_same(give(impl, tensors, options), give(impl, tensors, masked))


@law(
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4),
    heads=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    options=st.fixed_dictionaries(numbers | lengths | positions).flatmap(divided),
)
def test_varlen_is_a_loop_over_sequences(impl, sizes, heads, options):
    ends = torch.tensor([(0, 0), *sizes]).cumsum(0)
    Tq, Tk = ends[-1].tolist()
    generator = torch.Generator().manual_seed(Tq)
    shapes = {"q": (Tq, heads[0] * heads[1], 3), "k": (Tk, heads[0], 3), "v": (Tk, heads[0], 2)}
    tensors = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    tensors = placed(impl, tensors)

    def attend_each(q, k, v):
        rows = []
        for (q0, k0), (q1, k1) in pairwise(ends.tolist()):
            batch = [t.transpose(0, 1)[None] for t in (q[q0:q1], k[k0:k1], v[k0:k1])]
            made = attention(*batch, **options, impl=impl)
            o, *sums = made if options["return_sums"] else (made,)
            rows.append((o[0].transpose(0, 1), *(part[0] for part in sums)))
        made = whole(rows, 0, 1)
        return made if options["return_sums"] else made[0]

    cu = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), ends.T.contiguous(), strict=True))
    longest = [max(of_kind) for of_kind in zip(*sizes, strict=True)]
    cu = placed(impl, cu | dict(zip(("max_seqlen_q", "max_seqlen_k"), longest, strict=True)))
    packed = evaluate(partial(attention_varlen, **cu, **options, impl=impl), **tensors)
    assert_same(packed, evaluate(attend_each, **tensors))


@law(call=any_calls())
def test_grouped_heads_are_repeated_heads(impl, call):
    tensors, options = call
    group = tensors["q"].shape[1] // tensors["k"].shape[1]

    def attend_repeated(q, k, v, **others):
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        return attention(q, k, v, **others, impl=impl)

    repeated = evaluate(partial(attend_repeated, **placed(impl, options)), **placed(impl, tensors))
    assert_same(give(impl, tensors, options), {name: t.cpu() for name, t in repeated.items()})


@law(call=any_calls(sums=False), factor=st.sampled_from([-3.0, 0.0, 0.5]))
def test_output_is_linear_in_the_values(impl, call, factor):
    tensors, options = call
    other = tensors["v"].flip(2)
    mixed, first, second = (
        give(impl, tensors | {"v": v}, options)
        for v in (factor * tensors["v"] + other, tensors["v"], other)
    )
    linear = {n for n in mixed if n != "dv"}
    assert_same(
        {n: mixed[n] for n in linear},
        {n: factor * first[n] + second[n] for n in linear},
        tolerance=10 * TOLERANCES[widest_dtype(impl)],
    )
    assert_same({"dv": mixed["dv"]}, {"dv": first["dv"]})


@law(call=any_calls(), number=st.sampled_from([-2.0, 0.0, 0.5, 3]))
def test_bias_number_is_a_constant_tensor(impl, call, number):
    tensors, options = call
    tensors.pop("bias", None)
    constant = torch.full((1,), float(number), dtype=torch.float64)
    with_number = give(impl, tensors, options | {"bias": number})
    assert_same(with_number, give(impl, tensors, options | {"bias": constant}))


@law(call=calls(numbers, positions, masked=False), data=st.data())
def test_mask_of_zeros_and_ones_is_a_bool_mask(impl, call, data):
    tensors, options = call
    mask = data.draw(scored(score_shape(tensors), torch.bool))
    options["length"] = "keys"
    as_number = give(impl, tensors | {"mask": mask.double()}, options)
    del as_number["dmask"]
    assert_same(as_number, give(impl, tensors, options | {"mask": mask}))
