"""Runs that start from the weights of others: read once, recorded, never again."""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from lab.training.runs import (
    assert_same_run,
    final,
    finish,
    plain_yaml,
    tiny_config,
    torchrun,
    train_quietly,
    write_config,
)
from lab.training.test_loop import interrupt_at

from flashpoint.errors import InputError
from flashpoint.lab.runs import checkpoints
from flashpoint.lab.runs.failure import Preempted
from flashpoint.lab.runs.names import MODEL
from flashpoint.lab.training import checkpoint_tensors
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.run_folder import open_run
from flashpoint.lab.training.vision import VisionTask

OTHER_STEP = 8  # of the earlier run, besides its best


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A run to start from."""
    out = tmp_path_factory.mktemp("weights") / "earlier"
    train_quietly(tiny_config("seed=3"), out)
    return out


def started(*changes):
    """The model that a run with these changes begins with."""
    task = VisionTask(tiny_config(*changes), Ranks())
    task.begin()
    return task.build_model()


def test_run_starts_from_the_best_of_an_earlier_one(earlier):
    assert open_run(earlier).best_step != OTHER_STEP
    weights = open_run(earlier).load_model("best").state_dict()
    for name, tensor in started(f"weights={earlier}").state_dict().items():
        assert tensor.equal(weights[name]), name


@pytest.mark.parametrize("inner", ["", "model.safetensors"])
def test_checkpoint_of_another_step_may_be_named(earlier, inner):
    folder = checkpoints.step_folder(earlier / "checkpoints", OTHER_STEP)
    weights = checkpoint_tensors.load_tensors(earlier / "checkpoints", OTHER_STEP, MODEL)
    model = started(f"weights={folder / inner}")
    assert all(tensor.equal(weights[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("inner", ["", "model.safetensors"])
def test_named_checkpoint_is_one_of_its_run(earlier, inner, tmp_path, monkeypatch):
    """Heads and classes are compared; wherever its path begins."""
    folder = checkpoints.step_folder(earlier / "checkpoints", OTHER_STEP)
    names = tmp_path / "names.txt"
    names.write_text("\n".join("01x3456789"))
    task = VisionTask(
        tiny_config(f"weights={folder / inner}", f"data.labels={names}", "model.gelu=tanh"),
        Ranks(),
    )
    facts = task.begin()
    assert (facts["file"], facts["step"]) == (str(folder / "model.safetensors"), OTHER_STEP)
    assert (facts["other_class"], list(facts["settings"])) == ("class 2 was '2', is 'x'", ["gelu"])
    monkeypatch.chdir(folder.parent)
    with pytest.raises(InputError, match=r"weights 'step_8.* its gains are of qk_norm='layer'"):
        started(f"weights={Path(folder.name, inner)}", "model.qk_norm=rms")


def test_checkpoint_that_is_not_there_or_damaged_is_one_line(earlier, tmp_path):
    copy = shutil.copytree(earlier, tmp_path / "copy")
    with pytest.raises(InputError, match=r"copy has no checkpoint of step 7\. It has: .*12"):
        started(f"weights={copy / 'checkpoints' / 'step_7'}")
    file = copy / "checkpoints" / "step_12" / "model.safetensors"
    safetensors.torch.save_file(safetensors.torch.load_file(file), file, {"other": "bytes"})
    with pytest.raises(InputError, match=r"step_12 of .*copy is damaged: model.safetensors .*not"):
        started(f"weights={file}")


def test_checkpoint_without_its_run_is_a_file(earlier, tmp_path):
    file = earlier / "checkpoints" / "step_12" / "model.safetensors"
    folder = tmp_path / "checkpoints" / "step_12"
    folder.mkdir(parents=True)
    shutil.copy(file, folder)
    model = started(f"weights={folder}", "model.qk_norm=rms")  # nothing says whose gains they are
    assert model.blocks[0].attn.q_norm.weight.equal(
        safetensors.torch.load_file(file)["blocks.0.attn.q_norm.weight"]
    )


def test_start_is_said_and_recorded(earlier, tmp_path):
    """With a head and positions of other sizes."""
    changes = ("model.num_classes=12", "data.image_size=16", f"weights={earlier}")
    record, text = train_quietly(tiny_config(*changes), tmp_path / "run")
    step = open_run(earlier).best_step
    file = earlier / "checkpoints" / f"step_{step}" / "model.safetensors"
    num_taken = len(final(earlier).model) - 2
    assert (
        f"starting from {num_taken} weights of {file}; a new head; positions from 2 x 2 to 4 x 4."
    ) in text
    assert plain_yaml(tmp_path / "run" / "config.yaml")["weights"] == str(earlier)
    start = record.notes["weights"]
    assert (start["file"], start["step"], start["taken"]) == (str(file), step, num_taken)
    assert start["new"] == ["head.weight", "head.bias"]
    assert len(start["sha256"]) == 64
    assert json.loads((tmp_path / "run" / "weights.json").read_text()) == start


def test_run_that_goes_on_does_not_read_them_again(earlier, tmp_path, monkeypatch):
    copy = shutil.copytree(earlier, tmp_path / "copy")
    config = tiny_config(f"weights={copy}")
    train_quietly(config, tmp_path / "whole")
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(5, patch)
        with pytest.raises(Preempted):
            train_quietly(config, out)
    shutil.rmtree(copy)
    record, text = train_quietly(config, out)
    assert "going on from step 5" in text
    assert "starting from" not in text
    assert_same_run(tmp_path / "whole", out)
    assert record.notes["weights"]["file"].startswith(str(copy))


def test_fresh_run_speaks_of_no_weights(earlier):
    assert "weights" not in open_run(earlier).record.notes
    assert not (earlier / "weights.json").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "x cannot be read: No such file or directory. Give a run's folder"),
        (lambda path: path.mkdir(), r"x/model.safetensors cannot be read: No such file"),
        (lambda path: torch.save({}, path), "is no safetensors file, or is cut .*pickles are not"),
        (
            lambda path: safetensors.torch.save_file({"a": torch.zeros(2)}, path),
            r"fits nothing: none of its 1 weights \(a\)",
        ),
    ],
)
def test_what_cannot_be_taken_is_one_line_and_leaves_no_folder(tmp_path, make, message):
    make(tmp_path / "x")
    with pytest.raises(InputError, match=message) as error:
        train_quietly(tiny_config(f"weights={tmp_path / 'x'}"), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_other_heads_are_refused_though_shapes_agree(earlier, tmp_path):
    config = tiny_config(
        f"weights={earlier}", "model.num_heads=4", "model.attention.gain=1", "model.qk_norm=none"
    )
    with pytest.raises(InputError, match="it has 2 heads, the model 4"):
        train_quietly(config, tmp_path / "run")


def test_head_of_other_classes_stays_new_and_is_said(earlier, tmp_path):
    """Ten classes as before, under other names."""
    names = tmp_path / "names.txt"
    names.write_text("\n".join("01x3456789"))
    config = tiny_config(f"weights={earlier}", f"data.labels={names}")
    record, text = train_quietly(config, tmp_path / "run")
    assert "; a new head (class 2 was '2', is 'x')." in text
    assert record.notes["weights"]["new"] == ["head.weight", "head.bias"]
    assert record.notes["weights"]["other_class"] == "class 2 was '2', is 'x'"
    assert not started(f"weights={earlier}", f"data.labels={names}").head.weight.any()


def test_changed_settings_are_said_and_recorded(earlier, tmp_path):
    """Attention may differ on purpose."""
    changes = ("model.attention.activation=gelu", "model.gelu=tanh", "model.norm_eps=1e-5")
    record, text = train_quietly(tiny_config(f"weights={earlier}", *changes), tmp_path / "run")
    assert (
        "; changed settings: attention.activation from 'relu' to 'gelu', gelu from 'exact' to "
        "'tanh', norm_eps from 1e-06 to 1e-05."
    ) in text
    assert record.notes["weights"]["settings"] == {
        "attention.activation": ["relu", "gelu"],
        "gelu": ["exact", "tanh"],
        "norm_eps": [1e-6, 1e-5],
    }


def test_gains_of_another_norm_are_refused_though_shapes_agree(earlier, tmp_path):
    config = tiny_config(f"weights={earlier}", "model.qk_norm=rms")
    message = "its gains are of qk_norm='layer', the model has 'rms'. Set model.qk_norm=layer."
    with pytest.raises(InputError, match=message):
        train_quietly(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert started(f"weights={earlier}", "model.qk_norm=none") is not None


@pytest.mark.distributed
def test_two_processes_start_as_one(earlier, tmp_path):
    changes = (f"weights={earlier}", "steps=3", "log_every=1", "parallel=fsdp")
    train_quietly(tiny_config(*changes), tmp_path / "alone")
    config, out = write_config(tmp_path, *changes), tmp_path / "run"
    done = finish(torchrun(2, tmp_path / "train.py", config, "--out", out))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("starting from ") == 1
    for name, tensor in final(tmp_path / "alone").model.items():
        torch.testing.assert_close(final(out).model[name], tensor, rtol=1e-3, atol=1e-5)
