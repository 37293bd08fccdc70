"""Target tokens a second of text models in training, by attention, for a table in docs/results.md.

    python benchmarks/training_speed.py benchmarks/results/en_de_docs/speed_512.json
    python benchmarks/training_speed.py OUT.json --lengths 256,512,1024
    python benchmarks/training_speed.py OUT.json --compile graphs_only     without the compiler

Rows are runs of the text studies' recipe at --scale small on documents of data/en-de-docs, one
after the other in one process. Nothing else may run on the GPU. A run updates 40 times to warm
up, then six parts of ten updates count: median, lowest and highest.
"""

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from flashpoint.lab.runs.metrics import read_metrics
from flashpoint.lab.runs.writing import write_json
from flashpoint.lab.study.plan import settings_of
from flashpoint.lab.study.settings import NEVER, RELU4_SUM, cut_to, relu_of_text, text
from flashpoint.lab.training import config_file
from flashpoint.lab.training.environment import describe_environment
from flashpoint.lab.training.loop import train

WARMUP, PARTS, PART = 40, 6, 10
RECIPE = ("batch_size", "precision", "compile")
"""Names of a config that the file repeats."""
CAPTURED = ("graphs", "graphs_only")
SETTINGS = settings_of("small")
ARMS: Mapping[str, Mapping[str, Any]] = {
    "softmax": {"model.attention": "softmax", "penalty": 0.0},
    "relu, factor": {"model.attention": relu_of_text(SETTINGS), "penalty": 0.0},
    "relu, factor and penalty": {"model.attention": relu_of_text(SETTINGS), "penalty": 0.1},
    RELU4_SUM: {"model.attention": RELU4_SUM},
    f"{RELU4_SUM}, qk-norm": {"model.attention": RELU4_SUM, "model.qk_norm": "layer"},
    "softmax, qk-norm": {"model.attention": "softmax", "model.qk_norm": "layer"},
}


def main(
    out: Annotated[Path, typer.Argument(help="JSON file to write.")],
    lengths: Annotated[str, typer.Option(help="Tokens of documents, comma-separated.")] = "512",
    only: Annotated[str, typer.Option(help="Arms with this in their name alone.")] = "",
    compile_: Annotated[
        str, typer.Option("--compile", help="graphs, or graphs_only, as a config has it.")
    ] = "graphs",
) -> None:
    """Run every arm at every length and write one row for each."""
    arms = {arm: {**changes, "compile": compile_} for arm, changes in ARMS.items() if only in arm}
    if not arms:
        raise typer.BadParameter(f"--only {only!r} is in no arm's name: {', '.join(ARMS)}")
    if compile_ not in CAPTURED:
        raise typer.BadParameter(f"--compile {compile_!r} must be {' or '.join(CAPTURED)}")
    if not torch.cuda.is_available():
        raise typer.BadParameter("training is timed on a GPU, and there is none here")
    rows = []
    for length in map(int, lengths.split(",")):
        for arm, changes in arms.items():
            rows.append({"attention": arm, "length": length, **_measure(changes, length)})
            typer.echo(f"{arm}, {length} tokens: {rows[-1]}")
    settings = {
        "recipe": "the text studies' at --scale small",
        "unit": "target tokens",
        **{name: _config({"compile": compile_}, rows[0]["length"])[name] for name in RECIPE},
        **{"warmup_steps": WARMUP, "steps": PARTS * PART, "parts": PARTS},
    }
    environment = describe_environment(torch.device("cuda"))
    write_json(out, {"environment": environment, "settings": settings, "rows": rows})


def _config(changes: Mapping[str, Any], length: int) -> dict[str, Any]:
    steps = WARMUP + PARTS * PART
    often = {"steps": steps, "log_every": PART, "evaluate_every": NEVER, "checkpoint_every": NEVER}
    return text(SETTINGS, 0, {**changes, **cut_to(SETTINGS, length), **often})


def _measure(changes: Mapping[str, Any], length: int) -> dict[str, Any]:
    config = config_file.parse(_config(changes, length))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", console=Console(quiet=True))
        lines = read_metrics(Path(folder) / "run")
    parts = [line for line in lines if "tokens_per_s" in line and line["step"] > WARMUP]
    rates = [line["tokens_per_s"] for line in parts]
    return {
        "tokens_per_s": {
            "median": round(statistics.median(rates)),
            "low": round(min(rates)),
            "high": round(max(rates)),
        },
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }


if __name__ == "__main__":
    typer.run(main)
