"""What ranks send is what the formulas say, and nothing that nobody looks at."""

from dataclasses import replace

import pytest
import torch
from distributed.cases import Case, run_cases
from distributed.test_blocks import call_of
from distributed.wire import run_on_wire

from flashpoint.distributed.agreement import Held
from flashpoint.distributed.call import Sizes
from flashpoint.distributed.layout import Shards
from flashpoint.distributed.strategy import Rates, choose, elements, elements_sent

pytestmark = pytest.mark.distributed
B, HQ, HK, D, P = 2, 8, 4, 16, 4
L, LQ = 64, 32
F = (P - 1) / P
FORMULAS = {
    "gather": (2 * F * L * HK * D, 4 * F * L * HK * D),
    "ring": (2 * F * L * HK * D, 4 * F * L * HK * D),
    "reduce": (2 * F * LQ * HQ * D, 3 * F * LQ * HQ * D),
    "ulysses": (
        F / P * D * (2 * LQ * HQ + 2 * L * HK),
        F / P * D * (2 * LQ * HQ + 2 * L * HK),
    ),
}


def case_of(dtype=torch.float32, queries=LQ, layout="contiguous", **options):
    lengths = ((queries // P,) * P, (L // P,) * P)
    return Case(0, (B, HQ, HK, D, D), *lengths, layout, dtype, options)


def sent_by(workers, strategy, **given):
    """By rank, elements sent forward and backward."""
    found = workers.run(run_cases, [(case_of(**given), strategy)], P)
    return [sent for ((_, sent),) in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strategy", FORMULAS)
def test_elements_sent_follow_the_formulas(workers, strategy, dtype):
    expected = tuple(B * x for x in FORMULAS[strategy])
    assert sent_by(workers, strategy, dtype=dtype) == [expected] * P
    assert elements_sent(strategy, Sizes(B, HQ, HK, D, D), (LQ, L), P) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_travel_with_numerators(workers, dtype):
    options = {"normalize": "sum", "dtype": dtype}
    forward, backward = FORMULAS["reduce"]
    rows = F * LQ * HQ * (2 if dtype == torch.bfloat16 else 1)  # in fp32: two elements of bf16
    expected = (B * (forward + rows), B * (backward + rows))
    assert sent_by(workers, "reduce", **options) == [expected] * P
    for strategy in ("ring", "ulysses"):  # a sum that nobody asked for stays where it is
        assert (
            sent_by(workers, strategy, **options) == [tuple(B * x for x in FORMULAS[strategy])] * P
        )


WAYS = {
    "all": {},
    "zigzag": {"queries": L, "layout": "zigzag", "causal": True},
    "sums": {"normalize": "sum"},
    "window": {"queries": L, "window": (0, 3)},
}
BLOCK = 2 * B * HK * D * L // P
WINDOW_IN_RING = [(2, 1), (2, 1), (2, 1), (3, 0)]
"""Blocks that a rank passes on, and those whose dk and dv it sends: nobody but rank 0 sees the
first block, and each other one passes two ranks before it meets the one that sees it."""


def narrow_and_wide(strategy, way, rank):
    """By direction, elements in the inputs' dtype, those of sums, and bytes of rows' sums."""
    if (strategy, way) == ("ring", "window"):
        passed, home = (BLOCK * x for x in WINDOW_IN_RING[rank])
        return (passed, 0, 0), (passed, home, 0)
    queries = WAYS[way].get("queries", LQ)
    forward, backward = elements_sent(strategy, Sizes(B, HQ, HK, D, D), (queries, L), P)
    if strategy == "ring":
        return (forward, 0, 0), (forward, backward - forward, 0)
    if strategy == "reduce":
        rows = int(4 * B * F * LQ * HQ) if way == "sums" else 0
        return (forward // 2, forward // 2, rows), (0, backward, rows)
    return (forward, 0, 0), (backward, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_bytes_that_leave_a_rank_are_those_of_the_table(workers, way, dtype):
    """As torch.distributed takes them; the transport counts elements of each message's dtype."""
    found = workers.run(run_on_wire, [(case_of(dtype, **WAYS[way]), x) for x in FORMULAS], P)
    of_sums = 4 if dtype == torch.float16 else dtype.itemsize
    for i, strategy in enumerate(FORMULAS):
        for rank, of_rank in enumerate(found):
            parts = narrow_and_wide(strategy, way, rank)
            sent, counted, numbers = of_rank[i]
            assert sent == tuple(dtype.itemsize * x + of_sums * y + z for x, y, z in parts)
            assert counted == tuple(x + y + z // of_sums for x, y, z in parts)
            assert numbers == (P - 1) * 8 * (2 + len(Held._fields))


def test_auto_counts_both_directions():
    """With a tenth more queries than keys, reduce sends more forward and less in all."""
    shards = (Shards.of((n,) * P, "contiguous", "tokens") for n in (11, 10))
    call = call_of(*shards, sizes=Sizes(1, 1, 1, D, D))
    sent = {name: elements(call, name, torch.float32) for name in ("gather", "reduce")}
    assert sent["reduce"][0] > sent["gather"][0]
    assert sum(sent["reduce"]) < sum(sent["gather"])
    assert choose(call, torch.float32, None).strategy == "reduce"


def test_ring_sends_no_block_that_nobody_sees(workers):
    block = 2 * B * HK * D * L // P
    near = sent_by(workers, "ring", queries=L, causal=True, window=(3, 0))
    assert [forward for forward, _ in near] == [block, block, block, 0]
    assert [backward for _, backward in near] == [block, 2 * block, 2 * block, block]
    causal = sent_by(workers, "ring", queries=L, causal=True)
    assert [forward for forward, _ in causal] == [block, 2 * block, 3 * block, 0]


UNEVEN = {"uneven": (40, 3, 9, 12), "some-empty": (0, 5, 0, 7), "even": (8, 8, 8, 8)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", UNEVEN.values(), ids=UNEVEN)
def test_uneven_shards_send_what_auto_counts(workers, lengths, dtype):
    window = {"causal": True, "window": (9, None)}
    case = Case(0, (B, HQ, HK, D, 8), (3, 7, 0, 4), lengths, "contiguous", dtype, window)
    found = workers.run(run_cases, [(case, name) for name in FORMULAS], P)
    on_wire = workers.run(run_on_wire, [(case, name) for name in FORMULAS], P)
    shards = case.shards
    call = call_of(shards["q"], shards["k"], sizes=case.sizes, left=9, right=0)
    rates = Rates(link_bytes_per_s=1.0, flops_per_s=1e300)
    for i, name in enumerate(FORMULAS):
        mean = [sum(of_rank[i][1][way] for of_rank in found) / P for way in (0, 1)]
        assert elements(call, name, dtype) == tuple(map(round, mean)), name
        num_bytes = sum(sum(of_rank[i][0]) for of_rank in on_wire) / P
        assert choose(call, dtype, rates).seconds[name] == num_bytes, name


def test_auto_counts_what_nccl_pads():
    lengths = UNEVEN["uneven"]
    shards = [Shards.of(lengths, "contiguous", "tokens")] * 2
    calls = [call_of(*shards, sizes=Sizes(1, 1, 1, 1, 1), has_nccl=x) for x in (False, True)]
    gathered = 2 * 3 * max(lengths)
    for dtype, padded in [(torch.float32, gathered), (torch.bfloat16, 2 * 3 * sum(lengths) // 4)]:
        found = [elements(call, "gather", dtype)[1] - gathered for call in calls]
        assert found == [2 * 3 * sum(lengths) // 4, padded]


def test_ring_sends_no_document_that_ends_before(workers):
    ends = (0, 16, 20, 48, 64)  # of shards of 16: the third document lies on two of them
    case = replace(case_of(queries=L, causal=True), sizes=(1, HQ, HK, D, D), ends=(ends, ends))
    found = workers.run(run_cases, [(case, "ring")], P)
    block = 2 * HK * D * L // P
    assert [sent for ((_, sent),) in found] == [(0, 0), (block, block), (0, block), (0, 0)]


SCORED = {"heads": (1, 1, 1, 1), "one-head": (0, 0, 1, 1), "no-rows": (1, 1, 0, 1)}


@pytest.mark.parametrize("axes", SCORED.values(), ids=SCORED)
@pytest.mark.parametrize("is_bool", [False, True])
def test_rows_of_scores_travel_as_auto_counts(workers, axes, is_bool):
    scores = {"mask": (is_bool, axes)}
    case = replace(case_of(), scores=scores)
    found = workers.run(run_cases, [(case, "ulysses"), (case, "ring")], P)
    heads = {(1, 1, 1, 1): B * HQ, (0, 0, 1, 1): P}.get(axes, 0)
    rows = F / P * heads * LQ * L
    forward, backward = (B * x for x in FORMULAS["ulysses"])
    expected = (forward + rows, backward + (0 if is_bool else rows))
    call = call_of(case.shards["q"], case.shards["k"], sizes=case.sizes)
    call = call._replace(mask=case.leaves(torch.float32, 0)["mask"])
    call = call._replace(has_rows=("mask",) if axes[2] else ())
    assert elements(call, "ulysses", torch.float32) == expected
    for of_rank in found:
        assert of_rank[0][1] == expected
        assert of_rank[1][1] == tuple(B * x for x in FORMULAS["ring"])
