"""What strategies compute under a window and keep for backward: no more than promised."""

import pytest
import torch
from distributed.cases import Case
from distributed.test_blocks import call_of, seen_by_hand
from distributed.watched import calls_of, kept_for_backward

from flashpoint.distributed.layout import Shards
from flashpoint.distributed.strategy import STRATEGIES

pytestmark = pytest.mark.distributed
B, HQ, HK, D, DV, P, L = 2, 8, 4, 16, 8, 4, 64
WINDOWS = {
    "left": {"causal": True, "window": (3, None)},
    "right": {"window": (0, 3)},
    "causal": {"causal": True},
    "none": {},
}


def case_of(layout="contiguous", dtype=torch.float32, **options):
    lengths = Shards.split(L, P, layout).lengths
    return Case(0, (B, HQ, HK, D, DV), lengths, lengths, layout, dtype, options)


def box_of(call, queries, keys):
    """Scores of the queries and keys of two runs that see anything of each other."""
    seen = seen_by_hand(call, [queries], [keys])
    return int(seen.any(1).sum() * seen.any(0).sum())


def boxes_of(case, strategy, rank):
    """Those of a rank's calls, in order of size; what is seen whole is one call a shard."""
    window = case.options.get("window", (None, None))
    right = 0 if case.options.get("causal") else window[1]
    shards = case.shards["q"]
    call = call_of(shards, shards, left=window[0], right=right)
    mine, whole = shards.ranges[rank], ((0, L),)
    pairs = {
        "gather": [(mine, whole)],
        "ring": [(mine, theirs) for theirs in shards.ranges],
        "reduce": [(whole, mine)],
        "ulysses": [(whole, whole)],
    }[strategy]
    if window == (None, None) and right is None:
        return sorted(sum(b - a for a, b in x) * sum(b - a for a, b in y) for x, y in pairs)
    boxes = [box_of(call, run, held) for x, y in pairs for run in x for held in y]
    return sorted(filter(None, boxes))


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("options", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_outside_a_window_is_computed(workers, strategy, options, layout):
    """Neither forward nor backward; a call over all tokens leaves it to the operator."""
    case = case_of(layout, **options)
    for rank, found in enumerate(workers.run(calls_of, case, strategy, P)):
        for way in found:
            assert sorted(scores for scores, _ in way) == boxes_of(case, strategy, rank)
            if strategy == "ulysses":
                sides = options.get("window", (None, None))
                right = 0 if options.get("causal") else sides[1]
                assert [window for _, window in way] == [(sides[0], right)]


@pytest.mark.parametrize("options", [{}, {"normalize": "sum"}], ids=["length", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_backward_keeps_the_inputs_and_where_sums_divide_o_and_the_sums(
    workers, strategy, dtype, options
):
    """No o, no sums and no delta else; ulysses has inputs and results of its heads, all tokens."""
    case = case_of(dtype=dtype, **options)
    heads, length = (P, L) if strategy == "ulysses" else (1, L // P)
    names = ["made"] * 3 if strategy == "ulysses" else ["q", "k", "v"]
    widths = [(HQ, D), (HK, D), (HK, DV)]
    expected = [
        ((B, H // heads, length, width), dtype, name)
        for (H, width), name in zip(widths, names, strict=True)
    ]
    if options:
        expected.append(((B, HQ // heads, length, DV), dtype, "made"))
        expected.append(((B, HQ // heads, length), torch.float32, "made"))
    for kept, num_elsewhere in workers.run(kept_for_backward, case, strategy, P):
        assert kept == expected
        assert num_elsewhere == 0
