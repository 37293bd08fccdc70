"""docs/results.md beside the stored study of speed."""

import json

import numpy as np
import pytest
from stored_results import (
    RUNS,
    STUDIES,
    TEXT,
    assert_row,
    benchmark,
    between,
    record_of,
    rounded,
)

from flashpoint.lab.runs.run_files import read_mapping
from flashpoint.lab.study.registry import STUDIES as REGISTRY
from flashpoint.lab.study.sections import read_section
from flashpoint.lab.study.verdict import bootstrap

STUDY = "speed"
BATCHES = {16: 1024, 64: 512, 256: 128, 1024: 32}
NEAREST = {16: 49, 64: 49, 256: 196, 1024: 784}
"""Lengths that the stored benchmarks have."""
DEPTH, HEADS = 6, 3


def steps(tokens):
    """Milliseconds with softmax and with relu, by repeat."""
    found = [one["numbers"] for one in record_of(STUDY, f"step-tokens{tokens}-")]
    return (np.array([1e3 * one[f"{name}_s"] for one in found]) for name in ("softmax", "relu"))


def ratio(tokens):
    softmax, relu = steps(tokens)
    return (softmax / relu).mean()


def difference(tokens):
    softmax, relu = steps(tokens)
    return (softmax - relu).mean()


def kernels(mode, length, norm="layer"):
    """Seconds of softmax's best and of ours, head dim 64."""
    record = read_mapping(STUDIES / STUDY / "kernels" / "record.json")
    case = f"NVIDIA H200|{mode}|relu|full|{norm}|bf16|64|{length}"
    return [record["numbers"][f"{case}|{name}_s"] for name in ("softmax", "ours")]


def by_kernels(tokens):
    """Milliseconds that softmax takes more, were a step's attention the nearest benchmark's."""
    length = NEAREST[tokens]
    shapes = [row["case"]["shape"] for row in benchmark("vit")["rows"] if not row["is_overhead"]]
    shape = next(shape for shape in shapes if shape["length"] == length)
    more = sum(np.subtract(*kernels(mode, length)) for mode in ("forward", "backward"))
    one = more / (shape["batch"] * shape["heads"] * length)
    return 1e3 * one * DEPTH * HEADS * tokens * BATCHES[tokens]


@pytest.mark.parametrize("tokens", BATCHES)
def test_table_of_steps_is_that_of_the_trials(tokens):
    softmax, relu = steps(tokens)
    times = [rounded(softmax, 3), rounded(relu, 3), rounded(softmax / relu, 3)]
    alone = f"{by_kernels(tokens):.2f} ({NEAREST[tokens]})"
    assert_row(tokens, BATCHES[tokens], *times, f"{difference(tokens):.2f}", alone)


@pytest.mark.parametrize("tokens", BATCHES)
def test_twins_are_those_of_the_text(tokens):
    for trial in record_of(STUDY, f"step-tokens{tokens}-", "trial.json"):
        for config in trial["work"]["options"]["configs"].values():
            model = config["model"]
            assert (model["depth"], model["num_heads"]) == (DEPTH, HEADS)
            assert f"(width {model['width']}, depth {DEPTH}, {HEADS} heads, qk-layernorm)" in TEXT
            assert (32 // model["patch_size"]) ** 2 == tokens
            assert config["batch_size"] == BATCHES[tokens]
            assert (config["compile"], config["precision"]) == ("graphs", "bf16")


def test_verdict_is_said_with_its_interval():
    one, more = read_section(STUDIES / STUDY, REGISTRY).findings.verdicts
    said = f"{one.value:.3f} times ({one.low:.3f} to {one.high:.3f})"
    assert min(BATCHES, key=ratio) == 256
    assert f"at 256 tokens, where it gains least, {said}" in TEXT
    said = f"at 1024 tokens is {more.value:.3f} ({more.low:.3f} to {more.high:.3f}) of that at 16"
    assert said in TEXT


def test_gains_by_tokens_are_as_the_text_says():
    few, some, more, most = (f"{ratio(tokens):.2f}" for tokens in BATCHES)
    assert f"16 tokens gain most, {few}, then it falls to {some} and {more}" in TEXT
    assert f"and only from 256 to 1024 it rises, to {most}." in TEXT
    low, high = (bootstrap(list(steps(tokens)), np.divide) for tokens in (256, 1024))
    assert low.high < high.low


def test_differences_are_as_the_text_says():
    gaps = {tokens: difference(tokens) for tokens in BATCHES}
    assert f"{between(gaps.values(), 1)} ms at every length" in TEXT
    per_token = [1e6 * gap / (tokens * BATCHES[tokens]) for tokens, gap in gaps.items()]
    assert f"{per_token[0]:.0f} ns a token at 16, {between(per_token[1:], 0)} elsewhere" in TEXT
    counts = [tokens * batch for tokens, batch in BATCHES.items()]
    assert f"its batch has {counts[0]:,} tokens and the others {counts[1]:,}" in TEXT
    assert len(set(counts[1:])) == 1


def test_kernels_explain_what_the_text_says():
    gaps = {tokens: difference(tokens) for tokens in BATCHES}
    shares = [100 * by_kernels(tokens) / gap for tokens, gap in gaps.items()]
    assert f"{between(shares[1:], 0)}% of the difference from 64 tokens on" in TEXT
    assert f"but {shares[0]:.0f}% of it at 16" in TEXT
    shortest = min(row["case"]["shape"]["length"] for row in benchmark("vit")["rows"])
    assert f"No benchmark here is shorter than {shortest} tokens" in TEXT


def test_kernels_are_as_the_text_says():
    gains = {
        mode: [np.divide(*kernels(mode, length)) for length in (49, 196, 197, 577, 784)]
        for mode in ("forward", "backward")
    }
    forward, backward = (between(found) for found in gains.values())
    assert f"{forward} times as fast as softmax's forward and {backward} times backward" in TEXT
    first, last = gains["backward"][0], gains["backward"][-1]
    assert f"backward from {first:.2f} at 49 tokens to {last:.2f} at 784" in TEXT
    steps_gain = between([ratio(tokens) for tokens in BATCHES])
    assert f"A step is {steps_gain} times as fast" in TEXT


def test_other_steps_are_as_the_text_says():
    small, large = (f"{model['speedup']:.2f}" for model in benchmark("vit_model")["models"])
    assert f"{small} (S/16, 196 tokens) and {large} (S/8, 784)" in TEXT


def test_whole_training_is_as_the_text_says():
    rates = [
        json.loads((RUNS / "cifar10" / f"speed-patch2-{name}" / "record.json").read_text("utf-8"))
        for name in ("relu", "softmax")
    ]
    whole = rates[0]["samples_per_s"] / rates[1]["samples_per_s"]
    said = f"256 tokens in batches of 128 was {whole:.2f} times as fast in the section on CIFAR-10"
    assert said in TEXT
    assert {one["environment"]["commit"] for one in rates} == {"549b46b"}
    assert "with older kernels (commit 549b46b)" in TEXT
    us = 1e6 * kernels("backward", 49)[1]
    assert f"{us:.0f} us instead of 164 at 49 tokens" in TEXT
