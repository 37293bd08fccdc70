"""Every plan of every scale: what is planned can be built, and is the same every time."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from lab.study.studies.outcomes import PAPER, SMALL, SMOKE

from flashpoint.lab.evaluation.translation import SOURCE_SHARE
from flashpoint.lab.runs.stored import read_yaml
from flashpoint.lab.study.measures.registry import MEASURES
from flashpoint.lab.study.plan import Measurement, Training
from flashpoint.lab.study.powers import register_powers
from flashpoint.lab.study.registry import STUDIES
from flashpoint.lab.study.settings import DEFAULTS, NEVER, changed
from flashpoint.lab.training import config_file
from flashpoint.lab.training.language import LanguageConfig
from flashpoint.lab.training.text import TextConfig
from flashpoint.lab.training.vision import VisionConfig
from flashpoint.models.registry import model_config

ISSUE = (
    *("scaling", "length-power", "qk-norm", "gate", "memory-slots", "memory-rates"),
    *("relu-attention", "sentences", "document-length", "variance", "learned-length"),
    *("longer-than-trained", "retrieval", "sharpness", "starts", "adapt", "adapt-language"),
    "speed",
)
CLASSES = {"vision": VisionConfig, "text": TextConfig, "language": LanguageConfig}
PAIRS = {"smoke": (2, 8), "small": (2, 32), "paper": (2, 64)}
"""Fewest and most of recall's training."""
VARIES = ("seed", "model.attention", "model.qk_norm", "data.length", "data.resolutions")
"""What trials of the study of lengths may differ in."""
SCALES = {"smoke": SMOKE, "small": SMALL, "paper": PAPER}
every_study = pytest.mark.parametrize("name", ISSUE)
every_scale = pytest.mark.parametrize("settings", SCALES.values(), ids=SCALES)


def test_all_studies_are_there_and_say_what_they_ask():
    assert tuple(STUDIES) == ISSUE
    for name, study in STUDIES.items():
        assert study.name == name
        assert study.question.endswith("?")
        assert study.claim.endswith(".")
        assert study.source


@pytest.mark.slow
def test_listing_studies_and_reading_findings_needs_no_torch():
    code = (
        "import sys\n"
        "from flashpoint.lab.study.registry import STUDIES\n"
        "for study in STUDIES.values(): study.findings([])\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("task", "name"), [("vision", "vit_i1k"), ("vision", "cifar10"), ("text", "en_de_docs")]
)
def test_what_plans_leave_out_of_published_configs_holds_by_itself(task, name):
    published = read_yaml(config_file.find_published(name))
    shorter = changed(published, dict.fromkeys(DEFAULTS[task]))
    assert shorter != published
    ours, theirs = config_file.parse(shorter), config_file.parse(published)
    assert replace(ours, model=theirs.model) == theirs
    assert model_config(theirs.model.name, **ours.model.settings) == model_config(
        theirs.model.name, **theirs.model.settings
    )


def configs_of(work):
    return (
        [work.config] if isinstance(work, Training) else work.options.get("configs", {}).values()
    )


@every_scale
@every_study
def test_plan_holds_configs_that_can_be_built(name, settings):
    register_powers()
    for trial in STUDIES[name].plan(settings):
        for config in configs_of(trial.work):
            built = config_file.parse(config)
            assert isinstance(built, CLASSES[config["task"]])
        if isinstance(trial.work, Measurement):
            assert trial.work.function in MEASURES


@every_scale
@every_study
def test_plan_is_the_same_every_time_and_its_names_are_unique_folders(name, settings):
    plan = STUDIES[name].plan(settings)
    assert plan == STUDIES[name].plan(settings)
    names = [trial.name for trial in plan]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) for name in names)
    keys = [tuple(sorted(trial.factors.items(), key=str)) for trial in plan]
    assert len(set(keys)) == len(keys)


