"""The folder of a run: claimed by the one that trains, read by everyone else."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from torch import nn

from flashpoint.convert.weights import listed
from flashpoint.errors import InputError, describe
from flashpoint.lab.runs import beginning, checkpoints
from flashpoint.lab.runs.metrics import read_metrics
from flashpoint.lab.runs.names import (
    CHECKPOINTS,
    CONFIG,
    DATA,
    EVENTS,
    METRICS,
    MODEL,
    RECORD,
    SAVED,
    START,
)
from flashpoint.lab.runs.pack import packed_in
from flashpoint.lab.runs.record import Record
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.runs.stored import exists, read_text
from flashpoint.lab.runs.writing import replace_file, writing
from flashpoint.lab.training import checkpoint_tensors, config_file
from flashpoint.lab.training.low_rank import merged
from flashpoint.lab.training.task_registry import task_class

if TYPE_CHECKING:
    from flashpoint.lab.training.config import TrainConfig

MAY_CHANGE = (
    *("accumulate", "checkpoint_every", "compile", "data.pieces.file", "data.workers"),
    *("data.max_broken_share", "device"),
    *("evaluate_every", "keep_checkpoints", "log_every", "max_bad_steps", "parallel"),
    *("parallel.data", "parallel.sequence", "parallel.tensor", "parallel.shard"),
    *("parallel.strategy", "parallel.timeout_s"),
)
"""Keys that may differ when a run goes on: how it is computed and watched, not what it is.

Of pieces the content counts, which lies in the run's folder, and not where they came from.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run on disk, finished or not.

    Attributes:
        path: its folder.
        config: of the task's class, complete, so that the model can be built from it alone.
        record: final numbers; None while the run has not ended.
        metrics: the lines of metrics.jsonl.
    """

    path: Path
    config: Any
    record: Record | None
    metrics: list[dict[str, Any]]

    @property
    def steps(self) -> list[int]:
        """Steps of which there are checkpoints."""
        return checkpoints.saved_steps(self.path / CHECKPOINTS)

    @property
    def best_step(self) -> int:
        """The checkpoint with the best validation, or the last where none was validated."""
        validations = {m["step"]: m for m in self.metrics if m["kind"] == "validation"}
        present = {step: validations[step] for step in self.steps if step in validations}
        best = best_of(present, self.config)
        return self._last_step if best is None else best

    @property
    def _last_step(self) -> int:
        if not self.steps:
            raise InputError(f"{self.path} has no checkpoint yet.")
        return self.steps[-1]

    def find_step(self, which: Literal["best", "last"] | int) -> int:
        """The step of a checkpoint: "best" by validation, "last", or a step that has one."""
        step = {"best": self.best_step, "last": self._last_step}.get(cast("str", which), which)
        if step not in self.steps:
            have = ", ".join(map(str, self.steps)) or "none"
            raise InputError(f"{self.path} has no checkpoint of step {which}. It has: {have}.")
        return int(step)

    def load_model(self, which: Literal["best", "last"] | int = "best") -> nn.Module:
        """The model with the weights of a checkpoint, on the CPU, in evaluation mode.

        Args:
            which: as for ``find_step``.
        """
        step = self.find_step(which)
        try:
            weights = checkpoint_tensors.load_tensors(self.path / CHECKPOINTS, step, MODEL)
        except checkpoints.DamagedError as error:
            others = ", ".join(str(other) for other in self.steps if other != step)
            raise InputError(
                f"checkpoint step_{step} of {self.path} is damaged: {error}. Take another one "
                f"(there are: {others or 'none'}), or restore it."
            ) from error
        model = self.config.new_model()
        try:
            model.load_state_dict(merged(weights))
        except RuntimeError as error:
            raise InputError(
                f"the weights of step_{step} in {self.path} do not fit the model of its {CONFIG}: "
                f"{describe(str(error))}. Restore the {CONFIG} that the run wrote."
            ) from error
        return model.eval()


def open_run(path: Path | str) -> Run:
    """Read a run's folder."""
    path = Path(path)
    if not exists(path / CONFIG):
        found = run_and_step(path)
        if found is not None:
            raise InputError(
                f"{path} is a checkpoint, not a run's folder. Give {found[0]}, and --checkpoint "
                f"{found[1]} for this step."
            )
        raise InputError(
            f"{path} is not a run's folder: it has no {CONFIG}. Give one that `flashpoint train` "
            "wrote."
        )
    return Run(
        path=path,
        config=config_file.load(path / CONFIG),
        record=Record.read(path),
        metrics=read_metrics(path),
    )


def run_and_step(path: Path) -> tuple[Path, int] | None:
    """Of RUN/checkpoints/step_N, or the weights in it, the run's folder and N; None of others."""
    path = Path(os.path.abspath(path))
    folder = path.parent if path.name == MODEL else path
    step, run = folder.name.removeprefix("step_"), folder.parent.parent
    is_place = folder.parent.name == CHECKPOINTS and folder.name == f"step_{step}"
    if not (is_place and step.isdecimal() and (run / CONFIG).is_file()):
        return None
    return run, int(step)


def best_of(validations: Mapping[int, Mapping[str, Any]], config: "TrainConfig") -> int | None:
    """The step with the best validation; ties go to the later one. None if nothing was validated.

    A later step has seen more data: of two checkpoints that cannot be told apart it is the
    one that the run was trained for.
    """
    score = task_class(config).score
    return max(validations, key=lambda step: (score(validations[step]), step), default=None)


