"""A run on digits, trained for a moment, and a way to call a verb on it."""

import tempfile
from functools import cache
from pathlib import Path

import typer
from typer.testing import CliRunner

from flashpoint.lab.training import config_file
from flashpoint.lab.training.loop import train

_FOLDER = tempfile.TemporaryDirectory()  # gone with the process


@cache
def trained_run(attention="relu", num_classes=10):
    """Its folder; read only, for all tests share it."""
    folder = Path(_FOLDER.name) / f"{attention}_{num_classes}"
    values = {
        "model": {
            **{"name": "vit", "patch_size": 2, "width": 32, "depth": 2, "num_heads": 2},
            **{"mlp_dim": 32, "attention": attention, "num_classes": num_classes},
        },
        "data": {"train": "digits", "validation": "digits", "image_size": 8, "channels": 1},
        **{"steps": 60, "batch_size": 64, "precision": "fp32", "device": "cpu"},
        **{"optimizer": {"lr": 3e-3}, "evaluate_every": 20, "checkpoint_every": 20},
        **{"log_every": 5, "keep_checkpoints": 9},
    }
    train(config_file.parse(values), folder)
    return folder


def call(verb, *arguments, columns=120):
    """Call one verb on a wide terminal; gives stdout and stderr, raises what it raises."""
    app = typer.Typer()
    app.command()(verb)
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words, env={"COLUMNS": str(columns)})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr
