"""``flashpoint train`` from the command line."""

import shutil
import subprocess
import sys

import pytest
import typer
import yaml
from lab.data.pictures import make_folder
from lab.training.runs import TINY, write_config
from typer.testing import CliRunner

from flashpoint.errors import FlashpointError, InputError
from flashpoint.lab.cli.train import SECONDS_TO_SPEAK, STOPPED, train
from flashpoint.lab.runs.failure import Preempted
from flashpoint.lab.training import loop, memory_check
from flashpoint.lab.training.run_folder import open_run


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the verb in this process, in a folder of its own; gives its result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    app = typer.Typer()
    app.command()(train)
    return lambda *words, **rest: CliRunner().invoke(app, list(map(str, words)), **rest)


def test_config_file_trains_into_runs(run, tmp_path):
    result = run(write_config(tmp_path))
    assert result.exit_code == 0, result.output
    assert "runs/tiny: top1 " in result.stdout
    assert " after 12 steps, " in result.stdout
    assert open_run(tmp_path / "runs" / "tiny").record.steps == 12


def test_changes_and_folder_are_honored(run, tmp_path):
    changes = ("--set", "model.attention=softmax", "--set", "steps=2")
    result = run(write_config(tmp_path), "--out", "elsewhere/twin", *changes)
    assert result.exit_code == 0, result.output
    found = open_run(tmp_path / "elsewhere" / "twin")
    assert found.config.model.settings["attention"]["activation"] == "softmax"
    assert found.record.steps == 2


def test_place_of_the_data_is_taken_as_it_is(run, tmp_path):
    for place in ("2012", "my set #1"):
        result = run(write_config(tmp_path), "--data", place)
        assert f"{place!r} is neither a folder nor a known set" in str(result.exception)


def test_second_time_there_is_nothing_to_do(run, tmp_path):
    config = write_config(tmp_path, "steps=2")
    run(config)
    result = run(config)
    assert result.exit_code == 0
    assert "runs/tiny is finished (2 steps: " in result.stderr
    assert "nothing to do" in result.stderr


def lose_checkpoints(run, tmp_path):
    """A run that was stopped behind its first checkpoint and has none now; gives its config."""
    config = write_config(tmp_path)
    run(config)
    shutil.rmtree(tmp_path / "runs" / "tiny" / "checkpoints")
    (tmp_path / "runs" / "tiny" / "record.json").unlink()
    return config


def test_run_without_its_checkpoints_is_refused_where_nobody_can_be_asked(run, tmp_path):
    config = lose_checkpoints(run, tmp_path)
    curve = (tmp_path / "runs" / "tiny" / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"or pass --fresh to begin anew"):
        raise run(config).exception
    assert (tmp_path / "runs" / "tiny" / "metrics.jsonl").read_bytes() == curve
    assert run(config, "--fresh").exit_code == 0
    assert open_run(tmp_path / "runs" / "tiny").record.steps == 12


@pytest.mark.parametrize(("answer", "status", "steps"), [("y", 0, [8, 12]), ("n", 1, [])])
def test_run_without_its_checkpoints_asks(run, tmp_path, monkeypatch, answer, status, steps):
    config = lose_checkpoints(run, tmp_path)
    monkeypatch.setattr("flashpoint.lab.cli.train._may_ask", lambda: True)
    result = run(config, input=f"{answer}\n")
    assert result.exit_code == status
    assert "the run saved one of step 12" in result.stderr
    assert "Begin anew? [y/N]" in result.stderr
    assert open_run(tmp_path / "runs" / "tiny").steps[-2:] == steps


def test_model_name_gets_a_recipe(run, tmp_path):
    small = ("--set", "steps=2", "--set", "epochs=null", "--set", "device=cpu")
    result = run("vit_ti4", "--data", "digits", *small, "--set", "batch_size=8")
    assert result.exit_code == 0, result.output
    config = open_run(tmp_path / "runs" / "vit_ti4").config
    assert (config.model.name, config.data.train, config.data.image_size) == (
        "vit_ti4",
        "digits",
        8,
    )


def photographs(folder):
    """45 small pictures of three classes, and some to validate on."""
    for split, each in (("train", 15), ("val", 2)):
        make_folder(folder / "pets" / split, {"a": each, "b": each, "c": each})
    return folder / "pets"


NEW_USER = (
    *("--set", "steps=2", "--set", "epochs=null", "--set", "data.image_size=32"),
    *("--set", "data.workers=0", "--set", "device=cpu", "--set", "model.depth=2"),
)


def test_named_model_trains_on_few_images_with_a_batch_that_suits_them(run, tmp_path):
    """The recipe's 1,024 took 18 GB on a CPU, without a word."""
    arguments = ("vit_ti16", "--data", photographs(tmp_path), *NEW_USER)
    said = (
        "no batch size was given: taking 32, for 45 training images and cpu. Pass --set "
        "batch_size=N for another."
    )
    shown = run(*arguments, "--dry-run").stdout.splitlines()
    assert shown[1] == f"# {said}"
    assert shown[2].startswith("# a step with batch_size=32 needs about 0.")
    assert " GB free." in shown[2]
    assert "batch_size: 32" in shown
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert lines[:2] == [said, "first step of 2: 32 images of 32 px on cpu"]
    assert open_run(tmp_path / "runs" / "vit_ti16").config.batch_size == 32


