"""Plans of what came later: arms of older studies, sentences, powers, starts and rates."""

from dataclasses import replace

import pytest
from lab.study.studies.outcomes import PAPER, SMALL, SMOKE, planned

from flashpoint.lab.runs.stored import read_yaml
from flashpoint.lab.study.powers import register_powers
from flashpoint.lab.study.settings import NEVER, changed
from flashpoint.lab.training import config_file
from flashpoint.models.registry import model_config, text_model_config

SUM = "relu4/sum"
FIVE = replace(SMALL, seeds=5)


def arms(name, settings=SMALL):
    """Factors but the seed, and how many seeds each has."""
    found = {}
    for trial in planned(name, settings):
        place = tuple(value for key, value in trial.factors.items() if key != "seed")
        found.setdefault(place, set()).add(trial.factors["seed"])
    return {place: len(seeds) for place, seeds in found.items()}


@pytest.mark.parametrize(
    ("name", "count", "place"),
    [
        ("document-length", 15, (f"{SUM}, qk-norm", 1024)),
        ("qk-norm", 8, (SUM, "without")),
        ("longer-than-trained", 4, (SUM, 64)),
        ("retrieval", 6, (SUM, 32)),
        ("sentences", 14, ("En-De", f"{SUM}, qk-norm")),
        ("sharpness", 35, ("images", "relu3/length")),
        ("starts", 5, ("smaller start",)),
        ("memory-rates", 60, ("softmax + norm", 4096, 0.0015)),
    ],
)
def test_every_arm_has_every_seed(name, count, place):
    found = arms(name, FIVE)
    assert len(found) == count
    assert place in found
    assert set(found.values()) == {5}


def test_sizes_are_judged_after_60_epochs_by_all_seeds():
    eight = replace(SMALL, seeds=8)
    found = arms("scaling", eight)
    long = {place: seeds for place, seeds in found.items() if place[2:] == (60,)}
    assert len(long) == 4 * 3
    assert set(long.values()) == {8}
    short = {place: seeds for place, seeds in found.items() if place not in long}
    assert len(short) == 4 * 2
    assert set(short.values()) == {3}  # as they are stored
    for trial in planned("scaling", eight):
        assert trial.work.config["epochs"] == trial.factors.get("epochs", 15)


def published():
    return read_yaml(config_file.find_published("reluformer_iwslt"))


@pytest.mark.parametrize("kind", ["relu, factor and penalty", SUM, "softmax"])
def test_sentences_at_the_paper_s_scale_are_the_published_recipe(kind):
    trial = next(t for t in planned("sentences", PAPER) if t.factors["attention"] == kind)
    ours, theirs = config_file.parse(trial.work.config), config_file.parse(published())
    same = ("schedule", "epochs", "batch_size", "precision", "compile", "label_smoothing")
    assert all(getattr(ours, name) == getattr(theirs, name) for name in (*same, "optimizer"))
    assert ours.optimizer.clip is None
    where = {"train": theirs.data.train, "validation": theirs.data.validation}
    assert replace(ours.data, **where) == theirs.data
    models = [
        text_model_config(one.model.name, **{**one.model.settings, "attention": "softmax"})
        for one in (ours, theirs)
    ]
    assert models[0] == models[1]
    (evaluation,) = trial.work.afterwards
    assert evaluation.options["beam"] == 5


def test_sentences_at_small_are_the_recipe_on_fewer_and_narrower_layers():
    names = ("model.width", "model.encoder_depth", "model.decoder_depth", "model.mlp_dim")
    often = ("log_every", "evaluate_every", "checkpoint_every")
    sizes = (*names, "epochs", "schedule.warmup_steps", *often)
    own = ("seed", "max_bad_steps", "data.train", "data.validation", "penalty")
    for trial in planned("sentences"):
        config = trial.work.config
        assert config["evaluate_every"] == NEVER
        moved = config_file.differences(published(), config)
        assert set(sizes) <= set(moved)
        arms = ("model.attention", "model.qk_norm", "data.source", "data.target")
        assert set(moved) <= {*sizes, *own, *arms}
        assert config["data"]["samples"] == "segments"
        direction = "-".join(config["data"][side].title() for side in ("source", "target"))
        assert direction == trial.factors["direction"]


def test_powers_differ_in_attention_alone():
    rest = {}
    for trial in planned("sharpness"):
        if trial.factors["seed"] == 0:
            alike = changed(
                trial.work.config, {"model.attention": None, "model.cross_attention": None}
            )
            rest.setdefault(trial.factors["task"], []).append(alike)
    assert {task: len(configs) for task, configs in rest.items()} == {
        **{"documents": 13, "retrieval": 11, "images": 11}
    }
    assert all(config == configs[0] for configs in rest.values() for config in configs)
    assert rest["documents"][0]["data"]["length"] == 512
    assert rest["images"][0]["epochs"] == 60


def test_powers_of_images_come_behind_what_claims_need():
    trials = planned("sharpness", FIVE)
    claimed = ("softmax", "relu/length", SUM)
    late = [
        trial.factors["task"] == "images" and trial.factors["attention"] not in claimed
        for trial in trials
    ]
    assert late == sorted(late)
    assert sum(late) == 8 * 5


def test_powers_are_those_of_their_names():
    register_powers()
    for trial in planned("sharpness"):
        activation, slash, rule = trial.factors["attention"].partition("/")
        if not slash or "cross" in rule or trial.factors["task"] != "images":
            continue
        model = config_file.parse(trial.work.config).model
        spec = model_config(model.name, **model.settings).attention
        assert (spec.activation, spec.normalize, spec.alpha) == (activation, rule, 1.0)


def test_rates_are_chosen_on_held_out_documents_and_judged_on_the_test_s():
    for trial in planned("memory-rates"):
        data = trial.work.config["data"]
        assert (data["train"], data["validation"]) == (
            "documents:DIR:fit",
            "documents:DIR:held-out",
        )
        assert trial.work.config["optimizer"]["lr"] == trial.factors["rate"]
        (evaluation,) = trial.work.afterwards
        assert (evaluation.name, evaluation.kind) == ("test", "validate")
        assert evaluation.options == {"data.validation": "documents:DIR:test"}
    bare = replace(SMALL, documents="data/en-de-docs")
    place = planned("memory-rates", bare)[0].work.config["data"]["train"]
    assert place == "documents:data/en-de-docs:fit"
    smoke = planned("memory-rates", SMOKE)[0].work
    assert smoke.config["data"]["train"] == smoke.config["data"]["validation"]
