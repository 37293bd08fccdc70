"""The processes of a run: one, or those that torchrun started."""

import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from flashpoint.distributed.attendance import Attendance
from flashpoint.errors import FlashpointError, LostRankError, UnsupportedError, reason
from flashpoint.lab.runs.failure import Preempted, RunError
from flashpoint.lab.training.config import ParallelConfig

T = TypeVar("T")

START_S = 600.0
"""How long processes wait at least for all to begin: on a cold machine imports take minutes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Who this process is among all that train one model, and how they agree.

    Attributes:
        rank: number of this process; the first one, 0, writes all files.
        size: how many there are.
        device: where this process computes.
        sequence, tensor: how many share the tokens of a sample, and its heads. Those that share
            heads have numbers in a row; those that share tokens come next.
        mesh: the processes by "data", "sequence" and "tensor"; None where there is one.
        replicas: the same by "replica" and "tensor": all of one "replica" mesh have the same
            weights, or shares of them.
        timeout: how long one waits for another; None: as long as PyTorch does.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  immutable
    sequence: int = 1
    tensor: int = 1
    mesh: DeviceMesh | None = None
    replicas: DeviceMesh | None = None
    timeout: timedelta | None = None

    @property
    def data_size(self) -> int:
        """How many shares a batch's samples are cut into."""
        return self.size // (self.sequence * self.tensor)

    @property
    def data_rank(self) -> int:
        """Which of these shares this process has."""
        return self.rank // (self.sequence * self.tensor)

    @property
    def replica_size(self) -> int:
        """How many processes have parts of a batch of their own: samples, or tokens of them."""
        return self.size // self.tensor

    @property
    def replica_rank(self) -> int:
        """Which of them this process is."""
        return self.rank // self.tensor

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def mean_(self, tensor: Tensor) -> Tensor:
        """The mean over all processes, in place; no host waits for it."""
        return self.sum_(tensor).div_(self.size) if self.size > 1 else tensor

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether one process says so: the same answer everywhere, at the same step."""
        if self.size == 1:
            return flag
        votes = torch.tensor(float(flag))  # on the CPU: no GPU is waited for
        dist.all_reduce(votes)
        return bool(votes > 0)

    def max(self, number: int) -> int:
        """The largest number that a process has."""
        if self.size == 1:
            return number
        numbers = torch.tensor(number)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
        return int(numbers)

    def gather(self, value: T) -> list[T]:
        """Every process' value, everywhere; through the CPU, so that no GPU is waited for."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return cast("list[T]", values)

    def gather_by_data(self, value: T) -> list[T]:
        """A value for each share of the samples, everywhere."""
        return self.gather(value)[:: self.sequence * self.tensor]

    @property
    def place(self) -> dict[str, Any]:
        """This process among those that share samples, as batches take it."""
        return {"rank": self.data_rank, "world_size": self.data_size, "device": self.device}

    def on_first(self, do: Callable[[], object]) -> None:
        """Do something in the first process while the others wait; an error ends them all."""
        message = ""
        if self.is_first:
            try:
                do()
            except FlashpointError as error:
                if self.size == 1:
                    raise
                message = str(error)
        if self.size > 1:
            message = self.share_text(message)
        if message:
            raise RunError(message)

    def share_text(self, text: str) -> str:
        """The first process' text, everywhere."""
        if self.size == 1:
            return text
        content = text.encode()
        length = torch.tensor(len(content))
        dist.broadcast(length, 0)
        if not int(length):
            return ""
        letters = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_first:
            letters = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        dist.broadcast(letters, 0)
        return bytes(letters.tolist()).decode()