def test_batch_of_an_earlier_start_is_kept_unless_it_begins_anew(run, tmp_path, monkeypatch):
    """Also where another device or other memory would have another one now."""
    monkeypatch.setattr("flashpoint.lab.training.recipes.CPU_OPERATIONS", 1e8)
    arguments = ("vit_ti16", "--data", photographs(tmp_path), *NEW_USER)
    assert run(*arguments).exit_code == 0
    chosen = open_run(tmp_path / "runs" / "vit_ti16").config.batch_size
    assert chosen < 32
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "nothing to do" in result.stderr
    shown = run(*arguments, "--fresh", "--dry-run")
    assert "batch_size: 32" in shown.stdout.splitlines()
    result = run(*arguments, "--fresh")
    assert "no batch size was given: taking 32, " in result.stderr
    assert open_run(tmp_path / "runs" / "vit_ti16").config.batch_size == 32


def test_folder_without_splits_is_split_and_said_in_a_line(run, tmp_path):
    make_folder(tmp_path / "pets", {"a": 15, "b": 15})
    said = (
        "pets has no folders train and val: 4 of its 30 images are held out for validation, class "
        "by class, the same ones every time."
    )
    shown = run("vit_ti16", "--data", "pets", *NEW_USER, "--dry-run").stdout.splitlines()
    assert f"# {said}" in shown
    assert "  validation: pets:held-out" in shown
    result = run("vit_ti16", "--data", "pets", *NEW_USER)
    assert result.exit_code == 0, result.output
    assert said in result.stderr.splitlines()
    assert "nothing to do" in run("vit_ti16", "--data", "pets", *NEW_USER).stderr


def test_fresh_replaces_a_broken_config_of_a_named_model(run, tmp_path):
    arguments = ("vit_ti16", "--data", photographs(tmp_path), *NEW_USER)
    assert run(*arguments).exit_code == 0
    file = tmp_path / "runs" / "vit_ti16" / "config.yaml"
    file.write_text(file.read_text()[:100])
    with pytest.raises(InputError, match=r"config\.yaml"):
        raise run(*arguments).exception
    result = run(*arguments, "--fresh")
    assert result.exit_code == 0, result.output
    assert open_run(file.parent).record.steps == 2


def test_batch_that_is_named_is_kept(run, tmp_path):
    shown = run("vit_ti16", "--data", photographs(tmp_path), *NEW_USER, "--dry-run")
    named = run(
        *("vit_ti16", "--data", tmp_path / "pets", *NEW_USER, "--dry-run"),
        *("--set", "batch_size=1024"),
    )
    assert "no batch size was given" in shown.stdout
    assert "no batch size was given" not in named.stdout
    assert "batch_size: 1024" in named.stdout.splitlines()


def test_batch_that_cannot_fit_is_refused_before_anything_is_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr(memory_check, "available_memory", lambda device: 10**9)
    config = write_config(tmp_path, "batch_size=16777216")
    error = run(config).exception
    assert isinstance(error, InputError)
    assert "a step with batch_size=16777216 needs about " in str(error)
    assert "The largest batch that fits well is " in str(error)
    assert not (tmp_path / "runs").exists()
    shown = run(config, "--dry-run")
    assert shown.exit_code == 0
    assert f"# {error}" in shown.stdout.splitlines()


def test_weights_are_taken_from_the_command_line(run, tmp_path):
    config = write_config(tmp_path, "steps=2")
    run(config)
    result = run(config, "--weights", "runs/tiny", "--out", "tuned")
    assert result.exit_code == 0, result.output
    assert "starting from 39 weights of runs/tiny/checkpoints/step_2/model.saf" in result.stderr
    assert open_run(tmp_path / "tuned").config.weights == "runs/tiny"
    shown = run(config, "--weights", "runs/tiny", "--dry-run").stdout.splitlines()
    assert shown[1].startswith("# a step with batch_size=16 needs about ")
    assert shown[2].startswith("# starting from 39 weights of runs/tiny/")
    assert "weights: runs/tiny" in shown


