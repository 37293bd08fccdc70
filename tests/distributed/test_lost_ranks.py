"""A rank that dies or hangs ends all others in one line that names it, in time."""

import re

import pytest
import torch
from distributed import losing

pytestmark = pytest.mark.distributed
TIMEOUT_S = 1.0

LOST = {
    "dies": 2,
    "hangs": 2,
    "differs": 2,
    "gather-sums": 2,
    "reduce-sums": 2,
    "total": 2,
    "one-of-four-dies": 4,
    "one-of-four-hangs": 4,
    "slow-ring": 4,
}
"""Groups of which a rank is lost, and how many it had."""
KEPT = {"keeper-dies": 3, "keeper-stops": 3}
"""The same, where rank 0 keeps the store that ranks meet at."""


def said_without(found, lost, most_s=2 * TIMEOUT_S + 1):
    """What all others say of a lost rank, by rank, each in one line and in time."""
    said = {}
    for rank, (ok, answer) in enumerate(found):
        if rank == lost:
            assert not ok
            continue
        assert ok, answer
        said[rank], seconds = answer
        assert "\n" not in said[rank]
        assert seconds < most_s, said[rank]
    return said


def begin(rank, size, lost, reason="did not answer"):
    """How a message begins that names one lost rank."""
    named = f"rank {rank} of {size} lost rank {lost}, which {reason}"
    return f"LostRankError: sequence_parallel: {named}, while it exchanged"


@pytest.mark.parametrize(
    ("how", "strategy", "reason"),
    [("dies", "ring", "died"), ("hangs", "gather", "did not answer")],
)
def test_lost_rank_ends_the_other_in_one_line(worlds, how, strategy, reason):
    found = worlds[how].try_run(losing.lost_in_backward, how, strategy, TIMEOUT_S)
    message = said_without(found, lost=1)[0]
    what = "(gradients of )?keys and values"
    begins = f"{begin(0, 2, 1, reason)} {what}"
    assert re.match(rf"{begins}.* \([^.,:;\[]+\)\. A lost rank", message), message


def test_rank_that_hangs_where_calls_differ_is_named(worlds):
    found = worlds["differs"].try_run(losing.hangs_in_comparison, TIMEOUT_S)
    assert said_without(found, lost=1)[0].startswith(f"{begin(0, 2, 1)} calls")


@pytest.mark.parametrize(
    ("strategy", "dtype", "what"),
    [
        ("gather", torch.float64, "gradients of keys and values"),
        ("reduce", torch.float32, "partial outputs"),
    ],
)
def test_rank_that_hangs_before_sums_is_named_in_time(worlds, strategy, dtype, what):
    world = worlds[f"{strategy}-sums"]
    found = world.try_run(losing.hangs_in_sums, strategy, dtype, TIMEOUT_S)
    assert said_without(found, lost=1)[0].startswith(f"{begin(0, 2, 1)} {what}")


def test_rank_that_does_not_count_is_named(worlds):
    found = worlds["total"].try_run(losing.hangs_in_total, TIMEOUT_S)
    assert said_without(found, lost=1)[0].startswith(f"{begin(0, 2, 1)} counts")


@pytest.mark.parametrize(
    ("how", "strategy", "reason"),
    [("dies", "ring", "died"), ("hangs", "gather", "did not answer")],
)
def test_lost_rank_is_named_by_all_others(worlds, how, strategy, reason):
    """Also by those that it sends nothing, or that stand beside others alone."""
    world = worlds[f"one-of-four-{how}"]
    found = world.try_run(losing.lost_in_backward, how, strategy, TIMEOUT_S, 2)
    for rank, message in said_without(found, lost=2).items():
        assert message.startswith(begin(rank, 4, 2, reason))


def test_ranks_that_notice_late_are_not_named(worlds):
    """They begin to wait for one another 1.2 s after the first waits for the lost one."""
    found = worlds["slow-ring"].try_run(losing.hangs_in_slow_ring, 1.5, 0.3)
    for rank, message in said_without(found, lost=0, most_s=5.5).items():
        assert message.startswith(begin(rank, 4, 0))


def test_rank_that_died_with_the_store_is_named(worlds):
    found = worlds["keeper-dies"].try_run(losing.lost_in_backward, "dies", "ring", TIMEOUT_S, 0)
    for rank, message in said_without(found, lost=0).items():
        assert message.startswith(begin(rank, 3, 0, "died"))


def test_rank_that_hangs_with_the_store_ends_the_others(worlds):
    """Nobody can be asked then: they name those that they had a message for or from."""
    world = worlds["keeper-stops"]
    found = world.try_run(losing.lost_in_backward, "stops", "ring", TIMEOUT_S, 0)
    for rank, message in said_without(found, lost=0, most_s=2 * TIMEOUT_S + 2).items():
        assert f"rank {rank} of 3 lost one of ranks 0, {3 - rank}, while it exchanged" in message
