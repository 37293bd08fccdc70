"""Accuracy and time of ONNX files in fp32 and int8, with softmax and without it, on this CPU.

    python benchmarks/onnx_int8.py --json benchmarks/results/onnx/int8.json

Accuracy: the recipe of configs/digits.yaml with each attention and seed, exported and shown the
360 validation images in onnxruntime. Time: ViT-Ti with fresh weights, one image at a time on one
thread; all files of one size take turns. Counted is the processor's time of that thread, so that
other work on the machine adds little to it. Runs that are there already are not trained again.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import onnxruntime
import torch
import typer
from torch import Tensor, nn

import flashpoint
from flashpoint.convert import export_onnx
from flashpoint.files import json_text, write_atomically
from flashpoint.lab.bench.timing import Budget, Call, CpuTimer, Sampler, interleave, start
from flashpoint.lab.evaluation.classification import evaluate_run
from flashpoint.lab.training import config_file
from flashpoint.lab.training.environment import describe_environment
from flashpoint.lab.training.loop import train
from flashpoint.lab.training.run_folder import open_run
from flashpoint.models.vit import ViT

RECIPE = Path(__file__).parents[1] / "configs" / "digits.yaml"
ATTENTION = ("softmax", "relu", "relu4/sum")
SEEDS = (0, 1, 2)
KINDS = ("none", "linear", "all")  # of int8
MODELS = {"vit_ti16": 196, "vit_ti8": 784}  # tokens of an image of 224 x 224
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
BUDGET = Budget(rounds=21, seconds=60.0)


class Session(nn.Module):
    """An ONNX file of a ViT in the place of the model."""

    def __init__(self, file: Path, model: ViT) -> None:
        super().__init__()
        self.config = model.config
        self.here = nn.Parameter(torch.zeros(1))  # says which device it is on
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(file, options)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return torch.from_numpy(self.session.run(None, {"images": images.numpy()})[0])


class ThreadTimer(CpuTimer):
    """For calls that compute on the thread that makes them."""

    def prepare(self, call: Call, repeats: int) -> Sampler:
        """Nothing needs to be made ready."""

        def measure() -> float:
            begin = time.thread_time()
            for _ in range(repeats):
                call()
            return time.thread_time() - begin

        return Sampler(measure, repeats, "clock")


def measure_accuracy(runs: Path, files: Path) -> Iterator[dict[str, Any]]:
    """A row for each attention and seed: top-1 of PyTorch and of each file, differences, bytes."""
    for attention in ATTENTION:
        for seed in SEEDS:
            folder = runs / f"{attention.replace('/', '-')}-seed{seed}"
            changes = (f"model.attention={attention}", f"seed={seed}", "device=cpu")
            train(config_file.load(RECIPE, changes), folder)
            run = open_run(folder)
            model = run.load_model("last")
            assert isinstance(model, ViT)
            row: dict[str, Any] = {"attention": attention, "seed": seed}
            row["torch"] = {"top1": evaluate_run(run, model).top1}
            for kind in KINDS:
                made = export_onnx(model, files / "digits.onnx", int8=kind)
                served: Any = Session(made.path, model)
                found = asdict(made) | {"top1": evaluate_run(run, served).top1}
                row[kind] = {name: found[name] for name in found if name != "path"}
            yield row


def measure_times(files: Path) -> Iterator[dict[str, Any]]:
    """A row for each model, attention and kind of file; those of one model take turns."""
    timer = ThreadTimer()
    for name, tokens in MODELS.items():
        image = torch.randn(1, 3, 224, 224)
        started: dict[str, Any] = {}
        for attention in ATTENTION:
            model = flashpoint.create_model(name, attention=attention)
            assert isinstance(model, ViT)
            for kind in KINDS:
                made = export_onnx(model, files / "time.onnx", int8=kind)
                call = partial(Session(made.path, model), image)
                started[f"{attention} {kind}"], _ = start(call, timer)
        for key, timing in interleave(started, BUDGET, timer).items():
            attention, kind = key.split()
            yield {
                **{"model": name, "tokens": tokens, "attention": attention, "kind": kind},
                **asdict(timing),
            }


def main(
    json_file: Annotated[Path, typer.Option("--json", help="Where the numbers go.")],
    runs: Annotated[Path | None, typer.Option(help="Where runs are kept.")] = None,
) -> None:
    """Train, export, classify and time."""
    torch.set_num_threads(1)
    environment = describe_environment(torch.device("cpu"))
    environment |= {name: metadata.version(name) for name in PACKAGES}
    with tempfile.TemporaryDirectory() as folder:
        accuracy = list(measure_accuracy(runs or Path(folder) / "runs", Path(folder)))
        times = list(measure_times(Path(folder)))
    content = {"environment": environment, "accuracy": accuracy, "times": times}
    content["clock"] = "time of the processor in the calling thread"
    text = json_text(content, indent=1) + "\n"
    write_atomically(json_file, lambda handle: handle.write(text.encode()))


if __name__ == "__main__":
    typer.run(main)
