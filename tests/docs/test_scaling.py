"""docs/results.md beside the stored study of sizes."""

import json
from datetime import datetime
from itertools import pairwise

import numpy as np
import pytest
from stored_results import (
    PAGE,
    RUNS,
    STUDIES,
    assert_row,
    difference,
    record_of,
    rounded,
    top1_in,
)

from flashpoint.lab.data.arrays import open_digits
from flashpoint.lab.runs.run_files import read_runs
from flashpoint.lab.study.reading import change
from flashpoint.lab.study.registry import STUDIES as REGISTRY
from flashpoint.lab.study.sections import read_section
from flashpoint.lab.study.studies.scaling import MARGIN, TRANSFER
from flashpoint.lab.study.verdict import TAIL, Extreme, Means, bootstrap

STUDY = "scaling"
SIZES = ("128-8", "128-4", "192-4", "256-4")
TWINS = ("relu", "softmax")
SECTION = " ".join(PAGE.partition("\n### Sizes\n")[2].partition("\n### ")[0].split())


def top1(size):
    """Of both twins."""
    return [top1_in(STUDY, f"{size}-{twin}") for twin in TWINS]


def transfer(size):
    """Of both twins, percent by seed."""
    return [
        np.array([100 * one["transfer"]["mean"] for one in probes(size, twin)]) for twin in TWINS
    ]


def probes(size, twin):
    return record_of(STUDY, f"{size}-{twin}-", "evaluations.json")


def slashed(sizes):
    """As the text lists two of them."""
    return " and ".join(size.replace("-", "/") for size in sizes)


def folders():
    return sorted(folder for folder in (STUDIES / STUDY).iterdir() if folder.is_dir())


def are_borne_out(groups):
    """The two claims about top-1, by both twins' numbers of each size."""
    every = Extreme("least", [Means(groups[size]) for size in SIZES]).find()
    ends = bootstrap([*groups[SIZES[-1]], *groups[SIZES[0]]], change)
    return [one.low is not None and one.low >= -MARGIN for one in (every, ends)]


def reach_beyond_the_margin(numbers):
    """Sizes whose intervals do, by themselves."""
    return [size for size in SIZES if bootstrap(numbers(size)).low < -MARGIN]


@pytest.mark.parametrize("size", SIZES)
def test_table_of_sizes_is_that_of_the_trials(size):
    records = [one for twin in TWINS for one in record_of(STUDY, f"{size}-{twin}-")]
    (parameters,) = {one["num_parameters"] for one in records}
    (flops,) = {one["flops"] for one in records}
    relu, softmax = top1(size)
    moved, twin = transfer(size)
    assert_row(
        *(size.replace("-", "/"), f"{parameters / 1e6:.1f}", f"{flops / 1e12:.0f}"),
        *(rounded(relu), rounded(softmax), *difference(relu, softmax)),
        *(rounded(moved), rounded(twin), *difference(moved, twin)),
    )


def test_verdicts_are_said_with_their_intervals():
    found = read_section(STUDIES / STUDY, REGISTRY).findings.verdicts
    every, ends, moved = (f"{one.value:+.2f} ({one.low:+.2f} to {one.high:+.2f})" for one in found)
    _, alone = difference(*top1("128-4"))
    assert f"is {every}. By itself that difference has {alone}; the interval is wider" in SECTION
    assert "the worst mean, at 128/4, is" in SECTION
    assert found[0].low == bootstrap(top1("192-4")).low
    assert found[0].high == bootstrap(top1("128-4"), above=TAIL / len(SIZES)).high
    assert f"to the largest is undecided too, {ends}." in SECTION
    assert f"the worst mean is {moved}, at 128/4, with a margin of one point" in SECTION
    for numbers in (top1, transfer):
        gaps = {size: np.subtract(*(one.mean() for one in numbers(size))) for size in SIZES}
        assert min(gaps, key=gaps.__getitem__) == "128-4"


def test_sizes_that_leave_it_undecided_are_those_of_the_text():
    gaps = [np.subtract(*(one.mean() for one in top1(size))) for size in SIZES]
    assert np.abs(gaps).max() < 0.5  # as CHANGES.md says
    beyond = reach_beyond_the_margin(top1)
    within = [size for size in SIZES if size not in beyond]
    assert f"{slashed(within)} lie within the margin with their whole intervals" in SECTION
    assert f"it is at {slashed(beyond)} that they reach below {-MARGIN:g}, narrowly" in SECTION
    assert reach_beyond_the_margin(transfer) == list(SIZES)
    assert np.subtract(*(one.mean() for one in transfer("128-4"))) < -MARGIN


