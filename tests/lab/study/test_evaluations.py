"""What trained models are asked: the same as the verbs give, and under another config."""

import math
from shutil import copytree

import pytest
import torch
from lab.evaluation.trained import call, trained_run
from lab.training.runs import train_quietly

from flashpoint.errors import InputError
from flashpoint.lab.cli.inspect import inspect
from flashpoint.lab.data.text.recall import NUM_PIECES
from flashpoint.lab.evaluation.probe import probe, probe_config
from flashpoint.lab.runs.trials import read_record
from flashpoint.lab.study.evaluations import inspect_attention, run_evaluation
from flashpoint.lab.study.settings import pointwise
from flashpoint.lab.training import config_file
from flashpoint.lab.training.run_folder import Run, open_run


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    """A run whose alpha is learned per head, from 0.5."""
    folder = tmp_path_factory.mktemp("learner") / "run"
    attention = pointwise(alpha="learned_per_head", alpha_start=0.5)
    values = {
        "model": {
            **{"name": "vit", "patch_size": 4, "width": 16, "depth": 3, "num_heads": 2},
            **{"mlp_dim": 16, "attention": attention},
        },
        "data": {"train": "digits", "validation": "digits", "image_size": 8, "channels": 1},
        **{"steps": 5, "batch_size": 32, "precision": "fp32", "device": "cpu"},
        "optimizer": {"lr": 1e-2},
    }
    train_quietly(config_file.parse(values), folder)
    return folder


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """A run on single pairs, whose value it learns to read."""
    folder = tmp_path_factory.mktemp("translator") / "run"
    values = {
        "task": "text",
        "model": {"name": "reluformer_tiny", "attention": "softmax"},
        "data": {
            **{"train": "recall:1,20000", "validation": "recall:1", "length": 16, "join": False},
            "pieces": {"vocabulary_size": NUM_PIECES},
        },
        **{"steps": 220, "batch_size": 2048, "precision": "fp32", "device": "cpu"},
        **{"optimizer": {"lr": 5e-3}, "schedule": {"warmup_steps": 20, "kind": "cosine"}},
        "label_smoothing": 0.0,
    }
    train_quietly(config_file.parse(values), folder)
    return folder


@pytest.mark.slow
def test_validation_is_repeated_and_asked_of_other_data(translator):
    stored = read_record(translator)["validation"]
    assert run_evaluation("validate", translator, {}) == pytest.approx(stored)
    other = run_evaluation("validate", translator, {"data.validation": "recall:2"})
    assert other.keys() == stored.keys()
    assert other["loss"] > stored["loss"]


def test_classify_gives_what_the_last_validation_gave():
    folder = trained_run()
    found = run_evaluation("classify", folder, {})
    assert found == pytest.approx(dict(open_run(folder).record.validation), rel=1e-5)


def test_classify_takes_images_of_another_size_and_interpolates_positions():
    folder = trained_run()
    same, larger = (
        run_evaluation("classify", folder, {"data.image_size": side}) for side in (8, 16)
    )
    assert same == pytest.approx(run_evaluation("classify", folder, {}))
    assert larger != pytest.approx(same)
    model = open_run(folder).load_model("last").with_image_size(16)
    source = open_run(folder).config.data
    assert larger["top1"] == pytest.approx(top1_of(model, source, 16), abs=1e-6)


def top1_of(model, config, side):
    from dataclasses import replace

    from flashpoint.lab.data.batches import EvalBatches
    from flashpoint.lab.data.image_kinds import open_source

    source = open_source("digits", "validation")
    config = replace(config, image_size=side)
    right = count = 0
    with torch.no_grad():
        for batch in EvalBatches(source, config, batch_size=128).iterate():
            right += (model(batch.images).argmax(1) == batch.labels).sum().item()
            count += len(batch.labels)
    return right / count


def test_length_may_stay_that_of_training():
    """16 tokens in training: at 64, dividing by 16 gives four times what dividing by 64 gives."""
    folder = trained_run()
    usual = run_evaluation("classify", folder, {})
    fixed = run_evaluation("classify", folder, {"model.attention.length": 16})
    assert fixed == pytest.approx(usual, rel=1e-5)
    far = {"data.image_size": 16}
    seen = run_evaluation("classify", folder, far)
    kept = run_evaluation("classify", folder, far | {"model.attention.length": 16})
    quarter = run_evaluation(
        "classify", folder, far | {"model.attention.length": 16, "model.attention.gain": 0.25}
    )
    assert kept["loss"] != pytest.approx(seen["loss"], rel=1e-3)
    assert quarter["loss"] == pytest.approx(seen["loss"], rel=1e-4)


