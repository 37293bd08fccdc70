"""Real processes, killed at moments that nobody chose: the run ends as if never interrupted."""

import shutil
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest
import torch
from lab.training.runs import (
    assert_same_run,
    command,
    environment,
    tiny_config,
    train_quietly,
    write_config,
)
from lab.training.text_runs import text_config, write_corpus

from flashpoint.lab.cli.train import STOPPED
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.training import config_file

pytestmark = pytest.mark.slow

CHANGES = ("steps=150", "checkpoint_every=3", "evaluate_every=30", "log_every=7", "batch_size=8")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in the processes that are started: sums of other parts differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The config, and the run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("kill")
    train_quietly(tiny_config(*CHANGES), folder / "whole")
    return write_config(folder, *CHANGES), folder / "whole"


def go_on(out):
    """Take up the run in this process; gives what the user saw."""
    return train_quietly(tiny_config(*CHANGES), out)[1]


@contextmanager
def started(config, out):
    """A training process; gone afterwards."""
    process = subprocess.Popen(
        command(config, "--out", out),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for_checkpoint(process, out, known):
    """Wait until there is a checkpoint that was not known; False if the process ended first."""
    while process.poll() is None:
        if {path.name for path in (out / "checkpoints").glob("step_*")} - known:
            return True
        time.sleep(0.002)
    return False


def kill_again_and_again(config, out, rng):
    """Start a run and kill it at some moment behind a new checkpoint, several times over."""
    kills = 0
    for _ in range(2):
        known = {path.name for path in (out / "checkpoints").glob("step_*")}
        with started(config, out) as process:
            if not wait_for_checkpoint(process, out, known):
                break
            time.sleep(rng.uniform(0.0, 0.2))
            kills += process.poll() is None
            process.kill()
    assert kills >= 2, "the run is too short to be killed"


def is_part(path):
    """Whether a file or folder is what an unfinished write left."""
    return ".unfinished_" in path.name or path.suffix == ".part"


def test_killed_run_of_text_goes_on_to_the_same_end(tmp_path, kill_rng):
    changes = ("steps=50", "checkpoint_every=3", "evaluate_every=20", "log_every=7")
    config = text_config(write_corpus(tmp_path), *changes, "model.dropout=0.2")
    (tmp_path / "text.yaml").write_text(config_file.dump(config))
    out, whole = tmp_path / "run", tmp_path / "whole"
    train_quietly(config, whole)
    kill_again_and_again(tmp_path / "text.yaml", out, kill_rng)
    train_quietly(config, out)
    assert_same_run(whole, out)
    assert not [path for path in out.rglob("*") if is_part(path)]


def test_killed_run_with_a_cut_checkpoint_goes_on_from_the_one_before(reference, tmp_path):
    config, whole = reference
    out = tmp_path / "run"
    with started(config, out) as process:
        known = set()
        for _ in range(2):
            assert wait_for_checkpoint(process, out, known)
            known = {path.name for path in (out / "checkpoints").glob("step_*")}
        process.kill()
    newest = max((out / "checkpoints").glob("step_*"), key=lambda path: int(path.name[5:]))
    file = newest / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert f"checkpoint {newest.name} is damaged (model.safetensors" in go_on(out)
    assert_same_run(whole, out)


def test_sigterm_saves_and_ends_with_its_status(reference, tmp_path):
    config, whole = reference
    out = tmp_path / "run"
    with started(config, out) as process:
        assert wait_for_checkpoint(process, out, set())
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == STOPPED
    last = output.strip().splitlines()[-1]
    assert last.startswith("stopped by SIGTERM at step ")
    assert last.endswith("Give the same command again to go on.")
    assert "Traceback" not in output
    go_on(out)
    assert_same_run(whole, out)


def test_second_process_on_a_run_is_refused(reference, tmp_path):
    config, _ = reference
    out = tmp_path / "run"
    with started(config, out) as process:
        assert wait_for_checkpoint(process, out, set())
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(RunError, match=f"is in use by process {process.pid}"):
            go_on(out)


def test_really_full_disk_is_one_line_and_leaves_no_pieces(tmp_path):
    """On a file system of 1 MB, where the machine lets us make one."""
    small = tmp_path / "small"
    small.mkdir()
    mount = shutil.which("mount")
    options = [mount or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if mount is None or subprocess.run(options, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system")
    try:
        config = tiny_config("model.width=64", "model.depth=1", "keep_checkpoints=9")
        with pytest.raises(RunError, match="the disk is full: "):
            train_quietly(config, small / "run")
        assert not [p for p in (small / "run").rglob("*") if is_part(p)]
    finally:
        subprocess.run(["umount", str(small)], check=True)
