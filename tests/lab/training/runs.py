"""Small runs that the tests of training share."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from lab.data.pictures import make_folder
from rich.console import Console

import flashpoint
from flashpoint.lab.runs import checkpoints
from flashpoint.lab.training import checkpoint_tensors, config_file, loop
from flashpoint.lab.training.vision import VisionTask

TINY = {
    "model": {
        "name": "vit",
        "width": 16,
        "depth": 2,
        "num_heads": 2,
        "patch_size": 4,
        "mlp_dim": 32,
        "attention": {"activation": "relu", "alpha": "learned", "gain": "learned_per_head"},
    },
    "data": {
        "train": "digits",
        "validation": "digits",
        "image_size": 8,
        "channels": 1,
        "augmentation": {"crop": "pad", "pad": 1, "mixup": 0.2},
    },
    "steps": 12,
    "batch_size": 16,
    "optimizer": {"lr": 2e-3},
    "schedule": {"warmup_steps": 2},
    "precision": "fp32",
    "device": "cpu",
    "log_every": 5,
    "evaluate_every": 6,
    "checkpoint_every": 4,
}
MEASURED = ("images_per_s", "tokens_per_s", "seconds", "utilisation", "data_wait")
COMMAND = """
import sys, typer
from flashpoint.lab.cli.train import train
from flashpoint.errors import FlashpointError
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(train)
try:
    app()
except FlashpointError as error:
    sys.exit(f"error: {error}")
"""


def tiny_config(*changes):
    """The smallest run, changed by ``a.b=c`` texts."""
    return config_file.parse(TINY, changes)


def config_with_broken_images(folder, changes, *broken):
    """The smallest run on 192 small pictures, of which those with these numbers are broken."""
    for split, each in (("train", 96), ("val", 20)):
        make_folder(folder / "images" / split, {"a": each, "b": each})
    for number in broken:
        (path,) = (folder / "images" / "train").glob(f"*/{number:04}.png")
        path.write_bytes(b"no image at all")
    where = f"{folder / 'images'}"
    data = (f"data.train={where}", f"data.validation={where}", "data.workers=0")
    return tiny_config(*data, "data.max_broken_share=0.02", *changes)


def write_config(folder, *changes):
    """The smallest run as a file."""
    path = folder / "tiny.yaml"
    path.write_text(config_file.dump(tiny_config(*changes)))
    return path


def train_quietly(config, out):
    """Train in this process; gives the record and what the user saw."""
    lines = []

    class Lines:
        def write(self, text):
            lines.append(text)

        def flush(self):
            pass

    record = loop.train(config, out, console=Console(file=Lines(), width=300))
    return record, "".join(lines)


def interrupt_at(step, monkeypatch, number=signal.SIGTERM, task=VisionTask):
    """Send this process a signal when batch number ``step`` is made."""
    batches = task.batches

    def with_signal(self, start):
        for at, batch in enumerate(batches(self, start), start=start):
            if at == step - 1:
                os.kill(os.getpid(), number)
            yield batch

    monkeypatch.setattr(task, "batches", with_signal)


def contents(folder):
    """Every file below a folder and what it holds, links as such; locks come and go."""
    return {
        path.relative_to(folder): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.name != ".lock" and (path.is_symlink() or path.is_file())
    }


def command(*arguments):
    """The command line ``flashpoint train ARGUMENTS``."""
    return [sys.executable, "-c", COMMAND, *map(str, arguments)]


def torchrun(num_processes, script, *arguments, code=COMMAND):
    """The command line of the same with several processes; the script is made in a folder."""
    script.write_text(code)
    options = ("--standalone", "--nproc-per-node", str(num_processes))
    starter = [sys.executable, "-m", "torch.distributed.run", *options]
    return [*starter, str(script), *map(str, arguments)]


def environment():
    """One thread a process, and this checkout's code."""
    source = str(Path(flashpoint.__file__).parents[1])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source}


def finish(arguments, timeout=120):
    """Run a command line to its end."""
    return subprocess.run(
        arguments, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )


def curve(out):
    """The metrics of a run without what depends on the clock."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in lines]


def final(out):
    """The last checkpoint of a run."""
    folder = out / "checkpoints"
    return checkpoint_tensors.load(folder, checkpoints.saved_steps(folder)[-1])


def cut_back(out, step):
    """As if the run had been killed after a step."""
    (out / "record.json").unlink()
    for later in checkpoints.saved_steps(out / "checkpoints"):
        if later > step:
            shutil.rmtree(out / "checkpoints" / f"step_{later}")


def assert_close_run(one, other):
    """The same curve, weights and moments, within the rounding of sums in another order."""
    for mine, theirs in zip(curve(one), curve(other), strict=True):
        assert mine.pop("kind") == theirs.pop("kind")
        assert mine == pytest.approx(theirs, rel=1e-4), other
    mine, theirs = final(one), final(other)
    for part in ("model", "optimizer"):
        tensors, others = getattr(mine, part), getattr(theirs, part)
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(others[name], tensor, rtol=1e-3, atol=1e-5)


def assert_same_run(one, other):
    """The same curve and the same weights and moments, bit for bit."""
    assert curve(one) == curve(other)
    mine, theirs = final(one), final(other)
    assert mine.step == theirs.step
    for part in ("model", "optimizer"):
        tensors, others = getattr(mine, part), getattr(theirs, part)
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            assert tensor.equal(others[name]), f"{part} {name}"


def plain_yaml(path):
    """A YAML file as plain data."""
    return yaml.safe_load(path.read_text())
