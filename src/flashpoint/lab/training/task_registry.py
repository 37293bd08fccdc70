"""Tasks by name: what the key ``task`` of a config may say."""

from importlib import import_module
from typing import TYPE_CHECKING

from flashpoint.errors import InputError, describe, hint

if TYPE_CHECKING:
    from flashpoint.lab.training.config import TrainConfig
    from flashpoint.lab.training.task import Task

_HOMES = {
    "vision": "flashpoint.lab.training.vision",
    "text": "flashpoint.lab.training.text",
    "language": "flashpoint.lab.training.language",
    "adapt": "flashpoint.lab.training.adapting",
    "adapt_language": "flashpoint.lab.training.adapting_language",
}
"""Modules with a ``CONFIG`` class, a subclass of TrainConfig, and a ``TASK`` class."""


def config_class(name: object) -> "type[TrainConfig]":
    """The class of configs of a task."""
    return import_module(_home(name)).CONFIG


def task_class(config: "TrainConfig") -> "type[Task]":
    """The class of the task of a config."""
    return import_module(_home(config.task)).TASK


def _home(name: object) -> str:
    if not isinstance(name, str) or name not in _HOMES:
        raise InputError(
            f"task={describe(name)} is unknown. {hint(name, _HOMES)}Known: {', '.join(_HOMES)}."
        )
    return _HOMES[name]