@pytest.mark.parametrize("what", ["configs/digits.yaml", "configs/digits"])
def test_published_config_is_found_from_anywhere(run, tmp_path, what):
    result = run(what, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "train: digits" in result.stdout
    own = tmp_path / "configs" / "digits.yaml"
    own.parent.mkdir()
    write_config(tmp_path).rename(own)
    assert "# 12 steps" in run("configs/digits.yaml", "--dry-run").stdout  # one's own comes first


def test_dry_run_shows_the_whole_config_and_leaves_nothing(run, tmp_path):
    result = run(write_config(tmp_path), "--dry-run", "--data", "digits")
    assert result.exit_code == 0, result.output
    head, _, rest = result.stdout.partition("\n")
    assert head.startswith("# 12 steps, 192 images, ")
    assert "FLOPs in all" in head
    shown = yaml.safe_load(rest)
    assert shown["model"]["num_classes"] == 10
    assert shown["batch_size"] == TINY["batch_size"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vit_s16"], "train vit_s16 needs images: pass --data WHERE, as --data digits."),
        (["vit_z16"], "'vit_z16' is neither a config file nor a model. Did you mean 'vit_"),
        (
            ["tiny"],
            "'tiny' is neither a config file nor a model. Did you mean 'configs/tiny.yaml'?",
        ),
        (
            ["digits"],
            "'digits' is neither a config file nor a model. Did you mean 'configs/digits.yaml'?",
        ),
        (["configs/nope.yaml"], "configs/nope.yaml cannot be read: No such file or directory."),
        (
            ["configs"],
            "'configs' is a folder. Name a model first: flashpoint train vit_s16 --data ",
        ),
        (["tiny.yaml", "--out", "tiny.yaml"], "tiny.yaml is a file, and a run needs a folder."),
        (["nope.yaml"], "nope.yaml cannot be read: No such file or directory."),
        (["vit_s16", "--data", "nowhere"], "'nowhere' is neither a folder nor a known set."),
        (
            ["reluformer_tiny", "--data", "digits"],
            "reluformer_tiny trains a model of text, and --data digits are images. Pass "
            "documents, as --data documents:DIR, or",
        ),
        (
            ["vit_ti4", "--data", "documents:x"],
            "vit_ti4 trains a model of images, and --data documents:x are documents. Pass",
        ),
        (
            ["tiny.yaml", "--data", "jsonl:x"],
            "tiny.yaml trains a model of images, and --data jsonl:x are documents. Pass",
        ),
        (
            ["reluformer_tiny", "--data", "documents:x", "--weights", "y"],
            "--weights is for models of images; reluformer_tiny trains one of text.",
        ),
        (["tiny.yaml", "--set", "lr=1"], "lr is unknown. Did you mean 'optimizer.lr'? Known: "),
        (["tiny.yaml", "--set", "steps=x"], "steps='x' must be null or a whole number."),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, arguments, message):
    write_config(tmp_path)
    (tmp_path / "configs").mkdir()
    write_config(tmp_path / "configs")
    error = run(*arguments).exception
    assert isinstance(error, FlashpointError)
    assert str(error).startswith(message)
    assert "\n" not in str(error)


@pytest.mark.parametrize(("rank", "says"), [("0", True), ("1", False)])
def test_stopped_run_has_its_own_status(run, tmp_path, monkeypatch, rank, says):
    def stop(*_, **__):
        raise Preempted("stopped by SIGTERM at step 3 of 12.")

    monkeypatch.setattr(loop, "train", stop)
    monkeypatch.setenv("RANK", rank)
    result = run(write_config(tmp_path))
    assert result.exit_code == STOPPED == 75
    assert ("stopped by SIGTERM at step 3 of 12." in result.stderr) is says


def test_other_processes_leave_errors_to_the_first(run, tmp_path, monkeypatch):
    """They wait to be ended by torchrun, and speak if the first did not."""
    slept = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("time.sleep", slept.append)
    result = run(write_config(tmp_path), "--set", "lr=1")
    assert result.exit_code == 2
    assert slept == [SECONDS_TO_SPEAK]
    assert result.output.startswith("error in process 1: ")


def test_other_processes_say_what_only_they_know(run, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise InputError("3 of 9 images cannot be read.")

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(loop, "train", fail)
    result = run(write_config(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == "error in process 1: 3 of 9 images cannot be read.\n"


def test_full_gpu_says_what_to_change(run, tmp_path, monkeypatch):
    import torch

    def overflow(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(loop, "train", overflow)
    error = run(write_config(tmp_path)).exception
    assert "a batch of 16 does not fit into the GPU's memory in 1 parts" in str(error)
    assert "--set accumulate=2" in str(error)


@pytest.mark.slow
def test_help_shows_how_to_begin_and_loads_no_torch():
    code = (
        "import sys, typer; from flashpoint.lab.cli.train import train;"
        "app = typer.Typer(); app.command()(train);"
        "app(['--help'], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for part in ("configs/digits.yaml", "--data", "--set", "--out", "torchrun", "status 75"):
        assert part in done.stdout


@pytest.mark.slow
def test_training_digits_needs_no_torchvision_and_loads_nothing_for_many_processes(tmp_path):
    code = (
        "import sys; sys.modules['torchvision'] = None\n"
        "from pathlib import Path\n"
        "from flashpoint.lab.training import config_file, loop\n"
        "loop.train(config_file.load(Path(sys.argv[1])), Path(sys.argv[2]))\n"
        "for name in ('sklearn', 'torch.distributed.checkpoint'):\n"
        "    assert name not in sys.modules, name"
    )
    arguments = [str(write_config(tmp_path, "steps=2")), str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
