"""docs/results.md beside the stored studies of small ViTs and of variance."""

import numpy as np
import pytest
from stored_results import (
    PAGE,
    STUDIES,
    TEXT,
    assert_row,
    difference,
    record_of,
    rounded,
    said,
    top1_in,
)

from flashpoint.lab.runs.run_files import read_runs
from flashpoint.lab.study.moments import ACTIVATIONS, mean_square, output_variance, variance_name
from flashpoint.lab.study.verdict import bootstrap

RULES = (
    *("fixed at 1", "learned from 1", "learned per head from 1", "fixed at 0.5"),
    *("learned from 0.5", "learned per head from 0.5", "softmax"),
)
KEYS = (16, 64, 256, 1024, 4096, 16384)
TESTED = (16, 36, 64, 144, 256, 576)


def variances(name):
    return np.array([record["numbers"][name] for record in record_of("variance", "")])


@pytest.mark.parametrize("activation", ["softmax", *ACTIVATIONS])
def test_table_of_variances_is_that_of_the_trials(activation):
    alpha = 0.0 if activation == "softmax" else 1.0
    ratios = [
        variances(variance_name(activation, alpha, n)) / output_variance(activation, alpha, n)
        for n in KEYS
    ]
    square = "" if activation == "softmax" else f"{mean_square(activation):.4f}"
    assert_row(activation, square, *(rounded(ratio, 3) for ratio in ratios))


@pytest.mark.parametrize("keys", KEYS)
def test_table_of_variances_in_a_layer_is_that_of_the_trials(keys):
    kinds = ((("relu", 0.5), 2, 3), (("softmax", 0.0), keys, 2), (("relu", 1.0), keys, 3))
    cells = []
    for kind, factor, digits in kinds:
        cells += [
            rounded(factor * variances(variance_name(*kind, keys, is_layer=True)), digits),
            f"{factor * output_variance(*kind, keys, width=512):.{digits}f}",
        ]
    assert_row(keys, *cells[:2], 1, *cells[2:])


@pytest.mark.parametrize("activation", ["relu", "relu2", "softmax"])
def test_table_of_the_norm_is_that_of_the_trials(activation):
    there, gone = (top1_in("qk-norm", f"{activation}-{norm}") for norm in ("with", "without"))
    by_seed = ", ".join(f"{pair:+.2f}" for pair in gone - there)
    cells = [rounded(there), rounded(gone), *difference(gone, there), by_seed]
    assert f"| {activation} | {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("norm", ["with", "without"])
def test_relu_beside_softmax_by_norm_is_as_the_text_says(norm):
    relu, softmax = (top1_in("qk-norm", f"{twin}-{norm}") for twin in ("relu", "softmax"))
    assert said(relu, softmax).removeprefix("+") in PAGE


@pytest.mark.parametrize("rule", RULES)
def test_table_of_alphas_is_that_of_the_trials(rule):
    name = rule.replace(" ", "-")
    top1, fixed = (top1_in("learned-length", one) for one in (name, "fixed-at-1"))
    less = ["", ""] if rule == "fixed at 1" else difference(top1, fixed)
    alphas = ["", ""]
    if rule.startswith("learned"):
        found = [
            one["learned"] for one in record_of("learned-length", f"{name}-", "evaluations.json")
        ]
        lowest = min(one["alpha_lowest"] for one in found)
        highest = max(one["alpha_highest"] for one in found)
        ends = rounded(np.array([one["alpha"] for one in found]), 3)
        alphas = [ends, f"{lowest:.2f} to {highest:.2f}"]
    assert_row(rule, rounded(top1), *less, *alphas)


def test_learned_alphas_gain_and_go_where_the_text_says():
    from_one, from_half, per_head, half = (
        top1_in("learned-length", name)
        for name in (
            *("learned-from-1", "learned-from-0.5"),
            *("learned-per-head-from-0.5", "fixed-at-0.5"),
        )
    )
    value, interval = difference(from_half, half)
    assert f"gains {value[1:]} points ({interval}) over 0.5" in TEXT
    assert f"leaves {said(from_one, from_half)[1:]} to a start at 1" in TEXT
    assert f"gains {said(per_head, half)[1:]}" in TEXT
    layers = {
        (name, layer): np.mean(
            [
                one["learned"][f"alpha_layer{layer}"]
                for one in record_of("learned-length", f"{name}-", "evaluations.json")
            ]
        )
        for name, layer in (("learned-from-1", 0), ("learned-from-1", 5), ("learned-from-0.5", 0))
    }
    first, last, of_half = (f"{alpha:.2f}" for alpha in layers.values())
    assert f"The first layer goes to {first}, the last to {last}." in TEXT
    assert f"{of_half} in the first layer" in TEXT
    (run,) = read_runs([STUDIES / "learned-length" / "learned-from-0.5-seed0"])
    assert f"add up to {sum(100 * row['lr'] for row in run.train):.2f}" in TEXT


@pytest.mark.parametrize("tokens", TESTED)
def test_table_of_other_lengths_is_that_of_the_trials(tokens):
    softmax, one, one_fixed, half, half_fixed = (
        top1_in("longer-than-trained", f"{attention}-trained_tokens64", f"{rule}{tokens}")
        for attention, rule in (
            *(("softmax", "seen"), ("relu-alpha-1", "seen"), ("relu-alpha-1", "fixed")),
            *(("relu-alpha-0.5", "seen"), ("relu-alpha-0.5", "fixed")),
        )
    )
    means = [rounded(top1, 1) for top1 in (softmax, one, one_fixed, half, half_fixed)]
    rules = ["", ""] if tokens == 64 else difference(one, one_fixed, 1)
    assert_row(tokens, *means, *rules, *difference(one, softmax, 1))
    assert tokens == 64 or one.mean() > one_fixed.mean()
    assert tokens == 64 or half.mean() > half_fixed.mean()
    low = bootstrap([half, half_fixed]).low
    assert (low <= 0) == (tokens in (64, 256, 576))


def test_second_validation_differs_by_one_image_in_three_models():
    attentions = ("softmax", "relu-alpha-1", "relu-alpha-0.5")
    names = [f"{attention}-trained_tokens64" for attention in attentions]
    off = [
        round(100 * abs(first - again))
        for name in names
        for first, again in zip(
            top1_in("longer-than-trained", name),
            top1_in("longer-than-trained", name, "seen64"),
            strict=True,
        )
    ]
    assert sorted(off) == [0] * 6 + [1] * 3
