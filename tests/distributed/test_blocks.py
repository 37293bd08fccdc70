"""Blocks, shards and choices, without processes."""

import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from flashpoint.distributed.blocks import blocks_of, who_sees
from flashpoint.distributed.call import ShardedCall, Sizes
from flashpoint.distributed.division import count_seen
from flashpoint.distributed.documents import Documents
from flashpoint.distributed.layout import Shards
from flashpoint.distributed.strategy import STRATEGIES, Rates, choose, elements
from flashpoint.errors import InputError
from flashpoint.ops.spec import Terms


def call_of(
    queries,
    keys,
    *,
    sizes=(1, 8, 8, 64, 64),
    offset=None,
    documents=None,
    has_nccl=False,
    **terms,
):
    """A call by a rank that exists in name alone."""
    offset = keys.total - queries.total if offset is None else offset
    transport = SimpleNamespace(rank=0, size=len(keys.ranges), has_nccl=has_nccl)
    sums = (False, False)
    rest = (Sizes(*sizes), Terms(**terms), None, "cpu", *sums, transport, documents)
    return ShardedCall(queries, keys, offset, *rest)


def seen_by_hand(call, queries, keys):
    """Booleans [queries, keys] of runs, by positions."""
    rows = torch.cat([torch.arange(*x) for x in queries]).view(-1, 1) + call.offset
    columns = torch.cat([torch.arange(*x) for x in keys])
    seen = torch.ones(len(rows), len(columns), dtype=torch.bool)
    if call.terms.left is not None:
        seen &= columns >= rows - call.terms.left
    if call.terms.right is not None:
        seen &= columns <= rows + call.terms.right
    return seen


def seen_by_blocks(call, queries, keys):
    num_queries, num_keys = (sum(b - a for a, b in x) for x in (queries, keys))
    seen = torch.zeros(num_queries, num_keys, dtype=torch.bool)
    for block in blocks_of(queries, keys, call):
        rows, columns = (x.stop - x.start for x in (block.rows, block.columns))
        assert rows > 0
        assert columns > 0
        assert all(side is None or side >= 0 for side in (block.left, block.right))
        position = torch.arange(rows).view(-1, 1) + columns - rows
        part = torch.ones(rows, columns, dtype=torch.bool)
        if block.left is not None:
            part &= torch.arange(columns) >= position - block.left
        if block.right is not None:
            part &= torch.arange(columns) <= position + block.right
        assert part.any()
        assert not seen[block.rows, block.columns].any()
        seen[block.rows, block.columns] = part
    return seen


@pytest.mark.parametrize("seed", range(200))
def test_windows_of_blocks_are_the_window_of_the_whole(seed):
    rng = random.Random(seed)
    layout = rng.choice(["contiguous", "zigzag"])
    num_ranks = rng.choice([1, 2, 3, 4])
    queries, keys = (Shards.split(rng.randint(0, 20), num_ranks, layout) for _ in "qk")
    sides = [rng.choice([None, 0, 1, 3, 30]) for _ in range(2)]
    call = call_of(queries, keys, offset=rng.choice([None, 0]), left=sides[0], right=sides[1])
    for mine in queries.ranges:
        for theirs in keys.ranges:
            expected = seen_by_hand(call, mine, theirs)
            assert torch.equal(seen_by_blocks(call, mine, theirs), expected)
        whole = seen_by_hand(call, mine, [(0, keys.total)])
        counts = count_seen(call, mine, torch.device("cpu")).flatten()
        assert torch.equal(counts, whole.sum(-1))


def draw_documents(rng, num_queries, num_keys):
    """Ends of some documents, empty ones among them."""
    num = rng.choice([1, 2, 6])

    def ends(total):
        return (0, *sorted(rng.randint(0, total) for _ in range(num - 1)), total)

    cu_keys = ends(num_keys)
    return Documents(cu_keys if num_queries == num_keys else ends(num_queries), cu_keys)


def seen_in_documents(call, queries, keys):
    """Booleans [queries, keys] of runs, document by document."""
    seen = torch.zeros(call.totals, dtype=torch.bool)
    for (q0, q1), (k0, k1) in zip(*map(pairwise, call.documents), strict=True):
        one = call._replace(offset=k1 - k0 - (q1 - q0))
        seen[q0:q1, k0:k1] = seen_by_hand(one, [(0, q1 - q0)], [(0, k1 - k0)])
    rows, columns = (torch.cat([torch.arange(*x) for x in runs]) for runs in (queries, keys))
    return seen[rows][:, columns]