@every_study
def test_plan_has_the_seeds_that_are_asked_for(name):
    seeds = {trial.factors.get("seed") for trial in STUDIES[name].plan(SMALL)} - {None}
    assert seeds == {0, 1, 2}
    for trial in STUDIES[name].plan(SMALL):
        for config in configs_of(trial.work):
            assert config["seed"] == trial.factors["seed"]


@every_study
def test_smoke_is_few_and_tiny(name):
    plan = STUDIES[name].plan(SMOKE)
    assert len(plan) <= 6
    for trial in plan:
        for config in configs_of(trial.work):
            assert config["steps"] <= 40
            assert config["data"]["train"] in ("digits", "recall:2-8,10000", "words:400")


@every_scale
@every_study
def test_training_steps_are_timed_alone(name, settings):
    for trial in STUDIES[name].plan(settings):
        if isinstance(trial.work, Measurement):
            assert trial.work.is_alone == (trial.work.function == "step_time")


@pytest.mark.parametrize("name", ["gate", "speed"])
def test_steps_at_small_are_timed_compiled(name):
    """Else twins would differ by PyTorch's own kernels of norms and gates."""
    works = [trial.work for trial in STUDIES[name].plan(SMALL)]
    timed = [
        config for work in works if isinstance(work, Measurement) for config in configs_of(work)
    ]
    assert {config["compile"] for config in timed} == {"graphs"}


@every_study
def test_evaluations_of_a_trial_have_names_of_their_own(name):
    for settings in SCALES.values():
        for trial in STUDIES[name].plan(settings):
            if isinstance(trial.work, Training):
                names = [evaluation.name for evaluation in trial.work.afterwards]
                assert len(set(names)) == len(names)
                assert not any("." in name for name in names)


def test_length_power_is_the_paper_s_grid_with_seeds_where_verdicts_need_them():
    plan = STUDIES["length-power"].plan(SMALL)
    cells = {(t.factors["tokens"], t.factors["activation"], t.factors.get("alpha")) for t in plan}
    assert len({cell for cell in cells if cell[1] != "softmax"}) == 7 * 8 * 2
    seeds = [t for t in plan if t.factors["tokens"] == 64 and t.factors["activation"] == "relu"]
    assert len(seeds) == 3 * 8


def test_text_twins_differ_in_attention_and_penalty_only():
    configs = {
        trial.factors["attention"]: trial.work.config
        for trial in STUDIES["relu-attention"].plan(SMALL)
        if trial.factors["seed"] == 0
    }
    one, *others = configs.values()
    for other in others:
        changed = config_file.differences(one, other)
        assert set(changed) <= {"model.attention", "penalty"}


@every_scale
def test_recall_differs_in_attention_only_and_has_room_for_every_source(settings):
    plan = STUDIES["retrieval"].plan(settings)
    for trial in plan:
        changes = config_file.differences(plan[0].work.config, trial.work.config)
        assert set(changes) <= {"model.attention", "penalty", "seed"}
        assert trial.factors["trained_pairs"] == max(PAIRS[settings.scale])
        rooms = {trial.factors["trained_pairs"]: trial.work.config["data"]["length"]}
        for evaluation in trial.work.afterwards:
            pairs = int(evaluation.options["data"].removeprefix("recall:"))
            rooms[pairs] = min(evaluation.options["data.length"], rooms.get(pairs, NEVER))
        for pairs, length in rooms.items():
            assert pairs + 3 <= SOURCE_SHARE * length  # the space, the query and the end


def test_text_at_small_is_one_recipe_with_samples_of_many_lengths():
    resolutions, others = {}, []
    for trial in STUDIES["document-length"].plan(SMALL):
        config = trial.work.config
        length = config["data"]["length"]
        assert length == trial.factors["length"]
        resolutions[length] = config["data"]["resolutions"]
        others.append(changed(config, dict.fromkeys(VARIES)))
    assert resolutions == {256: 4, 512: 5, 1024: 6}
    assert all(length >> (count - 1) == 32 for length, count in resolutions.items())
    assert all(other == others[0] for other in others)