@contextmanager
def join(device: str, parallel: ParallelConfig) -> Generator[Ranks]:
    """Take part in the group that torchrun describes, if it does, and leave it at the end.

    A group that is there already is used, and left as it is.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    parallel.sizes(size)
    where = choose_device(device)
    if size == 1:
        yield Ranks(device=where)
        return
    if dist.is_initialized():
        yield _place(where, parallel)
        return
    is_gpu = where.type == "cuda"
    if is_gpu:
        torch.cuda.set_device(where)
    attendance = _meet("cpu:gloo,cuda:nccl" if is_gpu else "gloo", parallel.timeout_s)
    try:
        yield _place(where, parallel)
        dist.barrier()  # who leaves while another still talks may abort it
    except Preempted:
        dist.barrier()  # all were asked to stop; after other errors one may be alone
        raise
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        missing = attendance.describe_missing(parallel.timeout_s)
        raise LostRankError(
            f"process {dist.get_rank()} of {size} lost {missing} "
            f"({_cause(error)}). What was saved is whole: give the same command again to go on."
        ) from error
    finally:
        dist.destroy_process_group()


def _meet(backend: str, timeout_s: float | None) -> Attendance:
    """Make the group of all processes, from what torchrun says."""
    limit = None if timeout_s is None else timedelta(seconds=max(timeout_s, START_S))
    waits: dict[str, Any] = {} if limit is None else {"timeout": limit}
    try:
        store, rank, size = next(rendezvous("env://", **waits))
    except dist.DistStoreError as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise LostRankError(
            f"the processes did not meet at {where}, where process 0 waits for all. Look at their "
            "logs, or set a larger parallel.timeout_s where a start takes longer."
        ) from error
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # torchrun may keep a store over restarts, with addresses of processes
        # that are gone. Several nodes may count restarts differently: docs/scaling.md.
        start = os.environ["TORCHELASTIC_RESTART_COUNT"]
        store = cast("Any", dist).PrefixStore(f"start {start}", store)
    attendance = Attendance(store, rank, size, ("process", "processes"))
    begin = time.monotonic()
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except dist.DistStoreError as error:
        raise LostRankError(
            f"process {rank} of {size} waited {time.monotonic() - begin:.0f} s for "
            f"{attendance.describe_absent()} to begin. Look at its log, or set a larger "
            "parallel.timeout_s where a start takes longer."
        ) from error
    attendance.learn_places()
    return attendance


def _is_lost(error: RuntimeError) -> bool:
    """Whether messages could not be exchanged; gloo has no class of its own for that."""
    return isinstance(error, (dist.DistError, LostRankError)) or "gloo" in str(error)


def _cause(error: RuntimeError) -> str:
    """What gloo or NCCL says, without places in its source and addresses."""
    if isinstance(error, LostRankError) and isinstance(error.__cause__, RuntimeError):
        error = error.__cause__  # it names ranks of a sequence group, which have other numbers
    return re.split(r"[.,:;]\s|\s\[", re.sub(r"^\[[^\]]*\]\s*", "", reason(error)))[0]


def _place(device: torch.device, parallel: ParallelConfig) -> Ranks:
    """This process in the group, by data, sequence and tensor."""
    rank, size = dist.get_rank(), dist.get_world_size()
    data, sequence, tensor = parallel.sizes(size)
    names, replicas = ("data", "sequence", "tensor"), ("replica", "tensor")
    limit_s = parallel.timeout_s
    ranks = Ranks(
        rank=rank,
        size=size,
        device=device,
        sequence=sequence,
        tensor=tensor,
        mesh=init_device_mesh(device.type, (data, sequence, tensor), mesh_dim_names=names),
        replicas=init_device_mesh(device.type, (data * sequence, tensor), mesh_dim_names=replicas),
        timeout=None if limit_s is None else timedelta(seconds=limit_s),
    )
    if ranks.timeout is not None:
        _limit_waiting(ranks, ranks.timeout)
    return ranks


def _limit_waiting(ranks: Ranks, timeout: timedelta) -> None:
    """Let no group wait longer for a message."""
    from torch.distributed import distributed_c10d

    meshes = [mesh for mesh in (ranks.mesh, ranks.replicas) if mesh is not None]
    groups = [group for mesh in meshes for group in mesh.get_all_groups()]
    for group in (dist.group.WORLD, *groups):
        distributed_c10d._set_pg_timeout(timeout, group)


def choose_device(name: str) -> torch.device:
    """The device that a config's word means for this process."""
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise UnsupportedError(
            f"device 'cuda' is not available: torch {torch.__version__} sees no GPU. "
            "Ask for device cpu, or see `flashpoint doctor`."
        )
    if name == "cpu" or not has_gpu:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
