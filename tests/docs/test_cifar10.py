"""docs/results.md, and what quotes it, beside the stored runs on CIFAR-10."""

import numpy as np
import pytest
from stored_results import PAGE, ROOT, names_a_machine
from stored_results import RUNS as ALL_RUNS

from flashpoint.lab.runs.run_files import read_runs
from flashpoint.lab.study.verdict import bootstrap

RUNS = ALL_RUNS / "cifar10"
TOKENS = {4: 64, 2: 256}
TWINS = {"softmax": "softmax", "relu": "relu / L"}
T_975 = 4.303  # Student's t with two degrees of freedom: three pairs


def runs_of(patch, twin):
    """Seeds 0, 1 and 2, in order."""
    runs = read_runs(sorted(RUNS.glob(f"patch{patch}-{twin}-seed*")))
    assert [run.config["seed"] for run in runs] == [0, 1, 2]
    return runs


def top1_of(patch, twin):
    return np.array([100 * run.record["validation"]["top1"] for run in runs_of(patch, twin)])


def curve(patch, twin, kind, key):
    """By seed and line of the log, which come once an epoch of training, once in ten validated."""
    return np.array([[row[key] for row in getattr(run, kind)] for run in runs_of(patch, twin)])


def recipe(run):
    """A config less its seed; an option that is null may be younger than the run."""
    return {k: v for k, v in run.config.items() if k != "seed" and v is not None}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("patch", TOKENS)
def test_seeds_share_a_recipe_and_end_as_their_curves_do(patch, twin):
    runs = runs_of(patch, twin)
    assert all(recipe(run) == recipe(runs[0]) for run in runs)
    for run in runs:
        assert run.config["model"]["patch_size"] == patch
        assert run.config["model"]["attention"]["activation"] == twin
        assert run.record["validation"]["top1"] == run.validation[-1]["top1"]
        assert run.validation[-1]["step"] == run.record["steps"] == 23_438


@pytest.mark.parametrize("run", sorted(RUNS.iterdir()), ids=lambda run: run.name)
def test_stored_run_is_whole_and_names_no_folder_of_a_machine(run):
    files = sorted(run.iterdir())
    assert [file.name for file in files] == ["config.yaml", "metrics.jsonl", "record.json"]
    text = "".join(file.read_text("utf-8") for file in files)
    assert not names_a_machine(text)


@pytest.mark.parametrize("patch", TOKENS)
def test_table_of_twins_is_that_of_the_runs(patch):
    softmax, relu = top1_of(patch, "softmax"), top1_of(patch, "relu")
    pairs = relu - softmax
    drawn = bootstrap([relu, softmax])
    half = T_975 * pairs.std(ddof=1) / len(pairs) ** 0.5
    cells = (
        *(f"{patch}", f"{TOKENS[patch]}"),
        *(f"{twin.mean():.2f}% ± {twin.std(ddof=1):.2f}" for twin in (softmax, relu)),
        f"{drawn.value:+.2f}",
        ", ".join(f"{pair:+.2f}" for pair in pairs),
        f"{drawn.low:+.2f} to {drawn.high:+.2f}",
        f"{pairs.mean() - half:+.2f} to {pairs.mean() + half:+.2f}",
    )
    assert f"| {' | '.join(cells)} |" in PAGE


def test_glance_has_the_gaps_of_the_longest_training():
    few, many = (top1_of(patch, "softmax") - top1_of(patch, "relu") for patch in TOKENS)
    gaps = f"{few.mean():.1f} (64 tokens) and {many.mean():.1f} (256 tokens)"
    assert f"for 60 epochs (next section) relu / L is {gaps} points below softmax." in PAGE
    assert {run.config["epochs"] for twin in TWINS for run in runs_of(4, twin)} == {60}


def test_runs_below_85_percent_and_of_another_commit_are_those_the_text_names():
    runs = [run for patch in TOKENS for twin in TWINS for run in runs_of(patch, twin)]
    low = [run.name for run in runs if run.record["validation"]["top1"] <= 0.85]
    later = [run.name for run in runs if run.record["environment"]["commit"] != "549b46b"]
    assert low == ["patch2-relu-seed1"]
    assert later == [f"patch2-{twin}-seed{seed}" for twin in TWINS for seed in (1, 2)]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("patch", TOKENS)
def test_table_of_curves_is_that_of_the_runs(patch, twin):
    train = curve(patch, twin, "train", "loss").mean(axis=0)
    loss = curve(patch, twin, "validation", "loss").mean(axis=0)
    top1 = 100 * curve(patch, twin, "validation", "top1").mean(axis=0)
    cells = (
        *(f"{TOKENS[patch]}", TWINS[twin]),
        *(f"{value:.1f}" for value in top1),
        *(f"{train[47:52].mean():.3f}", f"{loss[4]:.3f}"),
        *(f"{train[55:].mean():.3f}", f"{loss[5]:.3f}"),
    )
    assert f"| {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("patch", TOKENS)
def test_differences_of_losses_by_seed_are_those_of_the_runs(patch):
    def last(kind, twin, count):
        return curve(patch, twin, kind, "loss")[:, -count:].mean(axis=1)

    for kind, count in (("train", 5), ("validation", 1)):
        by_seed = last(kind, "relu", count) - last(kind, "softmax", count)
        assert ", ".join(f"{difference:+.3f}" for difference in by_seed) in PAGE


def test_softmax_at_epoch_50_beside_relu_at_the_end_is_as_the_text_counts():
    train, validation = [], []
    for patch in TOKENS:
        then = curve(patch, "softmax", "train", "loss")[:, 47:52].mean(axis=1)
        train.extend(then > curve(patch, "relu", "train", "loss")[:, 55:].mean(axis=1))
        then = curve(patch, "softmax", "validation", "loss")[:, 4]
        validation.extend(then < curve(patch, "relu", "validation", "loss")[:, 5])
    assert (sum(train), sum(validation), len(train)) == (5, 6, 6)
    assert "in five of the six pairs, and the lower validation loss in all six." in PAGE


def test_larger_gain_is_as_the_text_says():
    top1 = top1_of(4, "relu_gain2.33")
    assert f"{top1.mean():.2f}% ± {top1.std(ddof=1):.2f} at 64 tokens" in PAGE
    assert ", ".join(f"{value:.2f}" for value in top1) in PAGE
    for twin in ("relu_gain2.33", *TWINS):
        last = curve(4, twin, "train", "loss")[:, -4:].mean(axis=1)
        assert ", ".join(f"{value:.3f}" for value in last) in PAGE
    changed, plain = (recipe(runs_of(4, twin)[0]) for twin in ("relu_gain2.33", "relu"))
    gains = [config["model"]["attention"].pop("gain") for config in (changed, plain)]
    assert gains == [2.33, 1.0]
    assert changed["model"] == plain["model"]
    assert changed["optimizer"] == plain["optimizer"]


@pytest.mark.parametrize("file", ["README.md", "configs/cifar10.yaml"])
def test_means_are_quoted_as_the_runs_have_them(file):
    text = " ".join((ROOT / file).read_text("utf-8").replace("\n#", "\n").split())
    for patch in TOKENS:
        for twin in TWINS:
            assert f"{top1_of(patch, twin).mean():.1f}%" in text
