"""Configs as YAML files, with changes from the command line; names and types are checked."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from flashpoint.errors import InputError, UnsupportedError, describe
from flashpoint.lab.runs.schema import build, plain
from flashpoint.lab.runs.stored import parse_yaml, read_yaml
from flashpoint.lab.training.config import ParallelConfig, TrainConfig
from flashpoint.lab.training.task_registry import config_class
from flashpoint.words import fields_of

PUBLISHED = "configs"
"""Folder of the configs that come with Flashpoint."""
Values = dict[str, Any]


def _parallel(word: str) -> Values:
    return dataclasses.asdict(ParallelConfig.parse(word))


_SHORT: dict[str, Callable[[str], Values]] = {
    "model": lambda word: {"name": word},
    "attention": fields_of,
    "cross_attention": fields_of,
    "parallel": _parallel,
}
"""Sections that may be written as one word, and the fields it fills."""


def list_published() -> list[Path]:
    """The files of this repository's configs: of the checkout, or of the installed package."""
    package = Path(__file__).resolve().parents[2]
    places = (package.parents[1] / PUBLISHED, package / PUBLISHED)
    found = next((sorted(place.glob("*.yaml")) for place in places if place.is_dir()), [])
    here = Path.cwd()
    return [file.relative_to(here) if file.is_relative_to(here) else file for file in found]


def find_published(name: str) -> Path:
    """The file of a config of this repository.

    Example:
        >>> find_published("digits").name
        'digits.yaml'
    """
    for file in list_published():
        if file.stem == name:
            return file
    raise UnsupportedError(
        f"{PUBLISHED}/{name}.yaml is neither in a checkout around Flashpoint nor in the package. "
        "Install it again."
    )


def find_config(what: str) -> Path:
    """The file that somebody means: configs/NAME of this repository is found from anywhere.

    Example:
        >>> find_config("configs/digits.yaml").is_file(), find_config("digits.yaml")
        (True, PosixPath('digits.yaml'))
    """
    path = Path(what)
    if path.is_file() or path.parent != Path(PUBLISHED):
        return path
    return next((file for file in list_published() if file.stem == path.stem), path)


def load(path: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """The config in a YAML file, changed by ``a.b=c`` texts; errors name the file."""
    values = read_yaml(path)
    try:
        return parse(values, overrides)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def parse(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """The config that plain data describe, changed by ``a.b=c`` texts.

    Example:
        >>> values = {"model": "vit_ti16", "steps": 10, "data": {"train": "a", "validation": "b"}}
        >>> config = parse(values, ["optimizer.lr=3e-4", "model.attention=softmax"])
        >>> config.optimizer.lr
        0.0003
    """
    changed = copied(values)
    for override in overrides:
        _apply(changed, override)
    return build(config_class(changed.get("task", "vision")), changed)


def dump(config: TrainConfig) -> str:
    """The whole config as YAML; ``load`` gives the same back."""
    return yaml.safe_dump(plain(config), sort_keys=False)


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], path: str = ""
) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which two configs, as plain data, differ, and both values.

    Example:
        >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
        {'b.c': (2, 3)}
    """
    found: dict[str, tuple[Any, Any]] = {}
    for key in [*one, *(key for key in other if key not in one)]:
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found |= differences(cast(Values, mine), cast(Values, theirs), f"{path}{key}.")
        elif mine != theirs:
            found[f"{path}{key}"] = (mine, theirs)
    return found


def _apply(values: Values, override: str) -> None:
    """Change ``values`` by one ``a.b=c`` text; c is read as YAML."""
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise InputError(f"--set {override!r} must be KEY=VALUE, as optimizer.lr=3e-4.")
    value = parse_yaml(text, f"--set {describe(override)}: {describe(text)} is not a YAML value")
    section = values
    for depth, name in enumerate(names[:-1]):
        inner = section.setdefault(name, {})
        if isinstance(inner, str) and name in _SHORT:
            inner = section[name] = _SHORT[name](inner)
        if not isinstance(inner, dict):
            where = ".".join(names[: depth + 1])
            raise InputError(f"--set {override!r}: {where} is {describe(inner)}, not a section.")
        section = cast(Values, inner)
    section[names[-1]] = value


def copied(values: Mapping[str, Any]) -> Values:
    """Sections of sections, none of them shared with what is given."""
    return {
        key: copied(cast(Values, value)) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }
