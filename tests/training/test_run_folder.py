"""Reading runs, and who may write into them."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from training.runs import environment, final, tiny_config, train_quietly

from flashpoint.errors import InputError
from flashpoint.training.failure import RunError
from flashpoint.training.ranks import Ranks
from flashpoint.training.run_folder import claim, open_run
from flashpoint.training.vision import VisionTask

HOLD = """
import os, sys, time
from pathlib import Path
from flashpoint.training.run_folder import claim
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


@pytest.mark.parametrize("inner", ["", "model.safetensors"])
def test_checkpoint_in_place_of_its_run_is_refused_by_name(run, inner):
    message = rf"is a checkpoint, not a run's folder\. Give {run}, and --checkpoint 12 for"
    with pytest.raises(InputError, match=message):
        open_run(run / "checkpoints" / "step_12" / inner)


def test_file_in_the_folders_place_is_refused_by_its_name(tmp_path):
    (tmp_path / "run").write_text("a file")
    message = r"/run cannot be written: File exists\."
    with pytest.raises(RunError, match=message), claim(tmp_path / "run"):
        pass


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