def seen_by_varlen_blocks(call, queries, keys):
    """The same, sequence by sequence of each block's own call."""
    num_queries, num_keys = (sum(b - a for a, b in x) for x in (queries, keys))
    seen = torch.zeros(num_queries, num_keys, dtype=torch.bool)
    for block in blocks_of(queries, keys, call):
        terms = call.terms._replace(left=block.left, right=block.right)
        assert all(side is None or side >= 0 for side in (block.left, block.right))
        own = torch.zeros_like(seen[block.rows, block.columns])
        assert tuple(own.shape) == (block.ends.queries[-1], block.ends.keys[-1])
        whole = Shards((((0, own.shape[0]),),)), Shards((((0, own.shape[1]),),))
        alone = call_of(*whole, documents=Documents(*block.ends))._replace(terms=terms)
        own |= seen_in_documents(alone, [(0, own.shape[0])], [(0, own.shape[1])])
        assert not (seen[block.rows, block.columns] & own).any()
        seen[block.rows, block.columns] |= own
    return seen


@pytest.mark.parametrize("seed", range(200))
def test_windows_of_documents_in_shards_are_those_of_the_whole(seed):
    rng = random.Random(seed)
    layout, num_ranks = rng.choice(["contiguous", "zigzag"]), rng.choice([1, 2, 3, 4])
    lengths = [rng.randint(0, 20) for _ in "qk"] if seed % 2 else [rng.randint(0, 20)] * 2
    queries, keys = (Shards.split(length, num_ranks, layout) for length in lengths)
    sides = [rng.choice([None, 0, 1, 3, 30]) for _ in range(2)]
    documents = draw_documents(rng, *lengths)
    call = call_of(queries, keys, documents=documents, left=sides[0], right=sides[1])
    for rank, mine in enumerate(queries.ranges):
        for origin, theirs in enumerate(keys.ranges):
            expected = seen_in_documents(call, mine, theirs)
            assert torch.equal(seen_by_varlen_blocks(call, mine, theirs), expected)
            assert who_sees(call)[rank][origin] == expected.any()
        whole = seen_in_documents(call, mine, [(0, keys.total)])
        assert torch.equal(seen_by_varlen_blocks(call, mine, [(0, keys.total)]), whole)
        counts = count_seen(call, mine, torch.device("cpu")).flatten()
        assert torch.equal(counts, whole.sum(-1))


def test_uncut_documents_are_one_call():
    documents = Documents((0, 3, 4, 9, 16), (0, 3, 4, 9, 16))
    shards = Shards.split(16, 2, "contiguous")
    call = call_of(shards, shards, documents=documents, right=0)
    (block,) = blocks_of([(0, 8)], [(0, 16)], call)  # the third document is cut, its keys too
    assert block.ends == ((0, 3, 4, 8), (0, 3, 4, 8))
    assert (block.left, block.right) == (None, 0)


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("length", [0, 1, 7, 16, 33])
def test_shards_are_the_sequence_again(layout, length):
    x = torch.arange(length)
    shards = Shards.split(length, 4, layout)
    parts = [shards.take(x, rank, 0) for rank in range(4)]
    assert torch.equal(shards.join(parts, 0), x)
    assert Shards.of([len(part) for part in parts], layout, "tokens") == shards


def test_zigzag_gives_causal_ranks_the_same_work():
    shards = Shards.split(64, 4, "zigzag")
    seen = seen_by_hand(call_of(shards, shards, right=0), [(0, 64)], [(0, 64)])
    work = [shards.take(seen, rank, 0).sum().item() for rank in range(4)]
    assert len(set(work)) == 1


def test_zigzag_of_other_lengths_names_the_rank():
    with pytest.raises(InputError, match=r"rank 0 holds 3 of 8 keys; in zigzag shards it holds 2"):
        Shards.of([3, 1, 2, 2], "zigzag", "keys")


