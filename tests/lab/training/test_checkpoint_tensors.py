"""Checkpoints are whole or not there."""

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashpoint.lab.runs import checkpoints, writing
from flashpoint.lab.runs.checkpoints import DamagedError
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.training import checkpoint_tensors
from flashpoint.lab.training.checkpoint_tensors import Checkpoint


def make(step):
    tensors = {"a.weight": torch.full((3, 4), float(step)), "b": torch.arange(5)}
    return Checkpoint(
        step=step,
        model=tensors,
        optimizer={"a.weight.exp_avg": torch.randn(3, 4).T},
        state={"seconds": 0.1 + step, "counts": {"good": 3.0}},
    )


def files(folder):
    """Everything below a folder and its content."""
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_checkpoint_comes_back_as_it_was(tmp_path):
    saved = make(7)
    path = checkpoint_tensors.save(tmp_path / "checkpoints", saved)
    assert sorted(p.name for p in path.iterdir()) == [
        *("model.safetensors", "optimizer.safetensors", "state.json")
    ]
    loaded = checkpoint_tensors.load(tmp_path / "checkpoints", 7)
    assert loaded.state == saved.state
    for part in ("model", "optimizer"):
        mine, theirs = getattr(saved, part), getattr(loaded, part)
        assert mine.keys() == theirs.keys()
        assert all(tensor.equal(theirs[name]) for name, tensor in mine.items())


def spoil_truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


def spoil_empty(path):
    path.write_bytes(b"")


def spoil_flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def spoil_remove(path):
    path.unlink()


SPOILS = (spoil_truncate, spoil_empty, spoil_flip, spoil_remove)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_damaged_checkpoint_is_noticed_and_the_one_before_taken(tmp_path, name, spoil):
    for step in (3, 20, 100):
        checkpoint_tensors.save(tmp_path, make(step))
    spoil(tmp_path / "step_100" / name)
    before = files(tmp_path / "step_100")
    with pytest.raises(DamagedError):
        checkpoint_tensors.load(tmp_path, 100)
    said = []
    found = checkpoint_tensors.latest(tmp_path, said.append)
    assert found.step == 20
    assert len(said) == 1
    assert said[0].startswith("checkpoint step_100 is damaged (")
    assert said[0].endswith("going back to step_20.")
    assert name in said[0]
    assert checkpoints.saved_steps(tmp_path) == [3, 20]
    assert files(tmp_path / "damaged_step_100") == before  # nothing is deleted for it


def test_state_with_a_number_that_is_not_finite_is_whole(tmp_path):
    """JSON has none: it comes back as null, and is not taken for damage."""
    saved = replace(make(7), state={"loss": math.inf, "seconds": math.nan, "lines": 3})
    checkpoint_tensors.save(tmp_path, saved)
    assert checkpoint_tensors.load(tmp_path, 7).state == {
        "loss": None,
        "seconds": None,
        "lines": 3,
    }


