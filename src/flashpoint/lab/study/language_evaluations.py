"""What language models are asked after their run: as they are, converted, and adapted."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from flashpoint.lab.data.text.pieces import load_pieces
from flashpoint.lab.evaluation.language import (
    TestText,
    measure_all,
    measure_likelihood,
    open_test_text,
    take_prompts,
)
from flashpoint.lab.runs.names import PIECES
from flashpoint.lab.training import config_file
from flashpoint.lab.training.adapting_language import AdaptLanguageTask
from flashpoint.lab.training.adapting_recipe import adapting_values
from flashpoint.lab.training.loop import train
from flashpoint.lab.training.ranks import Ranks, choose_device
from flashpoint.lab.training.run_folder import Run, open_run

Numbers = dict[str, float]

LEAST_UPDATES = 5
"""Of an adaptation, however small its share: one matches layers, four fine-tune."""
NUM_PROMPTS = 64


def ask_language_model(
    run: Run,
    model: nn.Module,
    *,
    data: str | None = None,
    distances: Sequence[int] = (),
    count: int = NUM_PROMPTS,
) -> Numbers:
    """Of the run's own model, which judges what it writes itself; the text's own beside it."""
    text = _text(run, data)
    found = measure_all(model, text, judge=model, distances=distances, count=count)
    real = take_prompts(text, count)[:, : text.length // 2 + text.length // 4]
    return {**found, "text": measure_likelihood(model, real, text.length // 2, text)}


def ask_converted(
    run: Run,
    model: nn.Module,
    *,
    attention: str,
    layers: str = "all",
    data: str | None = None,
    distances: Sequence[int] = (),
    count: int = NUM_PROMPTS,
) -> Numbers:
    """Of the run's model with other attention: as it is, and calibrated."""
    text = _text(run, data)
    values = adapting_values(run, run.find_step("last"), attention, LEAST_UPDATES, layers)
    task = AdaptLanguageTask(_parsed(values), Ranks(device=text.device))
    found: Numbers = {}
    for name, student in task.students():
        answers = measure_all(student, text, judge=model, distances=distances, count=count)
        found |= {f"{name}_{key}": value for key, value in answers.items()}
    return found


def ask_adapted(
    run: Run,
    model: nn.Module,
    *,
    attention: str,
    share: float,
    layers: str = "all",
    data: str | None = None,
    distances: Sequence[int] = (),
    count: int = NUM_PROMPTS,
) -> Numbers:
    """Of the run's model, adapted in a share of its updates."""
    assert run.record is not None  # the run has ended
    text = _text(run, data)
    total = max(LEAST_UPDATES, round(share * run.record.steps))
    values = adapting_values(run, run.find_step("last"), attention, total, layers)
    with TemporaryDirectory() as folder:
        train(_parsed(values), Path(folder, "adapted"))
        student = open_run(Path(folder, "adapted")).load_model("last").to(text.device)
    return measure_all(student, text, judge=model, distances=distances, count=count)


def _text(run: Run, data: str | None) -> TestText:
    pieces = load_pieces(run.path / PIECES)
    return open_test_text(run.config, pieces, data, choose_device(run.config.device))


def _parsed(values: dict[str, Any]) -> Any:
    return config_file.parse(values)
