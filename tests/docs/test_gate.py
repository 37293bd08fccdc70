"""docs/results.md beside the stored study of the gate."""

import math

import numpy as np
import pytest
from stored_results import (
    PAGE,
    ROOT,
    STUDIES,
    TEXT,
    assert_row,
    difference,
    record_of,
    rounded,
    top1_in,
)

from flashpoint.lab.runs.run_files import read_runs
from flashpoint.lab.study.reading import change
from flashpoint.lab.study.registry import STUDIES as REGISTRY
from flashpoint.lab.study.sections import read_section
from flashpoint.lab.study.studies.gate import PAPER_COST
from flashpoint.lab.study.verdict import bootstrap
from flashpoint.models.cost import forward_flops, num_tokens
from flashpoint.models.vit import ViTConfig

STUDY = "gate"
ALPHAS = (0.0, 0.5, 1.0, 1.5)
SECTION = " ".join(PAGE.partition("\n### A gate\n")[2].partition("\n### ")[0].split())


def top1(gate, alpha):
    return top1_in(STUDY, f"{gate}-alpha{alpha:g}")


def verdicts():
    return read_section(STUDIES / STUDY, REGISTRY).findings.verdicts


def gain(alpha):
    """Of the gate, in points."""
    return top1("with", alpha).mean() - top1("without", alpha).mean()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_table_of_gates_is_that_of_the_trials(alpha):
    without, gated = top1("without", alpha), top1("with", alpha)
    less = [
        cell
        for gate, these in (("without", without), ("with", gated))
        for cell in (["", ""] if alpha == 1.0 else difference(top1(gate, 1.0), these))
    ]
    assert_row(f"{alpha:g}", rounded(without), rounded(gated), *difference(gated, without), *less)


def test_need_of_the_factor_is_as_the_text_says():
    need, _ = verdicts()
    assert (
        f"still {need.value:.2f} ({need.low:+.2f} to {need.high:+.2f}) points above the best "
        "alpha up to 0.5, which is 0.5." in SECTION
    )
    assert top1("with", 0.5).mean() > top1("with", 0.0).mean()
    arms = {gate: [top1(gate, 1.0), top1(gate, 0.5)] for gate in ("without", "with")}
    gains = [ones.mean() - halves.mean() for ones, halves in arms.values()]
    part = bootstrap([*arms["without"], *arms["with"]], change)
    assert (
        "from 0.5 to 1 alpha gains {:.2f} points without a gate and {:.2f} with one, ".format(
            *gains
        )
        + f"{part.value:.2f} ({part.low:+.2f} to {part.high:+.2f}) less."
        in SECTION
    )


def test_gains_by_the_gate_are_as_the_text_says():
    low = f"{gain(0.0):.2f} and {gain(0.5):.2f} points, at 1 and 1.5 nothing"
    assert f"At alpha 0 and 0.5 the gate gains {low}" in SECTION
    ends = {alpha: bootstrap([top1("with", alpha), top1("without", alpha)]) for alpha in ALPHAS}
    assert [one.low > 0 for one in ends.values()] == [True, True, False, False]
    assert all(ends[alpha].high > 0 for alpha in (1.0, 1.5))


def test_gate_costs_as_much_as_the_text_says():
    _, cost = verdicts()
    assert f"takes {cost.value:.2f}% ({cost.low:.2f} to {cost.high:.2f}) longer" in SECTION
    times = [one["numbers"] for one in record_of(STUDY, "time-")]
    gated, plain = (
        1e3 * np.mean([one[name] for one in times]) for name in ("with_s", "without_s")
    )
    assert f"{gated:.2f} ms instead of {plain:.2f}, compiled" in SECTION
    least, most = cost.region
    assert f"The claim is met by {least:.1f} to {most:.1f}%" in SECTION
    assert f"this near to the paper's {PAPER_COST}%" in SECTION
    assert f"costs about {PAPER_COST}% more core hours on S/8" in SECTION