def test_every_cut_of_every_file_is_noticed(tmp_path):
    path = checkpoint_tensors.save(tmp_path, make(1))
    for file in path.iterdir():
        content = file.read_bytes()
        for length in range(0, len(content), max(1, len(content) // 40)):
            file.write_bytes(content[:length])
            with pytest.raises(DamagedError):
                checkpoint_tensors.load(tmp_path, 1)
        file.write_bytes(content)
    checkpoint_tensors.load(tmp_path, 1)


def test_changed_number_in_the_state_is_noticed(tmp_path):
    path = checkpoint_tensors.save(tmp_path, make(1)) / "state.json"
    content = json.loads(path.read_text())
    content["state"]["seconds"] = 5.0
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedError, match="does not match its checksum"):
        checkpoint_tensors.load(tmp_path, 1)


def test_no_whole_checkpoint_is_an_error_that_keeps_them(tmp_path):
    for step in (1, 2):
        spoil_truncate(checkpoint_tensors.save(tmp_path, make(step)) / "state.json")
    before = files(tmp_path)
    with pytest.raises(RunError, match=r"none of the 2 checkpoints in .* is whole"):
        checkpoint_tensors.latest(tmp_path, print)
    assert files(tmp_path) == before


def test_shares_that_the_first_process_does_not_see_are_no_checkpoint(tmp_path):
    """As on nodes that share no folder."""
    file = checkpoints.begin(tmp_path, 3) / "shard-1"
    file.write_bytes(b"mine")
    digests = {"shard-1": checkpoints.digest_of(file), "shard-2": "theirs"}
    with pytest.raises(RunError, match=r"shard-2 of step 3 .* an --out that all nodes share"):
        checkpoints.commit(tmp_path, 3, digests, {})
    assert checkpoints.saved_steps(tmp_path) == []
    checkpoints.commit(tmp_path, 3, {"shard-1": digests["shard-1"]}, {})
    assert checkpoints.read_part(tmp_path, 3, "shard-1") == b"mine"


def test_no_checkpoint_is_none(tmp_path):
    assert checkpoint_tensors.latest(tmp_path / "nothing", print) is None


def test_steps_are_numbers_not_names(tmp_path):
    for step in (9, 10, 100):
        checkpoint_tensors.save(tmp_path, make(step))
    (tmp_path / "step_best").mkdir()
    assert checkpoints.saved_steps(tmp_path) == [9, 10, 100]


def test_prune_keeps_the_chosen_and_clears_leftovers(tmp_path):
    for step in (1, 2, 3):
        checkpoint_tensors.save(tmp_path, make(step))
    (tmp_path / ".unfinished_step_4").mkdir()
    (tmp_path / ".unfinished_step_4" / "model.safetensors").write_bytes(b"half")
    checkpoints.prune(tmp_path, {1, 3})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_1", "step_3"]


def test_saving_a_step_again_sets_the_damaged_one_aside(tmp_path):
    path = checkpoint_tensors.save(tmp_path, make(1))
    for names in (["damaged_step_1"], ["damaged_step_1", "damaged_step_1_2"]):
        spoil_truncate(path / "model.safetensors")
        checkpoint_tensors.save(tmp_path, make(1))
        assert checkpoint_tensors.load(tmp_path, 1).step == 1
        assert sorted(p.name for p in tmp_path.iterdir()) == [*names, "step_1"]


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_full_disk_leaves_older_checkpoints_and_no_pieces(tmp_path, monkeypatch, fails_at):
    checkpoint_tensors.save(tmp_path, make(1))
    before, write, calls = files(tmp_path), checkpoints.write, []

    def write_until_full(path, content):
        calls.append(path)
        if len(calls) == fails_at:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(checkpoints, "write", write_until_full)
    with pytest.raises(RunError) as error:
        checkpoint_tensors.save(tmp_path, make(2))
    assert str(error.value).startswith(f"the disk is full: {tmp_path / 'step_2'} was not written.")
    assert "\n" not in str(error.value)
    assert files(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["step_1"]


def test_really_full_device_is_the_same_line():
    with pytest.raises(RunError, match="the disk is full"), writing.writing(Path("/dev/full")):
        writing.write(Path("/dev/full"), b"x" * 10)


def test_interrupt_while_saving_leaves_no_pieces(tmp_path, monkeypatch):
    def interrupt(path, content):
        path.write_bytes(content[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkpoint_tensors.save(tmp_path, make(2))
    assert not list(tmp_path.iterdir())


def test_folder_that_may_not_be_written_is_one_line(tmp_path):
    (tmp_path / "checkpoints").write_text("a file is in the way")
    with pytest.raises(RunError, match=r"step_1 cannot be written: File exists\."):
        checkpoint_tensors.save(tmp_path / "checkpoints", make(1))


def test_replaced_file_is_old_or_new(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    writing.replace_file(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="the disk is full"):
        writing.replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_files_reach_the_disk_before_the_name_does(tmp_path, monkeypatch):
    """All files and the folder are synced before the rename, the parent after it."""
    events = []
    monkeypatch.setattr(os, "fsync", lambda fd: events.append(_name(fd)))
    rename = Path.rename
    monkeypatch.setattr(
        Path, "rename", lambda self, to: (events.append(f"rename {to.name}"), rename(self, to))[1]
    )
    checkpoint_tensors.save(tmp_path, make(5))
    assert events == [
        *("model.safetensors", "optimizer.safetensors", "state.json"),
        *(".unfinished_step_5", "rename step_5", tmp_path.name),
    ]


def _name(descriptor):
    return Path(f"/proc/self/fd/{descriptor}").resolve().name


def test_checkpoints_hold_no_pickle(tmp_path):
    checkpoint_tensors.save(tmp_path, make(1))
    for content in files(tmp_path).values():
        assert not content.startswith((b"PK", b"\x80"))
