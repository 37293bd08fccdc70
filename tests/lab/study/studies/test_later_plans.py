"""Plans of what came later: arms of older studies, sentences, powers, starts and rates."""

import re
from dataclasses import replace

import pytest
from lab.study.studies.outcomes import PAPER, SMALL, SMOKE, planned

from flashpoint.lab.runs.stored import read_yaml
from flashpoint.lab.study.powers import register_powers
from flashpoint.lab.study.settings import NEVER, changed
from flashpoint.lab.training import config_file
from flashpoint.lab.training.text import PENALTY
from flashpoint.models.registry import model_config, text_model_config

SUM = "relu4/sum"
WHOLE = "relu, factor and penalty"
IN_SELF, SUM_IN_SELF = f"{WHOLE}, softmax in cross", f"{SUM}, softmax in cross"
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
        ("document-length", 18, (f"{SUM}, qk-norm", 1024)),
        ("qk-norm", 8, (SUM, "without")),
        ("longer-than-trained", 4, (SUM, 64)),
        ("retrieval", 6, (SUM, 32)),
        ("sentences", 20, ("En-De", f"{SUM}, qk-norm")),
        ("sharpness", 40, ("images", "relu3/length")),
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


def own_of(trial):
    """What a trial changes in the published recipe beside seed and data, by dotted names."""
    moved = config_file.differences(published(), trial.work.config)
    return set(moved) - {"seed", "max_bad_steps", "data.train", "data.validation"}


@pytest.mark.parametrize("name", ["sentences", "relu-attention"])
def test_the_ablation_at_the_paper_s_scale_is_the_published_recipe(name):
    trials = planned(name, PAPER)
    kinds = {trial.factors["attention"] for trial in trials}
    assert kinds >= {"softmax", "relu, no factor", "relu, factor", WHOLE}
    arms = {"model.attention", "model.cross_attention", "model.qk_norm", "penalty"}
    for trial in trials:
        directions = {"data.source", "data.target"} if "direction" in trial.factors else set()
        assert own_of(trial) <= arms | directions
        assert [one.options["beam"] for one in trial.work.afterwards] == [5]


@pytest.mark.parametrize("name", ["memory-slots", "memory-rates"])
def test_memories_at_the_paper_s_scale_are_in_the_published_recipe(name):
    rate = {"optimizer.lr"} if name == "memory-rates" else set()
    memory = {"model.mlp_dim", "model.memory_activation", "model.memory_norm"}
    for trial in planned(name, PAPER):
        assert trial.work.config["model"]["attention"] == "softmax"
        assert own_of(trial) <= {"model.attention", *memory, *rate}
        assert trial.work.config["model"]["mlp_dim"] == trial.factors["slots"]


def sides(config):
    """What the lines of the published config change: languages, penalty, attentions."""
    model = text_model_config(config.model.name, **config.model.settings)
    usual = PENALTY if model.has_penalty else 0.0
    penalty = usual if config.penalty is None else config.penalty
    return config.data.languages, penalty, model.attention, model.cross_attention


def test_the_study_runs_every_line_of_the_published_config_s_head():
    file = config_file.find_published("reluformer_iwslt")
    lines = re.findall(r"^#   \.\.\. (.*) --out", file.read_text(), re.MULTILINE)
    given = [config_file.load(file, line.replace("--set ", "").split()) for line in lines]
    arms = [sides(config_file.parse(t.work.config)) for t in planned("sentences", PAPER)]
    assert len(given) == 6
    assert all(sides(config) in arms for config in given)


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
        attention = ("model.attention", "model.cross_attention", "model.qk_norm")
        arms = (*attention, "data.source", "data.target")
        assert set(moved) <= {*sizes, *own, *arms}
        assert config["data"]["samples"] == "segments"
        direction = "-".join(config["data"][side].title() for side in ("source", "target"))
        assert direction == trial.factors["direction"]


@pytest.mark.parametrize(("everywhere", "in_self"), [(WHOLE, IN_SELF), (SUM, SUM_IN_SELF)])
def test_relu_in_self_attention_alone_differs_in_cross_attention_alone(everywhere, in_self):
    some = {t.factors["attention"]: t.work.config for t in planned("sentences")}
    moved = config_file.differences(some[everywhere], some[in_self])
    assert moved == {"model.cross_attention": (None, "softmax")}


def test_powers_differ_in_attention_alone():
    rest = {}
    for trial in planned("sharpness"):
        if trial.factors["seed"] == 0:
            alike = changed(
                trial.work.config, {"model.attention": None, "model.cross_attention": None}
            )
            rest.setdefault(trial.factors["task"], []).append(alike)
    assert {task: len(configs) for task, configs in rest.items()} == {
        **{"documents": 16, "retrieval": 12, "images": 12}
    }
    assert all(config == configs[0] for configs in rest.values() for config in configs)
    assert rest["documents"][0]["data"]["length"] == 512
    assert rest["images"][0]["epochs"] == 60


def test_powers_of_images_come_behind_what_claims_need():
    trials = planned("sharpness", FIVE)
    claimed = ("softmax", "relu/length", SUM, "relu4+2/sum")
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
        activation, _, shift = activation.partition("+")
        found = (spec.activation, spec.normalize, spec.alpha, spec.bias)
        assert found == (activation, rule, 1.0, float(shift or 0.0))


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
