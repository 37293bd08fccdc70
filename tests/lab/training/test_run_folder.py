"""Reading runs, and who may write into them."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from lab.training.runs import (
    assert_same_run,
    contents,
    environment,
    final,
    tiny_config,
    train_quietly,
)
from lab.training.text_runs import text_config, write_corpus
from rich.console import Console

from flashpoint.errors import InputError
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.runs.writing import claim
from flashpoint.lab.training import loop
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.run_folder import open_run
from flashpoint.lab.training.vision import VisionTask

HOLD = """
import os, sys, time
from pathlib import Path
from flashpoint.lab.runs.writing import claim
with claim(Path(sys.argv[1])):
    if os.fork() == 0:  # as a data loader's workers, which outlive a killed parent for a while
        time.sleep(30)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    train_quietly(tiny_config(), out)
    return out


def test_opened_run_has_all_that_was_written(run):
    found = open_run(run)
    assert found.config.model.name == "vit"
    assert found.config.data.train == "digits"
    assert found.record.steps == 12
    assert [line["step"] for line in found.metrics] == [5, 6, 10, 12, 12]
    assert set(found.steps) == {8, 12, found.record.best["step"]}
    assert found.best_step == found.record.best["step"]


@pytest.mark.parametrize("which", ["best", "last", 12])
def test_model_of_a_run_has_its_weights(run, which):
    model = open_run(run).load_model(which)
    assert not model.training
    if which != "best":
        weights = final(run).model
        assert all(tensor.equal(weights[name]) for name, tensor in model.state_dict().items())
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_best_model_gives_the_best_validation(run):
    found = open_run(run)
    numbers = VisionTask(found.config, Ranks()).validate(found.load_model())
    assert numbers["top1"] == found.record.best["top1"]


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([0.59, 0.52, 0.46], 12),
        ([0.46, 0.52, 0.59], 4),
        ([0.5, 0.5, 0.5], 12),
        ([0.5, float("nan"), float("inf")], 4),
        ([float("nan")] * 3, 12),
    ],
)
def test_ties_of_accuracy_go_to_the_lower_loss_then_to_the_later_step(
    tmp_path, monkeypatch, losses, best
):
    """A small validation set ties often: the first of equals may have seen ten steps of data."""
    numbers = iter(losses)
    monkeypatch.setattr(
        VisionTask, "validate", lambda *_: {"top1": 0.8, "top5": 1.0, "loss": next(numbers)}
    )
    record, _ = train_quietly(tiny_config("evaluate_every=4"), tmp_path / "run")
    assert record.best["step"] == best
    assert open_run(tmp_path / "run").best_step == best


@pytest.mark.parametrize(
    ("which", "message"),
    [(3, "has no checkpoint of step 3. It has: "), ("bset", "has no checkpoint of step bset")],
)
def test_unknown_checkpoint_is_refused(run, which, message):
    with pytest.raises(InputError, match=message):
        open_run(run).load_model(which)


def test_damaged_weights_are_refused(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    file = copy / "checkpoints" / "step_12" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"step_12 of .* is damaged: .*\(there are: 6, 8\)"):
        open_run(copy).load_model("last")


def test_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not a run's folder: it has no config\.yaml"):
        open_run(tmp_path)


def train_anew(out, config=None):
    return loop.train(config or tiny_config(), out, console=Console(quiet=True), fresh=True)


MINE = {
    "config.yaml": "my: config\n",
    "data.json": '{"my": "data"}\n',
    "metrics.jsonl": '{"step": 1, "my": "numbers"}\n',
    "record.json": "{}",
    "weights.json": "{}",
    "events.out.tfevents.1": "of another program",
    "checkpoints/step_7/other.pt": "weights",
    "checkpoints/damaged_step_7/other.pt": "weights",
}


