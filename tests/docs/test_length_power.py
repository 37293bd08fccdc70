"""docs/results.md beside the stored study of the power of the length."""

import math

import numpy as np
import pytest
from stored_results import (
    STUDIES,
    TEXT,
    assert_row,
    difference,
    record_of,
    rounded,
    said,
    top1_in,
    trials_of,
)

from flashpoint.lab.runs.run_files import read_mapping
from flashpoint.lab.study.registry import STUDIES as REGISTRY
from flashpoint.lab.study.sections import read_section
from flashpoint.lab.study.studies.length_power import ACTIVATIONS, ALPHAS
from flashpoint.lab.study.verdict import bootstrap

STUDY = "length-power"


def trial_name(activation, alpha, tokens=64):
    return f"tokens{tokens}-{activation}-alpha{alpha:g}"


def top1(activation, alpha, tokens=64, seeds=(0, 1, 2)):
    return top1_in(STUDY, trial_name(activation, alpha, tokens), seeds=seeds)


def has_all_seeds(activation, alpha, tokens):
    return tokens == 64 and (activation == "relu" or alpha == 1.0)


def with_seed_0(activation, tokens):
    """By alpha."""
    return {alpha: top1(activation, alpha, tokens, (0,))[0] for alpha in ALPHAS}


def best_alpha(activation, tokens):
    found = with_seed_0(activation, tokens)
    return max(found, key=found.__getitem__)


def softmax(tokens):
    return top1_in(STUDY, f"tokens{tokens}-softmax")


def heads(name, number):
    """Of the attention that is stored beside the run with seed 0."""
    (found,) = record_of(STUDY, f"tokens64-{name}-", "attention/statistics.json", (0,))
    return np.array([head[number] for head in found["heads"]])


