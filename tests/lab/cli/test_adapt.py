"""``flashpoint adapt`` from the command line."""

import re
import shutil

import pytest
import typer
from lab.training.language_runs import language_config, require_gpt2
from lab.training.runs import tiny_config, train_quietly
from typer.testing import CliRunner

from flashpoint.errors import FlashpointError
from flashpoint.lab.cli.adapt import adapt
from flashpoint.lab.cli.main import app as whole_app
from flashpoint.lab.runs.names import RECORD
from flashpoint.lab.training.run_folder import open_run

SIZES = ("model.patch_size=2", "model.width=32", "model.num_heads=4")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    out = tmp_path_factory.mktemp("adapt") / "soft"
    train_quietly(tiny_config("model.attention=softmax", *SIZES), out)
    return out


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the verb in this process, in a folder of its own; gives its result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    app = typer.Typer()
    app.command()(adapt)
    return lambda *words: CliRunner().invoke(app, list(map(str, words)))


def rows(output):
    """The table's first two columns."""
    found = re.findall(r"^(\w+) +([\d.]+)% ", output, re.MULTILINE)
    return {name: float(number) for name, number in found}


def test_a_table_has_every_stage_and_the_same_command_finds_it_done(run, teacher, tmp_path):
    command = (teacher, "--attention", "relu", "--steps", 5, "--rank", 2, "--out", "relu")
    result = run(*command, "--set", "adapt.distill_weight=0.9")
    assert result.exit_code == 0, result.exception
    assert list(rows(result.stdout)) == [
        "teacher",
        "converted",
        "calibrated",
        "matched",
        "adapted",
    ]
    found = open_run(tmp_path / "relu")
    assert found.record.steps == 4  # one of the five matches layers
    assert found.config.adapt.match_steps == 1
    assert found.config.adapt.distill_weight == 0.9
    assert found.config.optimizer.lr == pytest.approx(2e-4)
    best = open_run(teacher).best_step
    assert found.config.weights.endswith(f"soft/checkpoints/step_{best}")
    again = run(*command, "--set", "adapt.distill_weight=0.9")
    assert "is finished (4 steps" in again.stderr
    assert rows(again.stdout) == rows(result.stdout)


def test_a_share_is_of_the_teachers_steps(run, teacher, monkeypatch):
    taken = []
    monkeypatch.setattr("flashpoint.lab.cli.adapt.run_to_end", lambda *x, **_: taken.append(x))
    run(teacher, "--share", 0.5)
    config, folder = taken[0]
    assert (config.steps, config.adapt.match_steps) == (5, 1)
    assert folder == teacher.with_name("soft_relu4_sum")


REFUSED = {
    "both": (("--share", 0.1, "--steps", 5), "--share 0.1 and --steps 5 are both given"),
    "too few": (("--share", 0.01), "--share 0.01 of the 12 steps of .* is 0, less than 2"),
    "itself": (("--steps", 5, "--out", "{teacher}"), "is the run itself"),
    "word": (("--steps", 5, "--attention", "rellu"), "Did you mean 'relu'"),
    "softmax": (("--steps", 5, "--attention", "softmax"), "attention is softmax"),
    "step": (("--steps", 5, "--checkpoint", 7), "has no checkpoint of step 7"),
    "data": (("--steps", 5, "--data", "nowhere"), "'nowhere' is neither a folder nor a known set"),
    "key": (("--steps", 5, "--set", "adapt.weight=1"), "adapt.weight is unknown"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said_in_a_line(run, teacher, case):
    words, said = REFUSED[case]
    result = run(teacher, *(str(word).format(teacher=teacher) for word in words))
    assert isinstance(result.exception, FlashpointError)
    assert re.search(said, str(result.exception))
    assert "\n" not in str(result.exception)


def test_runs_that_cannot_be_adapted_are_refused(run, teacher, tmp_path):
    unfinished = tmp_path / "unfinished"
    shutil.copytree(teacher, unfinished)
    (unfinished / RECORD).unlink()
    assert "has not ended, so --share" in str(run(unfinished).exception)
    shutil.rmtree(unfinished / "checkpoints")
    (unfinished / "checkpoints").mkdir()
    assert "has no checkpoint yet" in str(run(unfinished, "--steps", 5).exception)
    assert "is not a run's folder" in str(run(tmp_path, "--steps", 5).exception)
    train_quietly(tiny_config("steps=2"), tmp_path / "relu")
    assert "computes relu already, not softmax" in str(
        run(tmp_path / "relu", "--steps", 5).exception
    )


@pytest.fixture(scope="module")
def language_teacher(tmp_path_factory):
    require_gpt2()
    out = tmp_path_factory.mktemp("adapt") / "gpt2"
    train_quietly(language_config(), out)
    return out


def test_language_models_are_adapted_with_the_perplexity_of_every_stage(run, language_teacher):
    result = run(language_teacher, "--steps", 5, "--layers", "every_second", "--out", "adapted")
    assert result.exit_code == 0, result.exception
    found = re.findall(r"^(\w+) +[\d.]+ +[\d.]+", result.stdout, re.MULTILINE)
    assert found == ["teacher", "converted", "calibrated", "matched", "adapted"]
    assert "perplexity" in result.stdout


def test_a_model_of_transformers_needs_data_and_steps(run, teacher, tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    for words in ((), ("--data", "words:20"), ("--steps", 5), ("--share", 1)):
        assert "pass --data passages:DIR and --steps N" in str(run(folder, *words).exception)
    said = str(run(folder, "--data", "words:20", "--steps", 5).exception)
    assert "n_embd is missing" in said
    wrong = run(teacher, "--steps", 5, "--layers", "every_second")
    assert "--layers every_second is for language models" in str(wrong.exception)


@pytest.mark.slow
def test_adapting_digits_is_better_than_converting(tmp_path):
    """From end to end; no more than this order is expected of so short a training."""
    softmax = tmp_path / "softmax"
    changes = ("model.attention=softmax", *SIZES, "steps=200", "batch_size=64")
    rates = ("optimizer.lr=6e-3", "data.augmentation.mixup=0.0", "evaluate_every=200")
    train_quietly(tiny_config(*changes, *rates), softmax)
    command = ["adapt", str(softmax), "--attention", "relu", "--share", "0.4"]
    result = CliRunner().invoke(whole_app, command)
    assert result.exit_code == 0, result.output
    reached = rows(result.stdout)
    assert reached["adapted"] > reached["converted"]
    evaluated = CliRunner().invoke(whole_app, ["evaluate", f"{softmax}_relu"])
    assert evaluated.exit_code == 0, evaluated.output
