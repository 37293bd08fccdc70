"""Stored runs and studies: whole, as they were planned, and without folders of a machine."""

import math
import re
import shutil
from pathlib import Path

import pytest
import yaml

from docs_numbers.planned import SEEDS as SEEDS_TO_RUN
from docs_numbers.steps import BATCHES, DEPTH, HEADS
from docs_numbers.stored import SEEDS, Stored
from flashpoint.lab.study import store
from flashpoint.lab.study.plan import settings_of
from flashpoint.lab.study.registry import STUDIES

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "benchmarks" / "results"
FOLDERS = (":/", '"/', " /", "/tmp", "/home", "/root")
"""How the name of a machine's folder shows in a file."""
STORED = sorted(folder.name for folder in (ROOT / "results").iterdir())
PICTURE = re.compile(r'"base64": *"[^"]*"')
"""As a file of records may hold one; its letters spell anything by chance."""
PILOTS = ("penalty0.3", "penalty1.0", "penalty3.0")
LATER = {f"patch2-{twin}-seed{seed}" for twin in ("relu", "softmax") for seed in (1, 2)}


@pytest.fixture(scope="module")
def stored():
    return Stored(ROOT)


def test_no_stored_file_names_a_folder_of_a_machine():
    places = (ROOT / "results", RUNS / "cifar10", RUNS / "en_de_docs")
    files = [file for place in places for file in sorted(place.rglob("*")) if file.is_file()]
    texts = {
        file: PICTURE.sub("", file.read_text("utf-8"))
        for file in files
        if file.suffix not in (".png", ".txt")
    }
    assert len(texts) > 50
    assert not [file for file, text in texts.items() if any(map(text.__contains__, FOLDERS))]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("cifar10/*", {"config.yaml", "metrics.jsonl", "record.json"}),
        ("en_de_docs/*-seed*", {"config.yaml", "data.json", "metrics.jsonl", "record.json"}),
    ],
)
def test_runs_of_no_study_are_whole(pattern, names):
    runs = sorted(RUNS.glob(pattern))
    assert runs
    for run in runs:
        assert {file.name for file in run.iterdir()} - {"evaluation.json"} == names, run


@pytest.mark.parametrize("name", STORED)
def test_stored_trials_are_those_of_today_s_plan(name):
    """In its order; arms that the plan has got since are not stored yet."""
    found = store.read_study(ROOT / "results" / name)
    plan = {trial.name: trial for trial in STUDIES[name].plan(found.settings)}
    stored_names = [folder.name for folder in found.trials]
    assert [one for one in plan if one in set(stored_names)] == stored_names
    for folder in found.trials:
        trial = store.plain_trial(plan[folder.name])
        assert store.plain_trial(store.read_trial(folder)) == trial, folder.name


def test_stored_study_goes_on_with_more_seeds_and_arms(tmp_path):
    folder = tmp_path / "retrieval"
    shutil.copytree(ROOT / "results" / "retrieval", folder)
    count = store.unpack_study(folder)
    study, settings = STUDIES["retrieval"], settings_of("small", seeds=8)
    grown = store.settle_study(folder, study, settings, study.plan(settings))
    standing = [one.status for one in store.read_outcomes(grown, study).values()]
    assert standing.count("finished") == count
    assert standing.count("waiting") == len(study.plan(settings)) - count > 0


def test_what_is_not_stored_is_planned():
    """A study without files, or with arms that have none, stands in the table of commands."""
    for name, study in STUDIES.items():
        folder = ROOT / "results" / name
        known = store.read_study(folder).trials if name in STORED else ()
        plan = {trial.name for trial in study.plan(settings_of("small"))}
        assert name in SEEDS_TO_RUN or plan <= {trial.name for trial in known}, name


@pytest.mark.parametrize("name", STORED)
def test_stored_trials_have_finished_and_left_out_no_update(stored, name):
    for outcome in stored.outcomes(name).values():
        assert outcome.status == "finished", outcome.name
        assert outcome.numbers.get("skipped", 0) == 0, outcome.name
        assert all(map(math.isfinite, outcome.numbers.values())), outcome.name


def recipe(run):
    """A config less its seed; an option that is null may be younger than the run."""
    return {k: v for k, v in run.config.items() if k != "seed" and v is not None}


