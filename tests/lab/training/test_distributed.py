"""Two gloo processes are one process: the same curve, the same weights, any way they share."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
import torch
from lab.training.runs import (
    COMMAND,
    config_with_broken_images,
    curve,
    environment,
    final,
    finish,
    tiny_config,
    torchrun,
    train_quietly,
    write_config,
)
from lab.training.text_runs import text_config, write_corpus

from flashpoint.lab.runs import checkpoints
from flashpoint.lab.training import config_file

pytestmark = pytest.mark.distributed

PARALLEL, HOW = ("ddp", "fsdp"), ("anew", "goes-on")
SEVERAL_RUNS = """
import sys
from pathlib import Path
import torch.distributed as dist
from flashpoint.lab.training import config_file, loop
dist.init_process_group("gloo")
for text in sys.argv[1:]:
    config, out, *changes = text.split(",")
    loop.train(config_file.load(Path(config), changes), Path(out))
dist.barrier()
dist.destroy_process_group()
"""

SLOW_FIRST = """
import os, time
import torch.distributed as dist
leave = dist.destroy_process_group

def leave_late():
    leave()
    if os.environ["RANK"] == "0":  # the other process could be gone before this one speaks
        time.sleep(3)

dist.destroy_process_group = leave_late
"""

STOPPED_IN_VALIDATION = """
import os, signal, sys
from pathlib import Path
import torch.distributed as dist
from flashpoint.lab.data.batches import EvalBatches
from flashpoint.lab.training import config_file, loop
from flashpoint.lab.runs.failure import Preempted
dist.init_process_group("gloo")
rank, iterate = dist.get_rank(), EvalBatches.iterate
seen = []

def iterate_and_stop(self):
    for number, batch in enumerate(iterate(self), start=1):
        if rank == 0 and number == 4:
            return  # as if the rest could not be read
        if rank == 1 and number == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        seen.append(number)
        yield batch

config = config_file.load(Path(sys.argv[1]), ["parallel=fsdp", "batch_size=64"])
EvalBatches.iterate = iterate_and_stop
try:
    loop.train(config, Path(sys.argv[2]))
except Preempted as stop:
    os.write(1, f"{rank} {len(seen)} {stop}\\n".encode())  # at once: print could mix two lines
EvalBatches.iterate = iterate
loop.train(config, Path(sys.argv[2]))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One process' runs, whole and cut back; both as two processes do them."""
    folder = tmp_path_factory.mktemp("distributed")
    # An encoder's penalty is a mean over its part of the batch, so that parts only nearly add up.
    text = text_config(write_corpus(folder), "penalty=0", "data.join=false", "data.length=128")
    configs = {"images": tiny_config(), "text": text}
    plans = []
    for task, config in configs.items():
        file = folder / f"{task}.yaml"
        file.write_text(config_file.dump(config))
        train_quietly(config, folder / task)
        for parallel in PARALLEL:
            anew, goes_on = (folder / f"{task}-{parallel}-{how}" for how in HOW)
            cut_back(shutil.copytree(folder / task, goes_on))
            plans.append(f"{file},{anew},parallel={parallel},accumulate=2")
            plans.append(f"{file},{goes_on},parallel={parallel}")
    broken = config_with_broken_images(folder, ["steps=24", "log_every=4"], 30, 80, 130)
    (folder / "broken.yaml").write_text(config_file.dump(broken))
    train_quietly(broken, folder / "broken-alone")
    plans.append(f"{folder / 'broken.yaml'},{folder / 'broken'}")
    done = finish(torchrun(2, folder / "train.py", *plans, code=SEVERAL_RUNS))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be read and were replaced, first ") == 1
    assert done.stderr.count("going on from step 8 of 12") == len(configs) * len(PARALLEL)
    return folder


def cut_back(out):
    """As if the run had been killed after step 8."""
    (out / "record.json").unlink()
    shutil.rmtree(out / "checkpoints" / "step_12")
    assert checkpoints.saved_steps(out / "checkpoints")[-1] == 8


@pytest.mark.parametrize("parallel", PARALLEL)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("task", ["images", "text"])
def test_two_processes_equal_one(runs, task, parallel, how):
    """Within the rounding of sums in another order; also from a checkpoint of one process."""
    one, two = runs / task, runs / f"{task}-{parallel}-{how}"
    for mine, theirs in zip(curve(one), curve(two), strict=True):
        assert mine.pop("kind") == theirs.pop("kind")
        assert mine == pytest.approx(theirs, rel=1e-4)
    mine, theirs = final(one), final(two)
    for part in ("model", "optimizer"):
        tensors, others = getattr(mine, part), getattr(theirs, part)
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(others[name], tensor, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("parallel", PARALLEL)
def test_one_process_goes_on_from_two(runs, tmp_path, parallel):
    out = shutil.copytree(runs / f"images-{parallel}-anew", tmp_path / "run")
    cut_back(out)
    train_quietly(tiny_config(), out)
    for name, tensor in final(runs / "images").model.items():
        torch.testing.assert_close(final(out).model[name], tensor, rtol=1e-3, atol=1e-5)


def test_unreadable_images_of_all_processes_are_counted_together(runs):
    """As by one process: three of 192 are within 2%."""
    two, one = runs / "broken", runs / "broken-alone"
    for line, other in zip(curve(two), curve(one), strict=True):
        assert line.get("broken") == other.get("broken")
    notes, others = (
        json.loads((folder / "record.json").read_text())["notes"] for folder in (two, one)
    )
    assert sorted(notes["broken_images"]) == sorted(others["broken_images"])
    assert notes["broken_count"] == others["broken_count"] == 3 * 2


def test_too_many_unreadable_images_of_all_processes_end_the_run_with_one_line(tmp_path):
    config = config_with_broken_images(tmp_path, ["steps=24", "log_every=4"], 30, 80, 130, 180)
    file = tmp_path / "config.yaml"
    file.write_text(config_file.dump(config))
    command = torchrun(
        2, tmp_path / "train.py", file, "--out", tmp_path / "ended", code=SLOW_FIRST + COMMAND
    )
    done = finish(command)
    assert done.returncode == 1, "torchrun's own, of a failed process"
    assert re.search(r"Root Cause.*\n\[0\]", done.stderr)
    assert "in process" not in done.stderr
    assert len(re.findall(r"error: 4 of the 192 images .*2\.00%", done.stderr)) == 1


def test_one_stopped_process_takes_the_others_out_of_a_validation(tmp_path):
    """Also where another has no batches left; going on validates the same step first."""
    config, out = write_config(tmp_path), tmp_path / "run"
    done = finish(torchrun(2, tmp_path / "train.py", config, out, code=STOPPED_IN_VALIDATION))
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if " stopped by " in line)
    assert [line.split(" stopped by ")[0] for line in said] == ["0 3", "1 5"]
    assert "stopped by a signal at step 6 of 12" in said[0]
    assert "stopped by SIGTERM at step 6 of 12" in said[1]
    assert "going on from step 6 of 12" in done.stderr
    assert [line["step"] for line in curve(out) if line["kind"] == "validation"] == [6, 12]


def test_sigterm_to_torchrun_saves_and_leaves(tmp_path):
    config = write_config(tmp_path, "steps=3000", "evaluate_every=3000")
    out = tmp_path / "run"
    process = subprocess.Popen(
        torchrun(2, tmp_path / "train.py", config, "--out", out),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not list((out / "checkpoints").glob("step_*")):
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        _, text = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert text.count("stopped by SIGTERM at step ") == 1
    step = int(text.partition("stopped by SIGTERM at step ")[2].split()[0])
    assert final(out).step == step
