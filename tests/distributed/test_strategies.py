"""Every strategy equals one process: forward, gradients, and the elements that are sent."""

import itertools

import pytest
import torch
from distributed import on_ranks
from distributed.cases import (
    ACTIVATIONS,
    Case,
    draw_case,
    draw_documents,
    draw_scored,
    run_cases,
    serves,
)
from distributed.judging import misses, sample_of

from flashpoint.distributed.strategy import STRATEGIES

pytestmark = pytest.mark.distributed

NUM_CASES = {draw_case: 60, draw_documents: 40, draw_scored: 40}


NAMES = ["sequence", "documents", "scores"]


def draw_pairs(draw, size):
    """Cases and strategies that serve them."""
    drawn = [draw(1000 * size + i, size) for i in range(NUM_CASES[draw])]
    return [(case, name) for case in drawn for name in STRATEGIES if serves(case, name, size)]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("draw", NUM_CASES, ids=NAMES)
def test_strategies_equal_one_process(workers, draw, size):
    cases = draw_pairs(draw, size)
    missed = misses(workers, cases, size)
    assert not missed, f"{len(missed)} of {len(cases)}:\n" + "\n".join(map(str, missed[:10]))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("draw", [draw_case, draw_documents], ids=NAMES[:2])
def test_draws_have_every_activation_by_every_strategy(draw, size):
    found = {(case.options["activation"], name) for case, name in draw_pairs(draw, size)}
    assert found == set(itertools.product(ACTIVATIONS, STRATEGIES))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("draw", NUM_CASES, ids=NAMES)
def test_draws_have_long_causal_self_attention_in_zigzag(draw, size):
    def is_one(case):
        is_causal = case.options["causal"] and not {"window", "key_lengths"} & set(case.options)
        is_self = case.queries == case.keys and sum(case.keys) >= 32
        return is_causal and is_self and case.layout == "zigzag"

    found = {name for case, name in draw_pairs(draw, size) if is_one(case)}
    assert found >= set(STRATEGIES) - ({"reduce"} if draw is draw_scored else set())


def sample_by(workers, case, strategy):
    """A case's results over two ranks, beside the reference's."""
    found = workers.run(run_cases, [(case, strategy)], 2)
    return sample_of(case, [of_rank[0][0] for of_rank in found[:2]])


@pytest.mark.parametrize("strategy", ["ring", "gather", "ulysses"])
def test_shards_that_cancel_stay_within_the_budget(workers, strategy):
    lengths = (512, 512)
    sizes = (1, 2, 2, 32, 32)
    case = Case(0, sizes, lengths, lengths, "contiguous", torch.bfloat16, shift=2.0)
    sample = sample_by(workers, case, strategy)
    for name in ("o", "dq"):
        got, exact, plain = (x[name].double() for x in (sample.got, sample.exact, sample.plain))
        budget = 2 * (plain - exact).abs().max() + 2**-7 * exact.abs().max()
        assert (got - exact).abs().max() <= budget, name


@pytest.mark.parametrize("name", ["key_lengths", "mask", "bias"])
@pytest.mark.parametrize("strategy", on_ranks.STRATEGIES)
def test_what_is_changed_in_place_before_backward_is_refused(workers, strategy, name):
    for said in workers.run(on_ranks.change_before_backward, strategy, name):
        assert "modified by an inplace operation" in said


def test_receivers_add_16_bits_in_fp32(workers):
    """256 and three times 1: in bf16 every sum would stay 256."""
    for total, dv in workers.run(on_ranks.sums_of_parts):
        assert total == [259.0] * 3
        assert dv == 260.0  # rounded once


def test_library_may_add_parts_of_other_lengths(workers):
    for rank, sums in enumerate(workers.run(on_ranks.sums_on_the_way)):
        assert sums == [[6.0] * (rank + 1), [46.0] * 2]


def test_ring_computes_while_messages_are_on_their_way(workers):
    for done in workers.run(on_ranks.order_of_ring):
        assert done[: 3 * 4] == ["begin", "compute", "end"] * 4  # forward
        after = [later for word, later in itertools.pairwise(done) if word == "begin"]
        assert after == ["compute"] * (2 * 4)  # backward has other messages that end besides


@pytest.mark.parametrize("is_bool", [False, True])
def test_one_query_a_rank_has_a_row_of_its_own(workers, is_bool):
    scores = {"bias": (False, (0, 1, 1, 1)), "mask": (is_bool, (1, 0, 1, 1))}
    case = Case(3, (2, 4, 2, 8, 8), (1, 1), (5, 6), "contiguous", torch.float64, scores=scores)
    cases = [(case, name) for name in ("gather", "ring", "ulysses")]
    assert not misses(workers, cases, 2)