@pytest.mark.parametrize(
    ("patch", "twin"),
    [(4, "softmax"), (4, "relu"), (4, "relu_gain2.33"), (2, "softmax"), (2, "relu")],
)
def test_seeds_on_cifar10_share_a_recipe_and_end_as_their_curves_do(stored, patch, twin):
    runs = [stored.run(f"cifar10/patch{patch}-{twin}-seed{seed}") for seed in SEEDS]
    assert [run.config["seed"] for run in runs] == [*SEEDS]
    assert all(recipe(run) == recipe(runs[0]) for run in runs)
    for run in runs:
        model = run.config["model"]
        assert model["patch_size"] == patch
        assert model["attention"]["activation"] == twin.partition("_")[0]
        assert model["attention"].get("gain", 1.0) == (2.33 if "gain" in twin else 1.0)
        assert run.record["validation"]["top1"] == run.validation[-1]["top1"]
        assert run.validation[-1]["step"] == run.record["steps"] == 23_438
        later = run.path.name in LATER or "gain" in twin
        assert (run.record["environment"]["commit"] != "549b46b") == later


def test_larger_gain_changed_nothing_else(stored):
    changed, plain = (
        recipe(stored.run(f"cifar10/patch4-{twin}-seed0")) for twin in ("relu_gain2.33", "relu")
    )
    del changed["model"]["attention"]["gain"], plain["model"]["attention"]["gain"]
    assert changed["model"] == plain["model"]
    assert changed["optimizer"] == plain["optimizer"]


def within(part, whole):
    """Whether all that a config says stands in another, which says more."""
    if isinstance(part, dict):
        return all(within(value, whole[key]) for key, value in part.items())
    return part == whole


def differing(one, other):
    return {key for key in one if one[key] != other[key]}


def test_longer_pair_is_the_shipped_recipe_with_more_updates(stored):
    shipped = yaml.safe_load((ROOT / "configs" / "en_de_docs.yaml").read_text("utf-8"))
    shipped |= {"steps": 8000, "evaluate_every": 4000, "checkpoint_every": 8000}
    shipped["schedule"]["warmup_steps"] = 800
    shipped["optimizer"]["lr"] = float(shipped["optimizer"]["lr"])
    softmax, relu = (stored.run(f"en_de_docs/{twin}-seed0").config for twin in ("softmax", "relu"))
    assert within(shipped, relu)
    assert differing(relu, softmax) == {"model", "penalty"}
    assert differing(relu["model"], softmax["model"]) == {"attention"}
    assert (relu["penalty"], softmax["penalty"]) == (0.1, 0.0)
    for twin in ("softmax", "relu"):
        found = stored.read_json(f"benchmarks/results/en_de_docs/{twin}-seed0/evaluation.json")
        assert (found["step"], found["beam"]) == (8000, 1)
        assert found["data"] == "documents:data/en-de-docs:test"


@pytest.mark.parametrize("name", PILOTS)
def test_weights_of_the_penalty_were_tried_by_the_recipe_of_the_ablation(stored, name):
    (trial,) = stored.runs_of("relu-attention", "relu-factor-and-penalty-", (0,))
    config = stored.run(f"en_de_docs/{name}-relu-seed100").config
    assert differing(config, trial.config) == {"seed", "penalty", "evaluate_every", "data"}
    changed = differing(config["data"], trial.config["data"])
    assert changed == {"train", "validation"}  # one folder, named by its kind or without


def test_runs_whose_rounding_is_compared_differ_in_their_commit_alone(stored):
    for alpha in ("0.5", "1"):
        pairs = zip(
            stored.runs_of("gate", f"without-alpha{alpha}-"),
            stored.runs_of("learned-length", f"fixed-at-{alpha}-"),
            strict=True,
        )
        for now, earlier in pairs:
            assert now.config == earlier.config
            assert now.train[0]["step"] == earlier.train[0]["step"] == 100
            commits = [run.record["environment"]["commit"] for run in (now, earlier)]
            assert commits == ["6056270", "a94732f"]


@pytest.mark.parametrize("size", ["128-8", "128-4", "192-4", "256-4"])
def test_twins_of_a_size_have_the_same_parameters_and_flops(stored, size):
    for number in ("num_parameters", "flops"):
        found = [
            value
            for twin in ("relu", "softmax")
            for value in stored.values("scaling", f"{size}-{twin}-", number)
        ]
        assert len(set(found)) == 1


@pytest.mark.parametrize("tokens", BATCHES)
def test_timed_steps_have_the_shapes_that_the_tables_count_with(stored, tokens):
    for seed in SEEDS:
        options = stored.options_of("speed", f"step-tokens{tokens}-seed{seed}")
        for config in options["configs"].values():
            model = config["model"]
            assert (model["depth"], model["num_heads"]) == (DEPTH, HEADS)
            assert (32 // model["patch_size"]) ** 2 == tokens
            assert config["batch_size"] == BATCHES[tokens]
            assert (config["compile"], config["precision"]) == ("graphs", "bf16")