class LostError(InputError):
    """A run's checkpoints are gone, so that it would begin anew."""


def settle(
    path: Path, config: "TrainConfig", identity: Mapping[str, Any], *, fresh: bool = False
) -> None:
    """Bring a run's folder in order for training; all is read before anything is written.

    Args:
        path: the folder, held by ``claim``.
        config: of the run that is to go on or to begin there; an old run's must be the same.
        identity: of its data, likewise.
        fresh: remove what an earlier run left; refused where files there are not a run's.
    """
    if (study := packed_in(path)) is not None:
        _settle_packed(path, study, config, fresh=fresh)
        return
    if fresh:
        _clear(path, config)
    _require_same_config(path, config)
    beginning.require_same_data(path, identity)
    is_finished = Record.read(path) is not None
    if not is_finished:
        _require_checkpoints(path)
    for name, origin in config.files().items():
        _keep(path / name, origin.read_bytes())
    replace_file(path / CONFIG, config_file.dump(config).encode())
    beginning.write_data(path, identity)
    if not is_finished:
        with writing(path / CHECKPOINTS):
            (path / CHECKPOINTS).mkdir(exist_ok=True)


def _settle_packed(path: Path, study: Path, config: "TrainConfig", *, fresh: bool) -> None:
    """Leave a trial in its pack if it has finished and may stay; else say how to get it out."""
    if fresh or Record.read(path) is None:
        raise InputError(
            f"{path} is packed. Make its folder again: flashpoint study unpack {study}. Or pass "
            "another --out."
        )
    _require_same_config(path, config)


def _clear(path: Path, config: "TrainConfig") -> None:
    """Remove what an earlier run wrote, and nothing else; refused where no run wrote it."""
    names = (SAVED, RECORD, METRICS, START, DATA, *config.files(), CONFIG)
    needed = [origin.resolve() for origin in config.files().values()]
    files = [
        file
        for file in (*sorted(path.glob(EVENTS)), *(path / name for name in names))
        if os.path.lexists(file) and file.resolve() not in needed
    ]
    folders = checkpoints.leftovers(path / CHECKPOINTS)
    if (files or folders) and not _is_run(path):
        found = listed([str(found.relative_to(path)) for found in (*files, *folders)])
        raise InputError(
            f"{path} is not a run's folder: no run wrote what is there ({found}), so --fresh "
            "removes nothing. Pass another --out, or remove them yourself."
        )
    with writing(path):
        (path / SAVED).unlink(missing_ok=True)  # or what it tells of would count as lost
        files = [file for file in files if file.name != SAVED]
        for folder in folders:
            checkpoints.remove(folder)
        for file in files:  # the config last: whoever is killed meanwhile leaves a run's folder
            file.unlink()


def _is_run(path: Path) -> bool:
    """Whether ``train`` wrote into a folder: its config, its curve or a checkpoint.

    One of them is enough: to begin anew is a way out where another is broken.
    """
    for found in (_wrote_config, read_metrics):
        with contextlib.suppress(InputError):
            if found(path):
                return True
    folder = path / CHECKPOINTS
    return any(checkpoints.is_written(folder, step) for step in checkpoints.saved_steps(folder))


def _wrote_config(path: Path) -> bool:
    """Whether a folder's config is complete and in the form that ``settle`` gives it."""
    return config_file.dump(config_file.load(path / CONFIG)) == read_text(path / CONFIG)


def _require_checkpoints(path: Path) -> None:
    """Refuse a run that saved a checkpoint and has none left.

    Earlier versions noted none; but only a step that was saved is validated.
    """
    if checkpoints.saved_steps(path / CHECKPOINTS):
        return
    validated = [line["step"] for line in read_metrics(path) if line["kind"] == "validation"]
    saved = checkpoints.noted_step(path) or max(validated, default=0)
    if saved:
        raise LostError(
            f"{path / CHECKPOINTS} has no checkpoint, but the run saved one of step {saved}: it "
            "was removed or lies elsewhere. Restore it, or pass --fresh to begin anew without "
            "the curve so far."
        )


def _require_same_config(path: Path, config: "TrainConfig") -> None:
    file = path / CONFIG
    if exists(file):
        stored = _completed(config_file.load(file))
        changed = config_file.differences(stored, plain(config))
        fatal = {key: pair for key, pair in changed.items() if key not in MAY_CHANGE}
        if fatal:
            first = "; ".join(
                f"{key} was {old!r}, is {new!r}" for key, (old, new) in fatal.items()
            )
            raise InputError(
                f"{path} holds a run with another config: {first}. Pass another --out, or "
                "train's --fresh to begin this one anew."
            )


def _completed(config: "TrainConfig") -> dict[str, Any]:
    """A stored config as plain data, with settings that models have got since it was written."""
    settings = plain(config.complete_model())
    return {**plain(config), "model": {"name": config.model.name, **settings}}


def _keep(file: Path, content: bytes) -> None:
    """Write a file that never changes in the life of a run."""
    if not file.exists():
        replace_file(file, content)
    elif file.read_bytes() != content:
        raise InputError(
            f"{file} differs from what this config gives. Pass another --out, or remove the "
            "folder."
        )
