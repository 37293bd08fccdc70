"""docs/results.md beside the stored study of finding one key."""

import numpy as np
import pytest
from stored_results import STUDIES, TEXT, assert_row, difference, record_of, rounded

from flashpoint.lab.data.text.recall import NUM_HELD_OUT, NUM_KEYS, VALUES, Recall, best_guess
from flashpoint.lab.runs.run_files import read_runs
from flashpoint.lab.study.registry import STUDIES as REGISTRY
from flashpoint.lab.study.sections import read_section
from flashpoint.lab.study.verdict import bootstrap

STUDY = "retrieval"
PAIRS = (4, 8, 16, 32, 64, 128)
FOLDERS = {
    "softmax": "softmax",
    "relu, alpha 0.5": "relu-alpha-0.5",
    "relu, alpha 0.5, learned bias": "relu-alpha-0.5-learned-bias",
    "relu, alpha 1": "relu-alpha-1",
    "relu2, alpha 1": "relu2-alpha-1",
}
OTHERS = tuple(FOLDERS)[1:]


def right(attention, pairs):
    """Percent of answers, by seed."""
    name = f"{FOLDERS[attention]}-trained_pairs32-"
    found = record_of(STUDY, name, "evaluations.json")
    return np.array([100 * one[f"pairs{pairs}"]["exact"] for one in found])


def guess(pairs):
    return 100 * best_guess(pairs)


def less(first, second, pairs, digits=1):
    """A difference in a sentence."""
    value, interval = difference(right(first, pairs), right(second, pairs), digits)
    return f"{value} ({interval})"


def is_apart(first, second, pairs):
    found = bootstrap([right(first, pairs), right(second, pairs)])
    return not found.low <= 0 <= found.high


@pytest.mark.parametrize("attention", FOLDERS)
def test_table_of_answers_is_that_of_the_trials(attention):
    assert_row(attention, *(rounded(right(attention, pairs), 1) for pairs in PAIRS))


def test_guesses_are_those_of_the_data():
    assert_row("attention", *(f"{pairs} pairs" for pairs in PAIRS))
    assert_row("a guess", *(f"{guess(pairs):.1f}" for pairs in PAIRS))


@pytest.mark.parametrize("attention", OTHERS)
def test_table_of_differences_is_that_of_the_trials(attention):
    heads = [cell for pairs in (32, 64, 128) for cell in (f"{pairs} pairs", "interval")]
    assert_row("less softmax", *heads)
    cells = [
        difference(right(attention, pairs), right("softmax", pairs), digits)
        for pairs, digits in ((32, 2), (64, 1), (128, 1))
    ]
    assert_row(attention, *(cell for pair in cells for cell in pair))


def test_verdicts_are_said_with_their_intervals():
    found = read_section(STUDIES / STUDY, REGISTRY).findings.verdicts
    half, one = (f"{v.value:+.2f} ({v.low:+.2f} to {v.high:+.2f})" for v in found[:2])
    assert f"relu less softmax is {half.replace(')', ') points', 1)} with alpha 0.5" in TEXT
    assert f"and {one} with alpha 1, where the claim allows 2." in TEXT
    assert {verdict.region[0] for verdict in found} == {-2.0}
    half, one = (f"{v.value:+.1f} ({v.low:+.1f} to {v.high:+.1f})" for v in found[2:])
    assert f"{half.replace(')', ') points')} with alpha 0.5 and {one} with alpha 1" in TEXT
    glance = f"at four times as many {-found[2].value:.0f} to {-found[3].value:.0f} points behind"
    assert glance in TEXT


def test_trained_lengths_are_at_the_ceiling():
    trained = [right(attention, pairs).min() for attention in FOLDERS for pairs in PAIRS[:4]]
    assert f"every run is right in {min(trained):.1f}% or more there" in TEXT
    assert [one for one in OTHERS if is_apart(one, "softmax", 32)] == ["relu2, alpha 1"]
    assert f"which is {less('relu2, alpha 1', 'softmax', 32, 2)} points from softmax" in TEXT


def test_128_pairs_are_as_the_text_says():
    softmax, half, _, one, squared = (right(attention, 128).mean() for attention in FOLDERS)
    assert (
        f"At 128 pairs softmax has {softmax:.1f}%, alpha 0.5 is {softmax - half:.1f} points "
        f"lower, and alpha 1 falls to {one:.1f}% and {squared:.1f}%, where a guess gives "
        f"{guess(128):.1f}%." in TEXT
    )
    assert all(is_apart(one, "softmax", 128) for one in OTHERS)
    powers = less("relu, alpha 0.5", "relu, alpha 1", 128)
    assert f"Alpha 0.5 less alpha 1, both with relu, is {powers}." in TEXT
    bias = less("relu, alpha 0.5, learned bias", "relu, alpha 0.5", 128)
    assert f"A learned bias shows no gain: {bias} points." in TEXT


def test_64_pairs_are_as_the_text_says():
    relu, squared = (right(attention, 64) for attention in ("relu, alpha 1", "relu2, alpha 1"))
    assert f"relu has {relu.min():.1f} to {relu.max():.1f}%" in TEXT
    assert f"relu2 {squared.min():.1f} to {squared.max():.1f}%, and both intervals hold 0" in TEXT
    assert "**At 64 pairs alpha 1 is undecided**" in TEXT
    assert [is_apart(one, "softmax", 64) for one in OTHERS] == [True, True, False, False]
    loss = right("softmax", 64).mean() - right("relu, alpha 0.5", 64).mean()
    assert f"Alpha 0.5 loses {loss:.1f} points in an interval that does not." in TEXT
    assert not any(is_apart("relu, alpha 1", "relu2, alpha 1", pairs) for pairs in (64, 128))
    assert "relu and relu2 cannot be told apart at 64 or 128 pairs" in TEXT


def stored_runs():
    return read_runs([file.parent for file in sorted((STUDIES / STUDY).glob("*/record.json"))])


def test_training_is_as_the_text_says():
    records = [run.record for run in stored_runs()]
    assert len(records) == 15
    assert {one["skipped"] for one in records} == {0}
    (size,) = {f"{one['num_parameters'] / 1e6:.2f} M parameters" for one in records}
    (training,) = {f"{one['steps']:,} updates, {one['epochs']:.1f} epochs" for one in records}
    configs = [run.config for run in stored_runs()]
    (shape,) = {
        "{encoder_depth} + {decoder_depth} layers of width {width}, {num_heads} heads".format(
            **config["model"]
        )
        for config in configs
    }
    (place,) = {config["data"]["train"] for config in configs}
    recall = Recall.parse(place.removeprefix("recall:"))
    sources = f"{recall.num_training:,} sources of {recall.fewest} to {recall.most} pairs"
    (rate,) = {f"{1e3 * config['optimizer']['lr']:g}e-3" for config in configs}
    assert f"{shape}, {size}, learns from {sources} ({training}, rate {rate}, no penalty)" in TEXT
    assert {config["penalty"] for config in configs} == {0.0}
    assert f"{NUM_KEYS} keys, {len(VALUES)} values." in TEXT
    assert f"4 to 128 pairs, {NUM_HELD_OUT:,} sources each" in TEXT


def test_gains_are_learned_where_the_text_says():
    specs = [run.config["model"]["attention"] for run in stored_runs()]
    gains = {(one["alpha"], one["gain"]) for one in specs if one["activation"] != "softmax"}
    assert gains == {(0.5, "learned"), (1.0, 1.0)}
    assert "Alpha 0.5 has a learned gamma, alpha 1 has none." in TEXT
