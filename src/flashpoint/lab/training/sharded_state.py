"""Checkpoints of a model that FSDP spreads: every process writes and reads its own share.

They are PyTorch's distributed checkpoints in safetensors, without pickle: ``shard-R-...`` holds
what process R - 1 had. Any number of processes can read them, and one alone as whole tensors.
PyTorch's part is imported where it is used, since that takes two seconds.
"""

import warnings
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from flashpoint.errors import reason
from flashpoint.lab.runs.checkpoints import digest_of
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.runs.names import MODEL, OPTIMIZER
from flashpoint.lab.runs.writing import writing
from flashpoint.lab.training.sharing import Shared
from flashpoint.lab.training.whole_state import make_moment, named_moments

PREFIXES = {MODEL: "model.", OPTIMIZER: "optimizer."}
"""What the names of tensors begin with, by the file that holds them in a checkpoint of one."""


class ShardedSave:
    """A checkpoint that is being written while training goes on.

    The tensors are copied at once, so the model may change.

    Args:
        folder: where to; it is there.
        model, optimizer: what to save.
        group: of processes, for this alone, since a thread talks there.
    """

    def __init__(
        self, folder: Path, model: Shared, optimizer: torch.optim.Optimizer, group: Any
    ) -> None:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self._folder, self._rank = folder, model.ranks.rank
        tensors = _tensors_of(model, optimizer)
        files = {name: 1 + name.startswith(PREFIXES[OPTIMIZER]) for name in tensors}
        writer = HuggingFaceStorageWriter(str(folder), files, save_distributed=True)
        with _one_line(f"{folder} cannot be written"):
            saving = async_save(tensors, storage_writer=writer, process_group=group)
        self._future = cast("Future[Any]", saving)

    @property
    def is_done(self) -> bool:
        """Whether this process has nothing more to write."""
        return self._future.done()

    def wait(self) -> dict[str, str]:
        """Until all processes have written; gives the SHA-256 of this process' files, by name."""
        with _one_line(f"{self._folder} cannot be written"):
            self._future.result()
        with writing(self._folder):
            own = self._folder.glob(f"shard-{self._rank + 1:05}-*")
            return {path.name: digest_of(path) for path in own}


def load_shards(folder: Path, model: Shared, optimizer: torch.optim.Optimizer) -> None:
    """Fill a model and its optimizer, each process its own share."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    parameters = dict(model.module.named_parameters())
    for name, about in _contents(folder, PREFIXES[OPTIMIZER]).items():
        owner, _, kind = name.rpartition(".")
        make_moment(optimizer, parameters[owner], kind, is_number=not about.size)
    reader = HuggingFaceStorageReader(str(folder))
    with _one_line(f"{folder} does not fit the model"):
        load(_tensors_of(model, optimizer), storage_reader=reader)


def read_whole(folder: Path, part: str) -> dict[str, Tensor]:
    """Tensors of ``MODEL`` or ``OPTIMIZER`` by name, whole, read by this process alone."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    prefix = PREFIXES[part]
    tensors = {
        name: torch.empty(about.size, dtype=about.properties.dtype)
        for name, about in _contents(folder, prefix).items()
    }
    named: dict[str, Any] = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    reader = HuggingFaceStorageReader(str(folder))
    with _one_line(f"{folder} cannot be read"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*assuming the intent is to load in a single process")
        load(named, storage_reader=reader, no_dist=True)
    return tensors


def _tensors_of(model: Shared, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """This process' shares of everything, by name."""
    parts: Mapping[str, Mapping[str, Tensor]] = {
        PREFIXES[MODEL]: model.module.state_dict(),
        PREFIXES[OPTIMIZER]: named_moments(model, optimizer),
    }
    return {
        f"{prefix}{name}": tensor
        for prefix, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def _contents(folder: Path, prefix: str) -> dict[str, Any]:
    """Sizes and dtypes of the tensors whose names begin so, by the rest of their names."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    names = [name for name in found if name.startswith(prefix)]
    return {name.removeprefix(prefix): found[name] for name in names}


@contextmanager
def _one_line(what: str) -> Generator[None]:
    """Say in one line which process could not do its part, and why."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise RunError(f"{what}: process {rank}: {reason(cast('Exception', cause))}.") from error