def test_probe_gives_the_mean_of_the_verb():
    folder = trained_run()
    run = open_run(folder)
    expected = probe(
        run.load_model("last"), probe_config(run.config.data, "digits"), shots=5, seeds=range(2)
    )
    found = run_evaluation("probe", folder, {"data": "digits", "shots": 5, "seeds": 2})
    assert found == {"mean": expected.mean, "spread": expected.spread}


def test_learned_gives_alphas_by_layer_and_nothing_where_none_is_learned(learner):
    found = run_evaluation("learned", learner, {})
    layers = [found[f"alpha_layer{n}"] for n in range(3)]
    model = open_run(learner).load_model("last")
    expected = [block.attn.alpha.mean().item() for block in model.blocks]
    assert layers == pytest.approx(expected)
    assert found["alpha"] == pytest.approx(sum(layers) / 3)
    assert found["alpha_lowest"] <= min(layers) <= max(layers) <= found["alpha_highest"]
    assert found["alpha"] != 0.5
    assert not any(name.startswith(("gain", "bias")) for name in found)
    assert run_evaluation("learned", trained_run(), {}) == {}


@pytest.mark.slow
def test_translate_counts_exact_answers(translator):
    found = run_evaluation("translate", translator, {})
    assert found["exact"] > 0.9
    assert set(found) >= {"bleu", "chrf", "document_bleu", "repeated_share", "bleu_1-128"}


@pytest.mark.slow
def test_translate_takes_other_data_that_is_longer_than_training(translator):
    options = {"data": "recall:128", "data.length": 256, "batch_size": 500}
    found = run_evaluation("translate", translator, options)
    assert found["exact"] < 0.5
    assert "bleu_129-256" in found


@pytest.fixture
def diverged(monkeypatch):
    """Models of runs have weights that are not finite."""
    load = Run.load_model

    def load_diverged(run, which):
        model = load(run, which)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, math.nan)
        return model

    monkeypatch.setattr(Run, "load_model", load_diverged)


def test_a_classifier_that_diverged_is_never_right_and_has_no_loss(diverged):
    found = run_evaluation("classify", trained_run(), {})
    assert (found["top1"], found["top5"]) == (0.0, 0.0)
    assert math.isnan(found["loss"])


def test_probe_of_a_model_that_diverged_is_no_failure(diverged):
    found = run_evaluation("probe", trained_run(), {"data": "digits", "shots": 5, "seeds": 2})
    assert set(found) == {"mean"}
    assert math.isnan(found["mean"])


@pytest.mark.slow
def test_a_translator_that_diverged_has_a_bleu(diverged, translator):
    found = run_evaluation("translate", translator, {})
    assert found["exact"] == 0.0
    assert found["bleu"] < 1.0


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("clasify", {}, "Did you mean 'classify'"),
        ("classify", {"dat": "digits"}, "Did you mean 'data'"),
        ("probe", {}, "needs data"),
        ("learned", {"data": "digits"}, "Known: none"),
        ("translate", {}, "ViT"),
        ("classify", {"data.image_sise": 16}, "data.image_sise is unknown"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(kind, options, message):
    with pytest.raises(InputError, match=message) as error:
        run_evaluation(kind, trained_run(), options)
    assert "\n" not in str(error.value)


def test_attention_is_what_inspect_says_of_the_last_step(tmp_path):
    run = copytree(trained_run(), tmp_path / "run")
    inspect_attention(run)
    options = ("--samples", 64, "--images", 2, "--checkpoint", "last", "--device", "cpu")
    call(inspect, run, "--out", tmp_path / "asked", *options)
    found = {file.name: file.read_bytes() for file in (run / "attention").iterdir()}
    assert set(found) == {"statistics.json", "maps.png"}
    for name, content in found.items():
        assert content == (tmp_path / "asked" / name).read_bytes()


@pytest.mark.slow
def test_attention_is_looked_at_once_and_not_in_text(translator, tmp_path):
    run = copytree(trained_run(), tmp_path / "run")
    (run / "attention").mkdir()
    (run / "attention" / "statistics.json").write_text("{}")
    for folder in (run, translator):
        inspect_attention(folder)
    assert not (run / "attention" / "maps.png").exists()
    assert not (translator / "attention").exists()