@pytest.mark.parametrize("tokens", [64, 16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_table_of_powers_is_that_of_the_trials(activation, tokens):
    cells = [
        rounded(top1(activation, alpha, tokens))
        if has_all_seeds(activation, alpha, tokens)
        else f"{top1(activation, alpha, tokens, (0,))[0]:.2f}"
        for alpha in ALPHAS
    ]
    assert_row(tokens, activation, *cells, f"{best_alpha(activation, tokens):g}")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_table_of_activations_is_that_of_the_trials(activation):
    found, relu = top1(activation, 1.0), top1("relu", 1.0)
    less = ["", ""] if activation == "relu" else difference(relu, found)
    assert_row(activation, rounded(found), *less, *difference(found, softmax(64)))


def test_verdicts_are_said_with_their_intervals():
    found = read_section(STUDIES / STUDY, REGISTRY).findings.verdicts
    alpha, activation, identity = (
        f"{one.value:+.2f} ({one.low:+.2f} to {one.high:+.2f})" for one in found
    )
    assert f"{alpha.removeprefix('+')} points above the best of the others" in TEXT
    assert f"the best of the others, softplus, is {activation} points" in TEXT
    assert f"identity loses {identity.removeprefix('+')} points" in TEXT
    others = [a for a in ACTIVATIONS if a not in ("relu", "identity")]
    assert max(others, key=lambda one: top1(one, 1.0).mean()) == "softplus"
    assert top1("softplus", 1.0).mean() < top1("relu", 1.0).mean()


def test_powers_of_relu_are_as_the_text_says():
    best = top1("relu", 1.0)
    means = {alpha: top1("relu", alpha).mean() for alpha in ALPHAS}
    assert max(means, key=means.__getitem__) == 1.0
    assert max(ALPHAS, key=lambda a: means[a] if a not in (0.75, 1, 1.25) else 0) == 1.5
    below, above, half, none = (
        said(best, top1("relu", alpha)).removeprefix("+") for alpha in (0.75, 1.25, 0.5, 0.0)
    )
    assert f"Alpha 1 is {below} above 0.75 and {above} above 1.25" in TEXT
    assert f"alpha 0.5 costs {half} and 0 {none}" in TEXT


def test_best_alphas_and_spreads_are_as_the_text_says():
    best = {tokens: {a: best_alpha(a, tokens) for a in ACTIVATIONS} for tokens in (64, 16)}
    assert {a for a, alpha in best[64].items() if not 0.75 <= alpha <= 1.25} == {"relu2"}
    assert {a for a, alpha in best[16].items() if not 0.75 <= alpha <= 1.25} == {
        *("gelu", "identity")
    }
    arms = [top1(a, alpha) for a in ACTIVATIONS for alpha in ALPHAS if has_all_seeds(a, alpha, 64)]
    spreads = [arm.std(ddof=1) for arm in (*arms, softmax(64), softmax(16))]
    assert f"by {min(spreads):.1f} to {max(spreads):.1f} points (standard deviation)" in TEXT


def test_identity_at_other_powers_is_as_the_text_says():
    identity, relu = (with_seed_0(activation, 64) for activation in ("identity", "relu"))
    for alpha in (1.25, 1.5, 2.0):
        assert f"{identity[alpha] - relu[alpha]:+.2f} at {alpha:g}" in TEXT
    gap = max(relu.values()) - max(identity.values())
    assert f"{gap:.1f} below relu's best" in TEXT
    best = {activation: max(with_seed_0(activation, 16).values()) for activation in ACTIVATIONS}
    assert max(best, key=best.__getitem__) == "identity"
    assert f"at 16 tokens nothing is above its {best['identity']:.2f} at alpha 2" in TEXT
    assert f"(relu6 has {best['relu6']:.2f} at 1)" in TEXT


def test_activations_below_alpha_1_are_as_the_text_says():
    relu = {tokens: with_seed_0("relu", tokens) for tokens in (64, 16)}
    below = [
        relu[tokens][alpha] - with_seed_0(activation, tokens)[alpha]
        for tokens in relu
        for activation in ("relu2", "identity")
        for alpha in (0.5, 0.75)
    ]
    assert f"are {min(below):.1f} to {max(below):.1f} points below relu, at 64" in TEXT
    above = [with_seed_0("sigmoid", tokens)[0.5] - relu[tokens][0.5] for tokens in relu]
    assert "is {:.1f} and {:.1f} above it at 0.5".format(*above) in TEXT


def test_16_tokens_are_as_the_text_says():
    relu = with_seed_0("relu", 16)
    flat = [relu[alpha] for alpha in ALPHAS if alpha >= 0.75]
    assert f"within {max(flat) - min(flat):.1f} points from alpha 0.75 to 2" in TEXT
    assert f"{relu[1.0]:.2f} at alpha 1 and {relu[1.5]:.2f} at alpha 1.5" in TEXT
    assert (
        f"softmax has {rounded(softmax(64))} at 64 tokens and {rounded(softmax(16))} at 16" in TEXT
    )


def test_attention_and_losses_by_power_are_as_the_text_says():
    none, one, two = (f"relu-alpha{alpha}" for alpha in (0, 1, 2))
    sums = [heads(name, "mass").mean() for name in (none, one, two)]
    assert "{:.1f} at alpha 0, {:.2f} at 1 and {:.3f} at 2".format(*sums) in TEXT
    empty = [100 * heads(name, "empty_rows").mean() for name in (none, one)]
    assert "{:.0f}% of queries see no key at all, at alpha 1 {:.0f}%".format(*empty) in TEXT
    losses = [
        np.mean([one["train_loss"] for one in record_of(STUDY, f"{trial_name('relu', alpha)}-")])
        for alpha in (0.0, 1.0, 2.0)
    ]
    assert "training loss of {:.2f}, {:.2f} and {:.2f}".format(*losses) in TEXT


def test_activations_that_fall_behind_are_those_of_the_text():
    relu = top1("relu", 1.0)
    behind = {
        one: relu.mean() - top1(one, 1.0).mean()
        for one in ACTIVATIONS
        if one not in ("relu", "identity") and bootstrap([relu, top1(one, 1.0)]).low > 0
    }
    assert list(behind) == ["relu2", "sigmoid"]
    low, high = min(behind.values()), max(behind.values())
    assert f"relu2 and sigmoid are {low:.1f} to {high:.1f} points lower" in TEXT


def test_all_trials_have_the_size_of_the_text_and_left_out_no_update():
    records = [read_mapping(trial / "record.json") for trial in trials_of(STUDY)]
    assert len(records) == 146
    assert {f"{one['num_parameters'] / 1e6:.1f}" for one in records} == {"0.8"}
    assert {one["skipped"] for one in records} == {0}
    assert all(math.isfinite(one["validation"]["loss"]) for one in records)
