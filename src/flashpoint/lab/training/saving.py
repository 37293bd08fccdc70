"""Checkpoints of a run in training: whole tensors by the first process, or shards by all of them.

Weights that FSDP spreads are written by all processes, while training goes on. Everything else is
gathered and written by the first before training goes on. Either way a checkpoint is there whole
or not at all: its folder gets its name when all files are on disk and their checksums noted.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from flashpoint.lab.runs import checkpoints
from flashpoint.lab.training import checkpoint_tensors
from flashpoint.lab.training.checkpoint_tensors import Checkpoint
from flashpoint.lab.training.sharded_state import ShardedSave, load_shards
from flashpoint.lab.training.sharing import Shared
from flashpoint.lab.training.whole_state import gather_state, restore_state


class _Pending(NamedTuple):
    """A checkpoint that is being written, and what follows."""

    step: int
    state: Mapping[str, Any]
    save: ShardedSave
    then: Callable[[], None]


class Saver:
    """Writes and reads the checkpoints of a run; all processes call each method.

    Args:
        folder: of all checkpoints.
        model, optimizer: what is saved.
    """

    def __init__(self, folder: Path, model: Shared, optimizer: torch.optim.Optimizer) -> None:
        self.folder, self.model, self.optimizer = folder, model, optimizer
        self.ranks = model.ranks
        # Which rows of a fused qkv a process has is no shard that PyTorch could put together.
        self.uses_shards = model.is_sharded and model.heads is None
        self._group: dist.ProcessGroup | None = None
        if self.uses_shards:
            group: Any = dist.new_group(backend="gloo", timeout=self.ranks.timeout)
            self._group = group  # every process is in it
        self._pending: _Pending | None = None

    def save(self, step: int, state: Mapping[str, Any], then: Callable[[], None]) -> None:
        """Save a step; once it is on disk the first process calls ``then``."""
        self.finish()
        if self.uses_shards:
            self.ranks.on_first(lambda: checkpoints.begin(self.folder, step))
            temporary = checkpoints.temporary_folder(self.folder, step)
            save = ShardedSave(temporary, self.model, self.optimizer, self._group)
            self._pending = _Pending(step, state, save, then)
            return
        weights, moments = gather_state(self.model, self.optimizer)
        saved = Checkpoint(step=step, model=weights, optimizer=moments, state=state)

        def write() -> None:
            checkpoint_tensors.save(self.folder, saved)
            then()

        self.ranks.on_first(write)

    def finish_if_done(self) -> None:
        """Give a checkpoint its name if all processes have written it by now."""
        if self._pending is not None and not self.ranks.any(not self._pending.save.is_done):
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, if any."""
        if self._pending is None:
            return
        step, state, save, then = self._pending
        self._pending = None
        digests = {name: x for part in self.ranks.gather(save.wait()) for name, x in part.items()}

        def commit() -> None:
            checkpoints.commit(self.folder, step, digests, state)
            then()

        self.ranks.on_first(commit)

    def latest(self, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint; shards stay on disk where every process reads its own."""
        return checkpoint_tensors.latest(self.folder, say, leave_shards=self.uses_shards)

    def restore(self, saved: Checkpoint, step: int) -> None:
        """Go on from what ``latest`` gave to the first process; the others give an empty one."""
        if self.ranks.any(saved.is_left):
            load_shards(checkpoints.step_folder(self.folder, step), self.model, self.optimizer)
        else:
            restore_state(self.model, self.optimizer, dict(saved.model), dict(saved.optimizer))
