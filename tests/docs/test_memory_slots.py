"""docs/results.md beside the stored study of the memory's slots."""

import json

import numpy as np
import pytest
from stored_results import STUDIES, TEXT, assert_row, difference, record_of, rounded

from flashpoint.lab.runs.run_files import read_runs
from flashpoint.lab.study.registry import STUDIES as REGISTRY
from flashpoint.lab.study.sections import read_section
from flashpoint.lab.study.studies.memory_slots import MARGIN
from flashpoint.lab.study.verdict import bootstrap

STUDY = "memory-slots"
SLOTS = (32, 128, 512, 2048, 4096)
NORM = "softmax-norm"


def records(memory, slots):
    return record_of(STUDY, f"{memory}-slots{slots}-")


def losses(memory, slots):
    """Of validation, by seed."""
    return np.array([one["validation"]["loss"] for one in records(memory, slots)])


def train_loss(memory, slots, step):
    """Mean over the seeds, of the hundred updates up to this one."""
    runs = read_runs([STUDIES / STUDY / f"{memory}-slots{slots}-seed{seed}" for seed in range(3)])
    rows = [row["loss"] for run in runs for row in run.train if row["step"] == step]
    assert len(rows) == 3
    return np.mean(rows)


def less(first, second):
    """A difference of losses in a sentence."""
    value, interval = difference(first, second, 3)
    return f"{value} ({interval})"


@pytest.mark.parametrize("slots", SLOTS)
def test_table_of_slots_is_that_of_the_trials(slots):
    relu, softmax, norm = (losses(memory, slots) for memory in ("relu", "softmax", NORM))
    sizes = f"{records('relu', slots)[0]['num_parameters'] / 1e6:.1f}"
    means = [rounded(group, 3) for group in (relu, softmax, norm)]
    differences = [
        *difference(relu, softmax, 3),
        *difference(relu, norm, 3),
        *difference(norm, softmax, 3),
    ]
    assert_row(slots, sizes, *means, *differences)


def test_verdicts_are_said_with_their_intervals():
    found = read_section(STUDIES / STUDY, REGISTRY).findings.verdicts
    every, equal, many = (f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f})" for one in found)
    assert f"at 4096 slots its loss is {every} from softmax's" in TEXT
    assert f"By itself that difference has {difference(*twins(4096), 3)[1]}" in TEXT
    assert f"the largest difference, at 32 slots, is {equal.replace('+', '')}" in TEXT
    assert f"relu less softmax with the norm is {many} at 4096" in TEXT


def twins(slots):
    return losses("relu", slots), losses("softmax", slots)


def test_relu_beats_softmax_where_the_text_says():
    surely = [slots for slots in SLOTS if bootstrap(list(twins(slots))).high < 0]
    assert surely == [128, 512, 2048]
    gaps = [softmax.mean() - relu.mean() for relu, softmax in map(twins, surely)]
    assert f"by {min(gaps):.3f} to {max(gaps):.3f} nats from 128 to 2048 slots" in TEXT
    few = bootstrap(list(twins(32)))
    assert few.low < 0 < few.high


def test_relu_with_4096_slots_trains_as_the_text_says():
    assert losses("relu", 4096).min() > losses("relu", 2048).max()
    assert f"{less(losses('relu', 4096), losses('relu', 2048))} above its own at 2048" in TEXT
    for step, text in (
        (300, "level at update 300 ({:.2f} and {:.2f})"),
        (500, "behind at 500 ({:.2f} and {:.2f})"),
        (1500, "{:.2f} and {:.2f} at the end"),
    ):
        pair = [train_loss("relu", slots, step) for slots in (4096, 2048)]
        assert text.format(*pair) in TEXT
    gap = losses("relu", 4096).mean() - losses("relu", 512).mean()
    fit = train_loss("relu", 512, 1500)
    assert f"512 slots fit no better ({fit:.2f}) and validate {gap:.2f} lower" in TEXT
    assert f"goes up by {less(losses(NORM, 4096), losses(NORM, 2048))[1:]}" in TEXT


def test_what_slots_give_softmax_is_as_the_text_says():
    first, last = (losses("softmax", slots).mean() for slots in (32, 4096))
    assert f"from {first:.2f} at 32 slots to {last:.2f} at 4096" in TEXT
    first, last = (losses(NORM, slots).mean() for slots in (32, 2048))
    assert f"from {first:.2f} to {last:.2f} at 2048" in TEXT
    gains = [losses("softmax", slots).mean() - losses(NORM, slots).mean() for slots in SLOTS[2:]]
    assert f"{min(gains):.2f} to {max(gains):.2f} nats from 512 on" in TEXT


def test_norm_is_beside_relu_as_the_text_says():
    below = {slots: bootstrap([losses(NORM, slots), losses("relu", slots)]) for slots in SLOTS[:4]}
    assert all(one.high - one.low > 2 * MARGIN for one in below.values())
    assert [one.value > 0 for one in below.values()] == [True, True, True, False]


def test_training_is_as_the_text_says():
    files = sorted((STUDIES / STUDY).glob("*/record.json"))
    found = [json.loads(file.read_text("utf-8")) for file in files]
    assert len(found) == 45
    assert {f"{one['samples'] / 1e6:.1f} M" for one in found} == {"18.6 M"}
    assert {f"{one['epochs']:.1f}" for one in found} == {"2.6"}
    assert {(one["steps"], one["skipped"]) for one in found} == {(1500, 0)}
    sizes = sorted(one["num_parameters"] / 1e6 for one in found)
    assert f"{sizes[0]:.1f} to {sizes[-1]:.1f} M parameters" in TEXT
