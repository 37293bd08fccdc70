"""docs/results.md beside text runs of no study: a longer pair, the penalty's weight, speed."""

import json

import numpy as np
import pytest
import yaml
from stored_results import ROOT, names_a_machine
from stored_results import RUNS as ALL_RUNS
from stored_results import TEXT as PAGE

from flashpoint.lab.runs.run_files import read_runs

RUNS = ALL_RUNS / "en_de_docs"
SPEED = json.loads((RUNS / "speed.json").read_text("utf-8"))
LENGTHS = ("1-128", "129-256", "257-512", "513-1024", "1025-2048", "over 2048")
PILOTS = ("penalty0.3", "penalty1.0", "penalty3.0")
TWINS = ("softmax", "relu")


def read_run(folder):
    (run,) = read_runs([folder])
    return run


def pair():
    """Softmax, then relu."""
    return [read_run(RUNS / f"{twin}-seed0") for twin in TWINS]


def scores(twin):
    """Of all test documents, and by their length."""
    found = json.loads((RUNS / f"{twin}-seed0" / "evaluation.json").read_text("utf-8"))
    assert (found["step"], found["beam"]) == (8000, 1)
    assert found["data"] == "documents:data/en-de-docs:test"
    return {"all": found["all"], **found["by_length"]}


def row(*cells):
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("run", sorted(RUNS.glob("*-seed*")), ids=lambda run: run.name)
def test_stored_run_is_whole_and_names_no_folder_of_a_machine(run):
    files = {file.name: file.read_text("utf-8") for file in run.iterdir()}
    whole = {"config.yaml", "data.json", "metrics.jsonl", "record.json"}
    assert files.keys() - {"evaluation.json"} == whole
    text = "".join(files.values())
    assert not names_a_machine(text)
    assert read_run(run).record["environment"]["commit"] == "a94732f"


def test_pair_is_the_shipped_recipe_with_more_updates():
    shipped = yaml.safe_load((ROOT / "configs" / "en_de_docs.yaml").read_text("utf-8"))
    shipped |= {"steps": 8000, "evaluate_every": 4000, "checkpoint_every": 8000}
    shipped["schedule"]["warmup_steps"] = 800
    shipped["optimizer"]["lr"] = float(shipped["optimizer"]["lr"])
    softmax, relu = (run.config for run in pair())
    assert within(shipped, relu)
    assert {key for key in relu if relu[key] != softmax[key]} == {"model", "penalty"}
    changed = {key for key in relu["model"] if relu["model"][key] != softmax["model"][key]}
    assert changed == {"attention"}
    assert (relu["penalty"], softmax["penalty"]) == (0.1, 0.0)


def within(part, whole):
    """Whether all that a config says stands in another, which says more."""
    if isinstance(part, dict):
        return all(within(value, whole[key]) for key, value in part.items())
    return part == whole


@pytest.mark.parametrize("rows", ["all", *LENGTHS])
def test_table_of_the_pair_is_that_of_its_evaluation(rows):
    softmax, relu = (scores(twin)[rows] for twin in TWINS)
    keys = ("bleu", "document_bleu", "chrf")
    cells = row(
        *(rows, f"{softmax['num_documents']}", f"{softmax['num_segments']:,}"),
        *(f"{twin[key]:.2f}" for twin in (softmax, relu) for key in keys),
        f"{relu['bleu'] - softmax['bleu']:+.2f}",
    )
    assert cells in PAGE


def test_losses_of_the_pair_are_as_the_text_says():
    texts = ("from {} to {} for softmax", "from {} at update 4,000 to {} at 8,000 for ReLUFormer")
    for run, text in zip(pair(), texts, strict=True):
        assert [line["step"] for line in run.validation] == [4000, 8000]
        assert text.format(*(f"{line['loss']:.2f}" for line in run.validation)) in PAGE


def test_pair_s_size_and_what_was_translated_again_are_as_the_text_says():
    softmax, relu = pair()
    assert f"{relu.record['num_parameters'] / 1e6:.1f} M parameters, 512 tokens" in PAGE
    assert f"{relu.record['samples'] / 1e6:.0f} M target tokens" in PAGE
    shares = [
        json.loads((run.path / "evaluation.json").read_text("utf-8"))["repeated_share"]
        for run in (relu, softmax)
    ]
    assert "{:.0%} of its segments and {:.0%} of softmax's".format(*shares) in PAGE