@pytest.mark.parametrize(
    ("number", "least", "most", "words"),
    [
        (5, 0.35, 0.65, "five seeds would bear out both claims in about half of such studies"),
        (8, 0.8, 0.97, "eight in about nine of ten"),
    ],
)
def test_more_seeds_would_do_as_often_as_the_text_says(number, least, most, words):
    rng = np.random.default_rng(0)
    found = {size: [(one.mean(), one.std(ddof=1)) for one in top1(size)] for size in SIZES}
    studies = [
        {size: [rng.normal(*one, number) for one in twins] for size, twins in found.items()}
        for _ in range(200)
    ]
    assert least < np.mean([all(are_borne_out(groups)) for groups in studies]) < most
    assert words in SECTION
    assert are_borne_out({size: top1(size) for size in SIZES}) == [False, False]


def test_width_128_is_as_the_text_says():
    few, many = (bootstrap(top1(size)) for size in SIZES[:2])
    assert few.low > 0 > many.high
    ahead, behind = few.value, -many.value
    assert f"{ahead:.2f} ahead with 16 tokens and {behind:.2f} behind with 64" in SECTION
    spreads = [one.std(ddof=1) for size in SIZES[:2] for one in top1(size)]
    assert f"deviations, {min(spreads):.2f} to {max(spreads):.2f}, are below" in SECTION


def test_transfer_is_as_the_text_says():
    both = [transfer(size) for size in SIZES]
    gaps = [relu.mean() - softmax.mean() for relu, softmax in both]
    seeds = max(one.std(ddof=1) for pair in both for one in pair)
    draws = [
        100 * one["transfer"]["spread"]
        for size in SIZES
        for twin in TWINS
        for one in probes(size, twin)
    ]
    assert (
        f"relu / L less softmax goes from {min(gaps):+.2f} to {max(gaps):+.2f} in the means, "
        f"seeds deviate by up to {seeds:.1f}, the three draws of one model by {min(draws):.1f} to "
        f"{max(draws):.1f}." in SECTION
    )
    (first,) = {f"{one.mean():.0f}" for one in both[0]}
    relu, softmax = (f"{one.mean():.0f}" for one in both[-1])
    assert f"from {first} to {relu} and {softmax}" in SECTION


def test_longer_training_at_192_is_as_the_text_says():
    longer = [
        np.mean([100 * run.record["validation"]["top1"] for run in read_runs(folders)])
        for folders in (sorted((RUNS / "cifar10").glob(f"patch4-{twin}-seed*")) for twin in TWINS)
    ]
    here = [one.mean() for one in top1("192-4")]
    assert (
        f"at 192/4 relu / L less softmax is {np.subtract(*here):+.2f} here, and "
        f"{np.subtract(*longer):+.2f} after 60 epochs" in SECTION
    )


def test_models_and_training_are_as_the_text_says():
    runs = read_runs(folders())
    assert len(runs) == 24
    models = [run.config["model"] for run in runs]
    assert {one["width"] / one["num_heads"] for one in models} == {64}
    tokens = {one["patch_size"]: (one["image_size"] // one["patch_size"]) ** 2 for one in models}
    few, many = tokens[8], tokens[4]
    assert f"{few} tokens at 128/8 and {many} at the others, heads of 64" in SECTION
    first, second, last = sorted({(one["width"], one["depth"]) for one in models})
    assert (
        f"depth {first[1]} ({first[0]}), {second[1]} ({second[0]}) and {last[1]} ({last[0]}); the "
        "recipe of the section on CIFAR-10 for 15 epochs" in SECTION
    )
    assert {(run.config["epochs"], run.config["compile"]) for run in runs} == {(15, "graphs_only")}
    assert {one["layer_scale"] for one in models} == {0.1}
    options, tested = TRANSFER.options, len(open_digits("validation").labels)
    assert (options["seeds"], options["data"]) == (3, "digits")
    assert f"learns from {options['shots']} images of each of" in SECTION
    assert f"the mean of three draws, tested on {tested} images" in SECTION
    assert {run.record["skipped"] for run in runs} == {0}
    sizes = sorted(run.record["num_parameters"] / 1e6 for run in runs)
    assert f"{sizes[0]:.1f} to {sizes[-1]:.1f} M parameters, 16 and 64 tokens" in SECTION


def test_second_sitting_is_that_of_the_text():
    times, commits = {}, set()
    for folder in folders():
        environment = json.loads((folder / "record.json").read_text("utf-8"))["environment"]
        times[folder.name] = datetime.fromisoformat(environment["time_utc"])
        commits.add(environment["commit"])
    assert commits == {"6056270"}
    ordered = sorted(times, key=times.__getitem__)
    gaps = [times[after] - times[before] for before, after in pairwise(ordered)]
    second = set(ordered[int(np.argmax(gaps)) + 1 :])
    seeds = {"256-4": (0, 1, 2), "128-8": (0, 1)}
    assert "All runs of 256/4 and seeds 0 and 1 of 128/8 were made in a second sitting" in SECTION
    assert second == {
        f"{size}-{twin}-seed{seed}" for size in seeds for twin in TWINS for seed in seeds[size]
    }