def test_gamma_starts_elsewhere_at_small_only():
    def starts(settings):
        plan = STUDIES["relu-attention"].plan(settings)
        return {t.factors["attention"]: t.work.config["model"]["attention"] for t in plan}

    small = starts(SMALL)
    assert small["relu, factor"] == small["relu, factor and penalty"]
    assert 2**0.5 / small["relu, factor"]["gain_start"] == pytest.approx(8.0)
    assert small["relu, factor, gamma from 1"] == "relu"
    for settings in (SMOKE, PAPER):
        assert len(starts(settings)) == 4
        assert starts(settings)["relu, factor"] == "relu"


@pytest.mark.parametrize("name", ["scaling", "length-power", "qk-norm", "gate"])
def test_departures_of_image_studies_are_those_of_their_configs(name):
    study = STUDIES[name]
    trials = study.plan(SMALL)
    training = [trial.work.config for trial in trials if isinstance(trial.work, Training)]
    said = study.departures

    def spans(number):
        """The least and the most as a sentence has them, once where they are alike."""
        found = [config["model"][number] for config in training]
        return " to ".join(str(end) for end in dict.fromkeys((min(found), max(found))))

    assert f"ViTs of width {spans('width')} and depth {spans('depth')} on patches of" in said
    epochs = " and ".join(map(str, sorted({config["epochs"] for config in training})))
    assert f"tokens), {epochs} epochs" in said
    for config in (config for trial in trials for config in configs_of(trial.work)):
        patch = config["model"]["patch_size"]
        tokens = (config["data"]["image_size"] // patch) ** 2
        assert re.search(rf"patches of [0-9 and]*\b{patch}\b", said)
        assert re.search(rf"\([0-9 and]*\b{tokens}\b[0-9 and]* tokens\)", said)
        assert f"CIFAR-10, {config['data']['image_size']} pixels" in said
        assert f"batches of {config['batch_size']}, LayerScale from " in said
        assert f"from {config['model']['layer_scale']}." in said
        assert config["loss"] == "softmax"
        assert not any(key.startswith("randaug") for key in config["data"]["augmentation"])


def test_open_studies_have_no_paper_to_depart_from():
    assert not any(study.departures for study in STUDIES.values() if study.source == "open")


def test_text_at_the_paper_s_scale_has_one_length_a_run():
    for name in ("memory-slots", "relu-attention", "document-length"):
        for trial in STUDIES[name].plan(PAPER):
            assert "resolutions" not in trial.work.config["data"]


def test_paper_scale_has_the_paper_s_sizes_and_recipe():
    trials = [t for t in STUDIES["scaling"].plan(PAPER) if t.factors["seed"] == 0]
    models = {t.factors["size"]: t.work.config["model"]["name"] for t in trials}
    assert models == {
        **{"S/32": "vit_s32", "S/16": "vit_s16", "B/32": "vit_b32", "B/16": "vit_b16"},
        "L/16": "vit_l16",
    }
    mixups = {t.factors["size"]: t.work.config["data"]["augmentation"]["mixup"] for t in trials}
    assert mixups["S/32"] == 0.2
    assert mixups["L/16"] == 0.5


def test_paper_scale_is_the_published_recipe_of_imagenet():
    from pathlib import Path

    published = config_file.load(Path(__file__).parents[4] / "configs" / "vit_i1k.yaml")
    trial = next(t for t in STUDIES["qk-norm"].plan(PAPER) if t.name == "relu-with-seed0")
    ours = config_file.parse(trial.work.config)
    assert ours.optimizer == published.optimizer
    assert ours.schedule == published.schedule
    assert (ours.epochs, ours.batch_size, ours.loss) == (300, 4096, "sigmoid")
    assert ours.data.augmentation == published.data.augmentation
    assert dict(ours.model.settings) == dict(published.model.settings)