@pytest.mark.parametrize("file", ["README.md", "configs/en_de_docs.yaml"])
def test_pair_is_quoted_as_it_was_evaluated(file):
    text = " ".join((ROOT / file).read_text("utf-8").replace("\n#", "\n").split())
    softmax, relu = (scores(twin)["all"]["bleu"] for twin in TWINS)
    assert f"{relu:.1f} BLEU and softmax {softmax:.1f} on test documents" in text


def test_table_of_weights_is_that_of_the_runs():
    study = ROOT / "results" / "relu-attention"
    none, light = (
        [read_run(study / f"{name}-seed{seed}").record["validation"]["loss"] for seed in range(3)]
        for name in ("relu-factor", "relu-factor-and-penalty")
    )
    assert ", ".join(f"{loss:.2f}" for loss in light) in PAGE
    pilots = [read_run(RUNS / f"{name}-relu-seed100") for name in PILOTS]
    losses = [np.mean(none), np.mean(light)]
    losses += [run.record["validation"]["loss"] for run in pilots]
    weights = ["0", "0.1", *(f"{run.config['penalty']:g}" for run in pilots)]
    table = [row("weight", *weights), "|---|---|---|---|---|---|"]
    table += [row("validation loss", *(f"{loss:.2f}" for loss in losses))]
    assert " ".join(table) in PAGE


def test_weights_were_tried_by_the_recipe_of_the_ablation():
    trial = read_run(ROOT / "results" / "relu-attention" / "relu-factor-and-penalty-seed0").config
    for name in PILOTS:
        config = read_run(RUNS / f"{name}-relu-seed100").config
        changed = {key for key in config if config[key] != trial[key]}
        assert changed == {"seed", "penalty", "evaluate_every", "data"}
        changed = {key for key in config["data"] if config["data"][key] != trial["data"][key]}
        assert changed == {"train", "validation"}  # one folder, named by its kind or without


@pytest.mark.parametrize("length", [256, 512, 1024])
def test_table_of_speed_is_that_of_the_file(length):
    found = [line["tokens_per_s"] for line in SPEED["rows"] if line["length"] == length]
    rates = [{key: rate / 1e6 for key, rate in line.items()} for line in found]
    softmax, factor, penalty = (
        f"{rate['median']:.2f} ({rate['low']:.2f} to {rate['high']:.2f})" for rate in rates
    )
    ratios = [f"{rate['median'] / rates[0]['median']:.2f}" for rate in rates]
    assert row(f"{length}", softmax, factor, ratios[1], penalty, ratios[2]) in PAGE


def test_updates_and_memory_are_as_the_text_says():
    kinds = [(line["attention"], line["penalty"]) for line in SPEED["rows"]]
    assert kinds == [("softmax", 0.0), ("relu", 0.0), ("relu", 0.1)] * 3
    plain, penalised = (
        [line["ms_per_step"] for line in SPEED["rows"][first::3]] for first in (1, 2)
    )
    times = (min(penalised), max(penalised), min(plain), max(plain))
    assert "{:.1f} to {:.1f} ms instead of {:.1f} to {:.1f}".format(*times) in PAGE
    softmax = [line["ms_per_step"] for line in SPEED["rows"][0::3]]
    seconds = [2 * end(times) for times in (softmax, penalised) for end in (min, max)]
    text = (
        "2,000 updates alone on the GPU are {:.0f} to {:.0f} s of softmax and {:.0f} to {:.0f} s"
    )
    assert text.format(*seconds) in PAGE
    peaks = [line["peak_gib"] for line in SPEED["rows"]]
    spread = max(max(peaks[i : i + 3]) - min(peaks[i : i + 3]) for i in (0, 3, 6))
    assert f"{min(peaks):.1f} to {max(peaks):.1f} GiB" in PAGE
    assert f"within {spread:.1f} GiB" in PAGE


@pytest.mark.parametrize(("twin", "name"), [("softmax", "softmax"), ("relu", "ReLUFormer")])
def test_samples_are_what_was_translated(twin, name):
    translated = (RUNS / f"sample-{twin}.txt").read_text("utf-8")
    page = (ROOT / "docs" / "samples.md").read_text("utf-8").splitlines()
    quoted = [line.split(" | ")[1].removesuffix(" |") for line in page if f"| {name} | " in line]
    assert len(quoted) == 6
    assert all(text in translated for text in quoted), quoted