def test_elements_are_the_formulas():
    shards = Shards.split(1024, 4, "contiguous")
    queries = Shards.split(64, 4, "contiguous")
    L, Lq, Hq, Hk, D, P = 1024, 64, 8, 2, 64, 4
    call = call_of(queries, shards, sizes=(1, Hq, Hk, D, D))
    assert elements(call, "gather", torch.bfloat16) == elements(call, "ring", torch.bfloat16)
    assert elements(call, "gather", torch.bfloat16) == (
        2 * 3 * L * Hk * D // P,
        4 * 3 * L * Hk * D // P,
    )
    assert elements(call, "reduce", torch.bfloat16) == (
        2 * 3 * Lq * Hq * D // P,
        3 * 3 * Lq * Hq * D // P,
    )
    call = call_of(shards, shards, sizes=(1, Hq, 4, D, D))
    each_way = 3 * (L // P) * D * (2 * Hq + 2 * 4) // P
    assert elements(call, "ulysses", torch.bfloat16) == (each_way, each_way)


def test_auto_takes_what_sends_least():
    long, short = Shards.split(4096, 4, "contiguous"), Shards.split(16, 4, "contiguous")
    assert choose(call_of(short, long), torch.bfloat16, None).strategy == "reduce"
    assert choose(call_of(long, long), torch.bfloat16, None).strategy == "ulysses"
    grouped = choose(call_of(long, long, sizes=(1, 8, 1, 64, 64)), torch.bfloat16, None)
    assert grouped.strategy == "ring"  # heads do not divide
    assert "8 query heads and 1 key heads do not divide among 4 ranks" in str(grouped)
    near = choose(call_of(long, long, left=8, right=0), torch.bfloat16, None)
    assert near.strategy == "ring"
    assert near.forward["ring"] * 4 == near.forward["gather"]  # one hop of three, from three ranks


def test_auto_knows_that_a_ring_hides_what_it_sends():
    shards = Shards.split(65536, 4, "contiguous")
    call = call_of(shards, shards, has_nccl=True)
    slow_kernels = choose(call, torch.bfloat16, Rates(link_bytes_per_s=50e9, flops_per_s=1e12))
    fast_kernels = choose(call, torch.bfloat16, Rates(link_bytes_per_s=1e9, flops_per_s=1e15))
    assert (slow_kernels.strategy, fast_kernels.strategy) == ("ring", "ulysses")
    assert all(set(choice.seconds) == set(STRATEGIES) for choice in (slow_kernels, fast_kernels))
    assert "takes least time" in str(slow_kernels)


def test_auto_knows_that_gloo_hides_nothing():
    """It takes the cores that compute."""
    shards = Shards.split(65536, 4, "contiguous")
    rates = Rates(link_bytes_per_s=50e9, flops_per_s=1e12)
    over_gloo, over_nccl = (
        choose(call_of(shards, shards, has_nccl=x), torch.bfloat16, rates) for x in (False, True)
    )
    assert over_gloo.seconds["ring"] == over_gloo.seconds["gather"] > over_nccl.seconds["ring"]
    assert (over_gloo.strategy, over_nccl.strategy) == ("ulysses", "ring")


def test_auto_counts_bytes_as_they_are_sent():
    shards = Shards.split(64, 4, "contiguous")
    call = call_of(shards, shards)
    rates = Rates(link_bytes_per_s=1.0, flops_per_s=1e300)
    bf16, fp16 = (choose(call, x, rates).seconds for x in (torch.bfloat16, torch.float16))
    part = 3 * 16 * 8 * 64  # elements of a rank's q, k, v or o that it sends to three others
    assert bf16["reduce"] == 2 * 5 * part
    assert fp16["reduce"] == 2 * part + 4 * 4 * part
    assert bf16["ring"] == bf16["gather"] == fp16["gather"] == 2 * 6 * part
    assert fp16["ring"] == 2 * 4 * part + 4 * 2 * part
    assert bf16["ulysses"] == fp16["ulysses"]


def test_auto_knows_that_gathers_pad_uneven_shards():
    uneven = Shards.of([40, 0, 0, 0], "contiguous", "keys")
    few = Shards.split(12, 4, "contiguous")
    choice = choose(call_of(few, uneven, sizes=(1, 1, 1, 8, 8)), torch.float32, None)
    assert choice.forward["gather"] == 4 * choice.forward["ring"] == 3 * 40 * 16
