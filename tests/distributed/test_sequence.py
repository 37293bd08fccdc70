"""Layers, meshes, converted models and errors, over processes."""

import pytest
import torch
from distributed import on_ranks, refused

pytestmark = pytest.mark.distributed
LEARNED = {"activation": "relu", "alpha": "learned", "gain": "learned_per_head"}


@pytest.mark.parametrize(
    ("strategy", "layout", "spec"),
    [
        ("ring", "zigzag", "relu"),
        ("gather", "zigzag", "relu4/sum"),
        ("reduce", "contiguous", LEARNED),
        (
            "ulysses",
            "contiguous",
            {"activation": "sigmoid", "length": "keys", "bias": "-log_length"},
        ),
        ("ulysses", "zigzag", {"activation": "sigmoid", "bias": "-log_length"}),
        ("reduce", "zigzag", {"activation": "sigmoid", "alpha": 0.0, "bias": "learned"}),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_layer_takes_it_for_attention(workers, strategy, layout, spec, causal):
    assert max(workers.run(on_ranks.layer_results, strategy, layout, spec, causal)) < 1e-13


@pytest.mark.parametrize("strategy", ["ring", "ulysses"])
def test_layer_with_heads_and_tokens_on_a_mesh_is_one_process(workers, strategy):
    assert max(workers.run(on_ranks.tensor_and_sequence, strategy)) < 1e-13


def test_ranks_wait_for_late_ones_as_long_as_for_messages(workers):
    assert workers.run(on_ranks.patience) == [[3.0, 7.0]] * 4


def test_valid_are_counted_over_all_ranks(workers):
    assert workers.run(on_ranks.numbers_of_valid) == [0 + 1 + 2 + 3] * 4


def test_one_reduction_serves_key_shards_and_heads(workers):
    assert max(workers.run(on_ranks.deferred_reduction)) < 1e-13


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", ["relu", LEARNED])
def test_converted_model_attends_over_shards(workers, spec, causal, cross):
    found = workers.run(on_ranks.converted, spec, causal, cross)
    assert max(error for error, *_ in found) < 1e-13
    assert max(sent for *_, sent in found) > 0
    assert all("UnsupportedError: softmax is not served over" in said for _, said, _ in found)


@pytest.mark.parametrize("strategy", ["gather", "ulysses"])
@pytest.mark.parametrize("is_bool", [False, True])
@pytest.mark.parametrize("spec", ["relu", LEARNED])
def test_converted_model_has_rows_of_masks(workers, spec, is_bool, strategy):
    assert max(workers.run(on_ranks.converted_with_mask, spec, is_bool, strategy)) < 1e-13


@pytest.mark.parametrize("num_tokens", [2, 3, 7])
def test_transformers_call_is_causal_with_one_token_a_rank(workers, num_tokens):
    assert max(workers.run(on_ranks.hugging_face, num_tokens, 0)) < 1e-13


def test_transformers_cache_is_refused(workers):
    for said in workers.run(on_ranks.hugging_face, 2, 3):
        assert said.startswith("UnsupportedError: Module has 1 queries and 4 keys on this rank")
        assert "\n" not in said


def test_partial_of_it_is_still_sharded(workers):
    by_keys = {"activation": "sigmoid", "length": "keys", "bias": "-log_length"}
    for spec in (LEARNED, by_keys):
        assert max(workers.run(on_ranks.wrapped, spec)) < 1e-13
    assert all(
        "softmax is not served" in said for said in workers.run(on_ranks.wrapped, "softmax")
    )


def test_auto_says_what_it_chose_and_sends_nothing_to_say_it(workers):
    for before, text, sent, chosen in workers.run(on_ranks.explained):
        assert before == chosen == "reduce"
        assert "* reduce   sends 192 forward, 288 backward" in text
        assert sent == 0


@pytest.mark.parametrize(
    ("by_rank", "said"),
    [
        ({1: {"dtype": torch.float64}}, "rank 1 has dtype float64, rank 0 has float32."),
        ({1: {"shape": (1, 2, 4, 16)}}, "rank 1 has head_dim 16, rank 0 has 8."),
        ({0: {"options": {"causal": True}}}, "rank 1 has causal False, rank 0 has True."),
        ({1: {"options": {"length": 7}}}, "rank 1 has length 7.0, rank 0 has visible."),
        ({1: {"options": {"normalize": "sum"}}}, "rank 1 has normalize sum, rank 0 has length."),
        ({1: {"options": {"window": (3, None)}}}, "rank 1 has window [3, None], rank 0 has None."),
        (
            {
                0: {"options": {"key_lengths": torch.tensor([3])}},
                1: {"options": {"key_lengths": torch.tensor([4])}},
            },
            "rank 1 has key_lengths [4], rank 0 has [3].",
        ),
        ({1: {"options": {"casual": True}}}, "rank 1: attention has no argument 'casual'. Did"),
        ({1: {"options": {"alpha": 0.5}}}, "rank 1 has alpha 0.5, rank 0 has 1.0."),
        ({1: {"requires_grad": True}}, "rank 1 has gradients q, k, v, rank 0 has none."),
        ({1: {"make": {"strategy": "ring"}}}, "rank 1 has strategy ring, rank 0 has auto."),
        ({1: {"options": {"alpha": "one"}}}, "rank 1: alpha must be a number. Got 'one'."),
        ({1: {"shape": (4, 8)}}, "rank 1: q has 2 dimensions"),
    ],
)
def test_ranks_that_differ_all_hear_who_and_what(workers, by_rank, said):
    found = workers.run(refused.call_with, by_rank)
    assert all(f"InputError: {said}" in message for message in found)
    assert len(set(found)) == 1


def test_errors_of_counting_are_everybodys(workers):
    mask = torch.ones(4, 4, dtype=torch.bool)
    for by_rank, said in [
        ({1: {"mask": mask}}, "InputError: rank 1 has mask [1, 1, rows, 4] of bool, rank 0 has"),
        ({1: {"key_lengths": torch.tensor([3])}}, "InputError: rank 1 has key_lengths [3]"),
    ]:
        found = workers.run(refused.counts_with, by_rank)
        assert all(message.startswith(said) for message in found), found


def test_what_cannot_be_made_is_refused_in_one_line(workers):
    expected = [
        "InputError: link_bytes_per_s must be positive. Got 0.",
        "InputError: flops_per_s must be finite. Got nan.",
        "InputError: link_bytes_per_s must be a number. Got 'fast'.",
        "InputError: rates must be a flashpoint.distributed.Rates. Got (1, 1).",
        "InputError: timeout_s must be positive, or None. Got 0.",
        "InputError: timeout_s must be positive, or None. Got -1.0.",
        "InputError: timeout_s must be finite. Got nan.",
        "InputError: timeout_s must be a number. Got '1'.",
        "UnsupportedError: sequence_parallel holds a process group, which cannot be pickled.",
    ]
    for rank, (messages, outside) in enumerate(workers.run(refused.constructors)):
        for message, begins in zip(messages, expected, strict=True):
            assert message.startswith(begins), message
            assert "\n" not in message
        said = f"InputError: rank {rank} is not in the mesh, which has ranks [0, 1]."
        assert outside.startswith("no error" if rank < 2 else said)


def test_contexts_end_in_order(workers):
    said = "InputError: another `with` of sequence_parallel that began later is still open"
    assert all(x.startswith(said) for x in workers.run(refused.overlapping_contexts))


def test_first_check_remembers_a_bounded_number_of_calls(workers):
    assert set(workers.run(on_ranks.remembered, 19)) == {3}


def test_shards_may_change_on_one_rank_alone(workers):
    assert all(max(errors) < 1e-6 for errors in workers.run(on_ranks.changing_lengths, "always"))


@pytest.mark.parametrize(("check", "times"), [("always", 4), ("first", 2)])
def test_calls_like_earlier_ones_may_go_unchecked(workers, check, times):
    assert set(workers.run(on_ranks.asked_again, check)) == {times}


@pytest.mark.parametrize(
    "options",
    [
        {"return_sums": True},
        {"return_sums": True, "normalize": "sum"},
        {"return_sums": "logs", "normalize": "sum", "activation": "softplus"},
    ],
    ids=["length", "sum", "logs"],
)
@pytest.mark.parametrize("strategy", on_ranks.STRATEGIES)
def test_ranks_may_differentiate_different_results(workers, strategy, options):
    assert max(workers.run(on_ranks.mixed_losses, strategy, options)) < 1e-12


@pytest.mark.parametrize("strategy", on_ranks.STRATEGIES)
def test_autocast_does_not_reach_backward(workers, strategy):
    for impl in ("reference", "cpu"):
        assert max(workers.run(on_ranks.backward_under_autocast, strategy, impl)) == 0


@pytest.mark.parametrize("strategy", on_ranks.STRATEGIES)
def test_autocast_does_not_reach_forward(workers, strategy):
    for impl in ("reference", "cpu"):
        assert max(workers.run(on_ranks.forward_under_autocast, strategy, impl)) == 0


@pytest.mark.parametrize("strategy", on_ranks.STRATEGIES)
def test_sums_of_fp16_may_leave_its_range(workers, strategy):
    for values, finite in workers.run(on_ranks.large_sums, strategy):
        assert values == [64.0 * 64.0]
        assert all(finite)


def test_autocast_acts_before(workers):
    assert set(workers.run(on_ranks.autocast)) == {(torch.bfloat16, torch.float32)}


def test_what_is_not_served_is_refused_in_one_line(workers):
    expected = [
        "UnsupportedError: strategy='ulysses': 1 query heads and 1 key heads do not divide",
        "InputError: mask has 4 keys, and all ranks together have 8. Pass the rows of this rank's",
        "InputError: rank 0: bias has shape [3, 8], which does not broadcast to [B=1, Hq=1, Lq=4",
        "UnsupportedError: strategy='reduce': bias has rows of queries, which travel without",
        "InputError: key_lengths[0] is 9; it must lie between 0 and the 8 keys.",
        "UnsupportedError: softmax is not served over shards of a sequence.",
        "InputError: a cache holds whole sequences",
        "UnsupportedError: weights are not served over shards",
        "InputError: strategy='rings' is unknown. Did you mean 'ring'?",
        "InputError: expected a process group or a DeviceMesh of one dimension. Got 'world'.",
        "InputError: the mesh has 2 dimensions, a, b; a sequence lies on one.",
    ]
    for messages in workers.run(refused.refusals):
        for message, begins in zip(messages, expected, strict=True):
            assert message.startswith(begins), message
            assert "\n" not in message


def test_wrong_documents_are_refused_in_one_line(workers):
    expected = [
        "InputError: cu_seqlens_q runs from 0 to 7; it must run from 0 to 8, the tokens of q.",
        "InputError: cu_seqlens_q falls from 5 to 3 at sequence 1; it must never decrease.",
        "InputError: max_seqlen_q is 4, but sequence 1 of cu_seqlens_q has 5 tokens.",
        "InputError: rank 1 has documents [[[0, 3, 8], [0, 3, 8]], 6, 6], rank 0 has [[[0, 2, 8]",
        "InputError: rank 0: cu_seqlens_k must be int32 or int64 of shape [3]. Got int64 of",
        "UnsupportedError: rank 0: a tensor as mask is not served for documents over shards.",
        "InputError: rank 0: attention_varlen has no argument 'key_lengths'.",
        "InputError: rank 0: q has 4 dimensions",
    ]
    for messages in workers.run(refused.varlen_refusals):
        for message, begins in zip(messages, expected, strict=True):
            assert message.startswith(begins), message
            assert "\n" not in message


TOKENS = ((1, 2, 3), torch.float32, 1, "contiguous")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (((1, 2, 4), *TOKENS[1:]), "rank 1 has shape [1, 'L', 4], rank 0 has [1, 'L', 3]."),
        (((1, 2, 3), torch.float64, *TOKENS[2:]), "rank 1 has dtype float64, rank 0 has float32."),
        (((2, 3), *TOKENS[1:]), "rank 1 has shape [2, 'L'], rank 0 has [1, 'L', 3]."),
        ((*TOKENS[:2], 3, "contiguous"), "rank 1: dim=3 is no axis of x, which has 3 dimensions"),
        ((*TOKENS[:3], "zigzag"), "rank 1 has layout zigzag, rank 0 has contiguous."),
        ((*TOKENS[:3], "zigzags"), "rank 1: layout='zigzags' is unknown."),
    ],
)
def test_unshard_compares_before_it_sends(workers, other, said):
    found = workers.run(refused.unshard_with, (TOKENS, other))
    assert all(message.startswith(f"InputError: {said}") for message in found)
    assert len(set(found)) == 1


def test_second_derivatives_are_refused(workers):
    assert all(
        "has no second derivatives" in said for said in workers.run(refused.second_derivative)
    )


@pytest.mark.parametrize("spec", ["relu", "softmax"])
def test_layer_that_would_see_its_shard_alone_is_refused(workers, spec):
    for said in workers.run(on_ranks.layer_inside, spec):
        assert said.startswith("UnsupportedError: inside `with attend:` tokens lie on several")
