"""Runs whose files are gone, or cannot be read for a while: nothing is lost without a word."""

import errno
import os
import shutil
import subprocess
import sys

import broken_files
import pytest
from lab.training.runs import (
    assert_same_run,
    contents,
    curve,
    environment,
    interrupt_at,
    tiny_config,
    train_quietly,
)

from flashpoint.errors import FlashpointError, InputError
from flashpoint.lab.runs import checkpoints
from flashpoint.lab.runs.failure import Preempted, RunError
from flashpoint.lab.training import checkpoint_tensors
from flashpoint.lab.training.run_folder import LostError

NOBODY = 65534
ERRORS = {"EACCES": errno.EACCES, "EIO": errno.EIO, "ESTALE": errno.ESTALE}
UNREADABLE = (
    *("checkpoints", "state.json", "model.safetensors", "optimizer.safetensors"),
    *("metrics.jsonl", "config.yaml", "data.json"),
)
AS_NOBODY = """
import os, sys
from pathlib import Path
from flashpoint.lab.training import loop
from flashpoint.lab.training import config_file
from flashpoint.errors import FlashpointError
config = config_file.load(Path("tiny.yaml"))
loop.train(config, Path("other"))  # imports all that training needs: others may not read it
if os.geteuid() == 0:
    os.setresuid(NOBODY, NOBODY, NOBODY)
try:
    loop.train(config, Path("run"))
except FlashpointError as error:
    sys.exit(f"error: {error}")
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    train_quietly(tiny_config(), out)
    return out


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """A run that was stopped at step 10, with checkpoints of steps 8 and 10 and the best."""
    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(10, patch)
        with pytest.raises(Preempted):
            train_quietly(tiny_config(), out)
    return out


@pytest.fixture
def run(stopped_once, tmp_path):
    return shutil.copytree(stopped_once, tmp_path / "run")


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_file_stops_the_run_and_condemns_nothing(run, whole, monkeypatch, name, error):
    before = contents(run)
    with monkeypatch.context() as patch:
        broken_files.unreadable(patch, error, name)
        with pytest.raises(FlashpointError) as refused:
            train_quietly(tiny_config(), run)
    assert f"{name} cannot be read: {os.strerror(error)}." in str(refused.value)
    assert "\n" not in str(refused.value)
    assert contents(run) == before
    train_quietly(tiny_config(), run)  # the disk is back
    assert_same_run(whole, run)


def test_unreadable_record_is_no_missing_one(whole, monkeypatch, tmp_path):
    out = shutil.copytree(whole, tmp_path / "run")
    before = contents(out)
    broken_files.unreadable(monkeypatch, errno.EIO, "record.json")
    with pytest.raises(InputError, match=r"record\.json cannot be read: Input/output error\."):
        train_quietly(tiny_config(), out)
    monkeypatch.undo()
    assert contents(out) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/step_10/optimizer.safetensors"])
def test_modes_stop_another_user_s_run_likewise(run, name):
    """Root reads whatever it likes: the run is another user's, in a process of that user."""
    (run.parent / "tiny.yaml").write_text((run / "config.yaml").read_text())
    for path in (run.parent, *run.parent.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
    before = contents(run)
    (run / name).chmod(0)
    found = subprocess.run(
        [sys.executable, "-c", AS_NOBODY.replace("NOBODY", str(NOBODY))],
        cwd=run.parent,
        env={**environment(), "HOME": str(run.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    (run / name).chmod(0o755)
    last = found.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: run/{name} cannot be read: Permission denied."), found.stderr
    assert "No checkpoint was changed or removed" in last
    assert "Traceback" not in found.stderr
    assert contents(run) == before


def test_link_to_checkpoints_on_a_disk_that_is_not_mounted_is_refused(run):
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(run / "not-mounted")
    before = contents(run)
    with pytest.raises(RunError, match="checkpoints is a link to what is not there"):
        train_quietly(tiny_config(), run)
    assert contents(run) == before


@pytest.mark.parametrize("is_emptied", [False, True])
def test_run_without_its_checkpoints_asks_for_the_flag(run, whole, is_emptied):
    shutil.rmtree(run / "checkpoints")
    if is_emptied:
        (run / "checkpoints").mkdir()
    before = contents(run)
    with pytest.raises(LostError) as error:
        train_quietly(tiny_config(), run)
    assert str(error.value) == (
        f"{run}/checkpoints has no checkpoint, but the run saved one of step 10: it was removed "
        "or lies elsewhere. Restore it, or pass --fresh to begin anew without the curve so far."
    )
    assert contents(run) == before
    from rich.console import Console

    from flashpoint.lab.training import loop

    loop.train(tiny_config(), run, console=Console(quiet=True), fresh=True)
    assert_same_run(whole, run)


@pytest.mark.parametrize("log_every", [2, 20], ids=["a curve", "no line yet"])
@pytest.mark.parametrize("is_emptied", [False, True], ids=["gone", "emptied"])
@pytest.mark.parametrize("has_metrics", [True, False], ids=["kept", "metrics gone too"])
def test_run_without_the_checkpoint_of_an_early_stop_asks_for_the_flag(
    tmp_path, monkeypatch, log_every, is_emptied, has_metrics
):
    """It was saved before any was due; an empty folder may be where a disk is not mounted."""
    changes = ("checkpoint_every=11", "evaluate_every=11", f"log_every={log_every}")
    out, config = tmp_path / "run", tiny_config(*changes)
    with monkeypatch.context() as patch:
        interrupt_at(6, patch)
        with pytest.raises(Preempted):
            train_quietly(config, out)
    assert checkpoints.saved_steps(out / "checkpoints") == [6]
    shutil.rmtree(out / "checkpoints")
    if is_emptied:
        (out / "checkpoints").mkdir()
    if not has_metrics:
        (out / "metrics.jsonl").unlink()
    before = contents(out)
    with pytest.raises(LostError, match=r"the run saved one of step 6: it was removed"):
        train_quietly(config, out)
    assert contents(out) == before


def test_curve_of_a_run_that_noted_no_checkpoint_is_not_dropped(run):
    """As earlier versions left it, without saved.json."""
    shutil.rmtree(run / "checkpoints")
    (run / "saved.json").unlink()
    before = contents(run)
    validated = max(line["step"] for line in curve(run) if line["kind"] == "validation")
    with pytest.raises(LostError, match=f"the run saved one of step {validated}: it was removed"):
        train_quietly(tiny_config(), run)
    assert contents(run) == before


def test_newer_checkpoints_that_are_gone_are_spoken_of(run, whole):
    for step in checkpoints.saved_steps(run / "checkpoints")[1:]:
        shutil.rmtree(run / "checkpoints" / f"step_{step}")
    (left,) = checkpoints.saved_steps(run / "checkpoints")
    dropped = sum(line["step"] > left for line in curve(run))
    assert dropped
    _, text = train_quietly(tiny_config(), run)
    assert "step 10 was saved, but is no longer among the checkpoints" in text
    assert f"{dropped} lines of metrics.jsonl behind step {left} again" in text
    assert_same_run(whole, run)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "optimizer.safetensors"])
def test_unreadable_file_of_the_newest_checkpoint_alone_stops_the_run(
    run, whole, monkeypatch, name, error
):
    """The older ones can be read: they must not take its place."""
    before = contents(run)
    file = run / "checkpoints" / "step_10" / name
    with monkeypatch.context() as patch:
        broken_files.unreadable(patch, error, file)
        with pytest.raises(RunError, match="No checkpoint was changed or removed") as refused:
            train_quietly(tiny_config(), run)
    assert f"{file} cannot be read: {os.strerror(error)}." in str(refused.value)
    assert contents(run) == before
    assert not list((run / "checkpoints").glob("damaged_*"))
    train_quietly(tiny_config(), run)
    assert_same_run(whole, run)


def test_finished_run_needs_no_checkpoints(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(out / "checkpoints")
    _, text = train_quietly(tiny_config(), out)
    assert "nothing to do" in text


def test_run_killed_before_its_first_checkpoint_begins_anew_with_a_word(
    tmp_path, monkeypatch, whole
):
    """At step 5 there is a line of the curve; the first checkpoint is that of step 6."""
    out, config = tmp_path / "run", tiny_config("checkpoint_every=6", "log_every=5")

    def vanish(*_):
        raise RunError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_tensors, "save", vanish)
        with pytest.raises(RunError, match="the machine is gone"):
            train_quietly(config, out)
    assert [line["step"] for line in curve(out)] == [5]
    _, text = train_quietly(config, out)
    assert f"{out} has no checkpoint yet: beginning anew, and metrics.jsonl with it." in text
    assert_same_run(whole, out)


@pytest.mark.parametrize("kept", [[], [0], [2], [0, 2]])
def test_lost_lines_are_said_and_their_checkpoints_spared(run, kept):
    """Lines of steps 5, 6 and 10: training, validation, training."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 3
    file.write_text("".join(lines[number] for number in kept))
    before = checkpoints.saved_steps(run / "checkpoints")
    _, text = train_quietly(tiny_config("keep_checkpoints=1"), run)
    said = f"{3 - len(kept)} of the 3 lines of metrics.jsonl up to step 10 are missing: the curve"
    assert said in text
    assert set(before) <= set(checkpoints.saved_steps(run / "checkpoints"))


def test_whole_curve_is_not_spoken_of(run):
    _, text = train_quietly(tiny_config(), run)
    assert "missing" not in text
    assert "anew" not in text


@pytest.mark.parametrize("number", [0, 1])
def test_broken_line_is_named_and_the_curve_stays(run, number):
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    lines[number] = '{"kind": "train", "step": "five"}\n'
    file.write_text("".join(lines))
    before = contents(run)
    with pytest.raises(InputError) as error:
        train_quietly(tiny_config(), run)
    assert str(error.value) == (
        f"{file}, line {number + 1}: step='five' must be a whole number. Repair or remove the "
        "line; the other lines are left as they are."
    )
    assert contents(run) == before
