"""What a run says of its model, as a part of a model card in Markdown."""

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from flashpoint.lab.report.metrics import METRICS
from flashpoint.lab.runs.formats import DASH
from flashpoint.lab.runs.run_files import RunFiles, mapping_of, number

_MADE_WITH = ("device", "torch", "flashpoint", "commit", "python", "time_utc")


def card_of_run(run: RunFiles, step: int) -> str:
    """Numbers of one checkpoint's validation, the data, how it was trained, and with what."""
    parts = [_validation(run, step), _training(run), _made_with(run)]
    return "\n" + "\n\n".join(parts) + "\n"


def _validation(run: RunFiles, step: int) -> str:
    lines = [line for line in run.validation if line.get("step") == step]
    found: Mapping[str, Any] = lines[-1] if lines else {}
    rows = [
        (metric.label, metric.show(value))
        for metric in METRICS
        if (value := number(found, metric.name)) is not None
    ]
    where = _place(mapping_of(run.config, "data").get("validation"))
    title = f"## Numbers\n\nStep {step}, on the validation data, `{where}`."
    if not rows:
        return f"{title} This step was not validated."
    return f"{title}\n\n{_table(rows)}"


def _training(run: RunFiles) -> str:
    data, optimizer = mapping_of(run.config, "data"), mapping_of(run.config, "optimizer")
    stated = {
        "data": f"`{_place(data.get('train'))}`",
        "steps": run.record.get("steps"),
        "epochs": _short(run.record.get("epochs")),
        str(run.record.get("unit", "samples")): run.record.get("samples"),
        "batch size": run.config.get("batch_size"),
        "learning rate": optimizer.get("lr"),
        "precision": run.config.get("precision"),
        "seed": run.config.get("seed"),
        "seconds": _short(run.record.get("seconds")),
    }
    rows = [(name, value) for name, value in stated.items() if value is not None]
    ended = "" if run.record else " The run had not ended."
    return f"## Training\n\nBy `flashpoint train`.{ended}\n\n{_table(rows)}"


def _made_with(run: RunFiles) -> str:
    stated = mapping_of(run.record, "environment")
    rows = [(name, stated[name]) for name in _MADE_WITH if stated.get(name) is not None]
    return f"## Made with\n\n{_table(rows) if rows else DASH}"


def _table(rows: Iterable[tuple[str, object]]) -> str:
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines])


def _short(value: object) -> str | None:
    """A number as a reader wants it."""
    return f"{value:.4g}" if isinstance(value, (int, float)) else None


def _place(where: object) -> str:
    """Data as a config names them, without the folders of a machine.

    Example:
        >>> _place("cifar10:/data/mine/cifar-10"), _place("digits"), _place("/data/flowers")
        ('cifar10:cifar-10', 'digits', 'flowers')
    """
    if not isinstance(where, str):
        return DASH
    return ":".join(PurePath(part).name or part for part in where.split(":"))
