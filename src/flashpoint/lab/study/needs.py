"""What trials need and cost, before any of them begins: their data, and operations."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from flashpoint.errors import InputError
from flashpoint.files import json_text
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.places import folder_and_split
from flashpoint.lab.data.small_sets import PREPARED
from flashpoint.lab.data.text.passages import names_passages
from flashpoint.lab.data.text.prepared import is_prepared
from flashpoint.lab.study.plan import Training, Trial
from flashpoint.lab.study.store import plain_trial

Kind = Literal["images", "documents", "passages"]
_KINDS: Mapping[object, Kind] = {"text": "documents", "language": "passages"}
"""What tasks learn from; those that are not here, from images."""


class Need(NamedTuple):
    """A place, as configs name it, and what is there."""

    place: str
    kind: Kind


def needs_of(trials: Sequence[Trial]) -> list[Need]:
    """All that the trials' configs train and validate on, each once."""
    found = (need for trial in trials for need in _needs(plain_trial(trial)["work"]))
    return list(dict.fromkeys(found))


def _needs(content: Any) -> Iterator[Need]:
    """Of plain data, in which configs are at any depth."""
    if not isinstance(content, dict):
        return
    section = cast(Mapping[str, Any], content).get("data")
    if isinstance(section, dict):
        for split in ("train", "validation"):
            if isinstance(place := section.get(split), str):
                yield Need(place, _KINDS.get(content.get("task"), "images"))
    for value in content.values():
        yield from _needs(value)


def require_data(trials: Sequence[Trial]) -> None:
    """Refuse with one line what no trial could read."""
    for need in needs_of(trials):
        _require(need)


_OPTIONS: Mapping[Kind, tuple[str, str]] = {
    "images": ("--images", "cifar10:DIR or a folder of class folders"),
    "documents": ("--documents", "a folder of `flashpoint data prepare`"),
    "passages": ("--passages", "a folder of .txt or .jsonl files"),
}


def _require(need: Need) -> None:
    option, example = _OPTIONS[need.kind]
    if not need.place:
        raise InputError(f"this scale has no data of its own: pass {option} WHERE, as {example}.")
    kind, colon, rest = need.place.partition(":")
    if need.kind == "documents":
        folder, _ = folder_and_split(rest if kind == "documents" else need.place, "train")
        if (kind == "documents" or not colon) and not is_prepared(folder):
            raise InputError(
                f"{folder} holds no prepared documents. Make them: flashpoint data prepare "
                f"en-de-docs --to {folder}. Or pass {option} WHERE."
            )
    elif need.kind == "passages":
        folder, _ = folder_and_split(rest if kind == "passages" else need.place, "train")
        if (kind == "passages" or not names_passages(need.place)) and not folder.is_dir():
            raise InputError(
                f"{folder} is no folder of passages. Make them: flashpoint data prepare linux-doc "
                f"--to {folder}. Or pass {option} WHERE."
            )
    else:
        is_missing = not colon and kind != "digits" and not Path(kind).expanduser().is_dir()
        if kind in PREPARED or is_missing:
            open_source(need.place, "train")  # says what is missing, and how to make it


def training_flops(trials: Sequence[Trial]) -> list[float]:
    """Operations of the matrix products in training, of each trial; 0 of measurements.

    Trials that differ in their seed only are counted once: counting opens the data.
    """
    known: dict[str, float] = {}
    found: list[float] = []
    for trial in trials:
        if not isinstance(trial.work, Training):
            found.append(0.0)
            continue
        key = json_text({**trial.work.config, "seed": 0})
        if key not in known:
            known[key] = _flops(trial.work)
        found.append(known[key])
    return found


def _flops(work: Training) -> float:
    from flashpoint.lab.study.powers import register_powers
    from flashpoint.lab.training import config_file
    from flashpoint.lab.training.ranks import Ranks
    from flashpoint.lab.training.task_registry import task_class

    register_powers()
    config = config_file.parse(work.config)
    task = task_class(config)(config, Ranks())
    return task.samples_until(config.total_steps(task.steps_per_epoch)) * task.flops_per_sample