def test_timed_steps_are_those_of_the_text():
    (trial,) = record_of(STUDY, "time-", "trial.json", (0,))
    configs = trial["work"]["options"]["configs"]
    assert {(one["compile"], one["batch_size"]) for one in configs.values()} == {("graphs", 128)}
    models = {}
    for gate, one in configs.items():
        shape = {key: value for key, value in one["model"].items() if isinstance(value, int)}
        models[gate] = ViTConfig(
            image_size=32, channels=3, num_classes=10, gate=one["model"]["gate"], **shape
        )
    assert {(one.patch_size, num_tokens(one)) for one in models.values()} == {(2, 256)}
    assert "compiled, 256 tokens (patches of 2), batches of 128, both in turns" in SECTION
    more = 100 * (forward_flops(models["with"]) / forward_flops(models["without"]) - 1)
    assert f"The gate adds {more:.1f}% of matrix products" in SECTION
    commits = {one["environment"]["commit"] for one in record_of(STUDY, "time-")}
    assert commits == {"fa94353"}


def test_models_are_as_the_text_says():
    names = [f"{gate}-alpha{alpha:g}-" for gate in ("without", "with") for alpha in ALPHAS]
    records = [one for name in names for one in record_of(STUDY, name)]
    assert {one["skipped"] for one in records} == {0}
    plain, gated = sorted({one["num_parameters"] for one in records})
    assert f"{100 * (gated / plain - 1):.1f}% more parameters" in SECTION
    assert f"{plain / 1e6:.1f} and {gated / 1e6:.1f} M parameters" in SECTION
    assert math.isclose(64 ** (1 / 6), 2)
    assert "at 64 tokens, the only number here, that is what 1/6 more of alpha does" in SECTION
    runs = read_runs([STUDIES / STUDY / f"{name}seed0" for name in names])
    assert {(run.config["epochs"], run.config["model"]["patch_size"]) for run in runs} == {(10, 4)}
    assert "the recipe of the section on CIFAR-10 at 64 tokens, 10 epochs" in SECTION


def again():
    """Runs without a gate, each with the earlier run of its config and seed."""
    return [
        read_runs(
            [
                STUDIES / STUDY / f"without-alpha{alpha:g}-seed{seed}",
                STUDIES / "learned-length" / f"fixed-at-{alpha:g}-seed{seed}",
            ]
        )
        for alpha in (0.5, 1.0)
        for seed in range(3)
    ]


def test_rounding_moves_runs_as_far_as_the_text_says():
    pairs = again()
    assert "without a gate at alpha 0.5 and 1, are configs and seeds of earlier" in SECTION
    assert '("fixed at 0.5" and "fixed at 1" of the learned power), which ran at commit' in SECTION
    assert "commit a94732f" in SECTION
    for now, earlier in pairs:
        assert now.config == earlier.config
        assert now.record["environment"]["commit"] == "6056270"
        assert earlier.record["environment"]["commit"] == "a94732f"
    ends = np.array([[100 * run.validation[-1]["top1"] for run in pair] for pair in pairs])
    apart = abs(np.subtract(*ends.T))
    assert f"moves a run by up to {apart.max():.2f} points" in SECTION
    assert f"top-1 at the end by {apart.min():.2f} to {apart.max():.2f}" in SECTION
    first = [[run.train[0]["loss"] for run in pair] for pair in pairs]
    assert {run.train[0]["step"] for pair in pairs for run in pair} == {100}
    largest = abs(np.subtract(*np.array(first).T)).max()
    assert f"by up to {largest:.4f} over the first 100 updates" in SECTION
    deviation = math.sqrt((apart**2).mean() / 2)  # of one run: a difference has two
    seeds = [arm.std(ddof=1) for alpha in (ends[:3], ends[3:]) for arm in alpha.T]
    assert (
        f"standard deviation of {deviation:.2f} a run, where seeds of these arms have "
        f"{min(seeds):.2f} to {max(seeds):.2f}" in SECTION
    )
    assert f"the {deviation:.2f} that rounding alone gives" in TEXT


def test_other_texts_quote_the_same_numbers():
    need, cost = verdicts()
    log = " ".join((ROOT / "docs" / "log.md").read_text("utf-8").split())
    first = "7.99% (7.82 to 8.17)"  # of records that are not stored
    assert f"at commit 6056270, gave {first}; it is not stored" in SECTION
    assert f"a gate made them {first} longer" in log
    changes = " ".join((ROOT / "CHANGES.md").read_text("utf-8").split())
    assert f"it is {cost.value:.2f}% ({cost.low:.2f} to {cost.high:.2f}; `results.md`)" in log
    assert f"{need.value:.1f} points above 0.5, and a training step takes {cost.value:.1f}%" in (
        changes
    )