def put(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("names", [*([name] for name in MINE), list(MINE)], ids=str)
def test_fresh_refuses_a_folder_whose_files_no_run_wrote(tmp_path, names):
    put(tmp_path, {**{name: MINE[name] for name in names}, "checkpoints/other.pt": "mine"})
    before = contents(tmp_path)
    with pytest.raises(InputError) as error:
        train_anew(tmp_path)
    assert str(error.value).startswith(f"{tmp_path} is not a run's folder: no run wrote what is")
    assert "\n" not in str(error.value)
    assert contents(tmp_path) == before


def test_fresh_refuses_a_config_that_was_written_by_hand(run, tmp_path):
    """As where a config's own folder is given as --out."""
    text = "# the best so far\n" + (run / "config.yaml").read_text()
    put(tmp_path, {"config.yaml": text})
    with pytest.raises(InputError, match=r"no run wrote what is there \(config\.yaml\)"):
        train_anew(tmp_path)
    assert (tmp_path / "config.yaml").read_text() == text


def test_fresh_leaves_what_is_not_a_run_s_in_its_folder(run, tmp_path):
    out = shutil.copytree(run, tmp_path / "run")
    mine = {"checkpoints/other.pt": "mine", "notes/config.yaml": "mine", "events.csv": "mine"}
    put(out, mine)
    put(out, {"checkpoints/damaged_step_3/a": "old", "checkpoints/.unfinished_step_5/a": "old"})
    (out / "checkpoints" / "step_8").rename(out / "checkpoints" / "step_99")
    train_anew(out)
    assert_same_run(run, out)
    names = {path.name for path in (out / "checkpoints").iterdir()}
    assert names == {path.name for path in (run / "checkpoints").iterdir()} | {"other.pt"}
    assert {name: (out / name).read_text() for name in mine} == mine


@pytest.mark.parametrize("kept", ["metrics.jsonl", "checkpoints"])
def test_fresh_replaces_a_broken_config_of_a_run(run, tmp_path, kept):
    out = tmp_path / "run"
    put(out, {"config.yaml": "model: [vit"})
    (shutil.copytree if kept == "checkpoints" else shutil.copy)(run / kept, out / kept)
    train_anew(out)
    assert_same_run(run, out)


def test_fresh_leaves_pieces_that_the_config_names(tmp_path):
    corpus, out = write_corpus(tmp_path), tmp_path / "run"
    train_quietly(text_config(corpus, "steps=2"), out)
    pieces = (out / "pieces.model").read_bytes()
    train_anew(out, text_config(corpus, "steps=2", f"data.pieces.file={out}/pieces.model"))
    assert (out / "pieces.model").read_bytes() == pieces


def test_fresh_begins_beside_files_that_no_run_writes(run, tmp_path):
    put(tmp_path, {"notes.txt": "mine", "checkpoints/other.pt": "mine"})
    train_anew(tmp_path)
    assert_same_run(run, tmp_path)
    assert (tmp_path / "checkpoints" / "other.pt").read_text() == "mine"


@pytest.mark.parametrize("inner", ["", "model.safetensors"])
def test_checkpoint_in_place_of_its_run_is_refused_by_name(run, inner):
    message = rf"is a checkpoint, not a run's folder\. Give {run}, and --checkpoint 12 for"
    with pytest.raises(InputError, match=message):
        open_run(run / "checkpoints" / "step_12" / inner)


def test_file_in_the_folders_place_is_refused_by_its_name(tmp_path):
    (tmp_path / "run").write_text("a file")
    message = r"/run is a file, and a run needs a folder\. Pass another --out\."
    with pytest.raises(RunError, match=message), claim(tmp_path / "run"):
        pass


@pytest.mark.slow
def test_folder_in_use_is_refused_until_its_process_is_dead(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError) as error, claim(tmp_path):
            pass
        assert f"is in use by process {holder.pid}, which trains this run" in str(error.value)
        holder.kill()
        holder.wait()
        start = time.monotonic()
        with claim(tmp_path):  # its child lives on, without the lock
            pass
        assert time.monotonic() - start < 5
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.stdout.close()
