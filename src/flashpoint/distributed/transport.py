"""What ranks send one another: a few collectives that count elements and never wait in silence.

Tensors that belong together travel as one message. Sums arrive in fp32 (fp64 for fp64): parts are
sent as they are and added by the receiver, so each is rounded once, in any order. NCCL adds those
of fp32 and fp64 itself.
"""

import math
import re
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from flashpoint.distributed.attendance import Attendance
from flashpoint.errors import InputError, LostRankError, describe, reason
from flashpoint.ops.check import check_number

Shape = tuple[int, ...]
_HAS_SINGLE = hasattr(dist, "all_gather_single")  # their names since torch 2.13
_all_gather: Any = getattr(dist, "all_gather_single" if _HAS_SINGLE else "all_gather_into_tensor")
_reduce_scatter: Any = getattr(
    dist, "reduce_scatter_single" if _HAS_SINGLE else "reduce_scatter_tensor"
)
_WIDE = (torch.float32, torch.float64)


def widened(dtype: torch.dtype) -> torch.dtype:
    """What numbers of a dtype are added up in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Transport:
    """Messages among the ranks of a group.

    Args:
        group: the ranks.
        name: of what sends them, for errors.
        timeout_s: how long to wait for a message on a CPU; None: as long as the group does. NCCL
            always takes the group's own.

    Attributes:
        sent: elements that this rank has sent to others.
        has_nccl: whether tensors on GPUs go by NCCL.
    """

    def __init__(self, group: ProcessGroup, name: str, timeout_s: float | None = None) -> None:
        if timeout_s is not None and check_number("timeout_s", timeout_s) <= 0:
            raise InputError(f"timeout_s must be positive, or None. Got {describe(timeout_s)}.")
        self._group, self.name, self.timeout_s = weakref.ref(group), name, timeout_s
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.sent = 0
        self.has_nccl = "nccl" in str(dist.get_backend_config(group))
        self._attendance = _attendance_of(group)

    @property
    def group(self) -> ProcessGroup:
        """The ranks. Torch holds the group until it is destroyed; nothing here does."""
        found = self._group()
        if found is None:
            raise InputError(
                f"the process group of this {self.name} was destroyed. Make another one for a "
                "group that is there."
            )
        return found

    def all_gather(
        self, tensors: Sequence[Tensor], shapes: Sequence[Sequence[Shape]], what: str
    ) -> list[list[Tensor]]:
        """Every rank's tensors, by rank; ``shapes`` are theirs, by rank. Short ones are padded."""
        dtype, dtypes = tensors[0].dtype, [x.dtype for x in tensors]
        longest = max(_packed_numel(of_rank, dtypes, dtype) for of_rank in shapes)
        message = _pad(pack(tensors, dtype), longest)
        found = message.new_empty(self.size, longest)
        self.sent += (self.size - 1) * longest
        self._run(what, lambda: _all_gather(found.view(-1), message, self.group, async_op=True))
        return [_unpack(row, of, dtypes) for row, of in zip(found, shapes, strict=True)]

    def reduce_scatter(self, parts: Sequence[Sequence[Tensor]], what: str) -> list[Tensor]:
        """Sums over ranks of what each has for this one; ``parts`` are for whom, by rank."""
        mine = parts[self.rank]
        if not self._adds_on_the_way(mine):
            shapes = [[tuple(x.shape) for x in mine]] * self.size
            found = self.all_to_all(parts, shapes, what)
            return [_sum([of_rank[i] for of_rank in found]) for i in range(len(mine))]
        dtype = mine[0].dtype
        packed = [pack(tensors, dtype) for tensors in parts]
        longest = max(len(row) for row in packed)
        message = torch.cat([_pad(row, longest) for row in packed])
        total = message.new_empty(longest)
        self.sent += (self.size - 1) * longest
        self._run(what, lambda: _reduce_scatter(total, message, group=self.group, async_op=True))
        return _unpack(total, [tuple(x.shape) for x in mine], [x.dtype for x in mine])

    def _adds_on_the_way(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the library may add up parts: gloo would, but waits there without a timeout."""
        return self.has_nccl and all(x.is_cuda and x.dtype in _WIDE for x in tensors)

    def all_to_all(
        self, parts: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[Shape]], what: str
    ) -> list[list[Tensor]]:
        """What every rank has for this one, by rank; ``shapes`` are those of what arrives."""
        dtype, dtypes = parts[0][0].dtype, [x.dtype for x in parts[0]]
        packed = [pack(tensors, dtype) for tensors in parts]
        message = torch.cat(packed)
        splits = [len(row) for row in packed]
        sizes = [_packed_numel(of_rank, dtypes, dtype) for of_rank in shapes]
        found = message.new_empty(sum(sizes))
        self.sent += sum(splits) - splits[self.rank]
        self._run(
            what,
            lambda: dist.all_to_all_single(
                found, message, sizes, splits, self.group, async_op=True
            ),
        )
        rows = found.split(sizes)
        return [_unpack(row, of, dtypes) for row, of in zip(rows, shapes, strict=True)]

    def exchange_numbers(self, numbers: Sequence[int], what: str = "shapes") -> list[list[int]]:
        """A few integers of every rank, by rank. They do not count as sent."""
        return self._exchange(torch.tensor(numbers), what).tolist()

    def exchange_texts(self, mine: str, what: str) -> list[str]:
        """A text of every rank, by rank, for an error that all of them give."""
        row = torch.frombuffer(bytearray(mine.encode()), dtype=torch.uint8)
        sizes = [size for (size,) in self.exchange_numbers([len(row)], what)]
        rows = self._exchange(_pad(row, max(sizes)), what)
        pairs = zip(rows, sizes, strict=True)
        return [bytes(row[:size].tolist()).decode() for row, size in pairs]

    def _exchange(self, mine: Tensor, what: str) -> Tensor:
        """A row of every rank, of one length, on the host."""
        found = mine.new_empty(self.size, len(mine))
        group = control_group(self.group)
        self._run(
            what, lambda: _all_gather(found.view(-1), mine, group, async_op=True), on_host=True
        )
        if self._attendance is not None:  # all ranks have come
            self._attendance.learn_places()
        return found

    def start(self, sends: "Sequence[Send]", receives: "Sequence[Receive]") -> "Pending":
        """Begin to send and receive; what is computed meanwhile hides it."""
        sends = [send for send in sends if len(send.message)]  # shards may be empty
        receives = [receive for receive in receives if len(receive.message)]
        self.sent += sum(len(send.message) for send in sends)
        pairs = [(dist.isend, x) for x in sends] + [(dist.irecv, x) for x in receives]
        operations = [self._point_to_point(way, x.message, x.peer) for way, x in pairs]
        works: list[Any] = []

        def begin() -> None:
            works.extend(dist.batch_isend_irecv(operations) if operations else [])

        peers = sorted({x.peer for x in (*sends, *receives)})
        what = " and ".join(dict.fromkeys(x.what for x in (*receives, *sends)))
        self._guard(what, peers, begin)
        return Pending(self, works, peers, what)

    def _point_to_point(self, operation: Any, message: Tensor, peer: int) -> Any:
        return dist.P2POp(operation, message, dist.get_global_rank(self.group, peer), self.group)

    def _run(self, what: str, begin: Any, *, on_host: bool = False) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank]

        def run() -> None:
            self.wait_for(begin(), on_host)

        self._guard(what, others, run)

    def wait_for(self, work: Any, on_host: bool = False) -> None:
        """Until a message is there; on a GPU until the stream knows that it will be."""
        by_nccl = not on_host and dist.get_backend(self.group) == "nccl"
        if self.timeout_s is None or by_nccl:
            work.wait()
        else:
            work.wait(timedelta(seconds=self.timeout_s))

    def _guard(self, what: str, peers: Sequence[int], action: Any) -> None:
        try:
            action()
        except RuntimeError as error:
            raise self._lost(what, peers, error) from error

    def _lost(self, what: str, peers: Sequence[int], error: RuntimeError) -> LostRankError:
        if self._attendance is not None:
            missing = self._attendance.describe_missing(self._patience_s(), peers)
        else:
            missing = f"rank{'s' if len(peers) > 1 else ''} {', '.join(map(str, peers))}"
        return LostRankError(
            f"{self.name}: rank {self.rank} of {self.size} lost {missing}, while it exchanged "
            f"{what} ({_clause(error)}). A lost rank died, hangs or makes another call: look at "
            "its log."
        )

    def _patience_s(self) -> float | None:
        """How long a message may take: what the caller said, or else the group, if it can tell."""
        if self.timeout_s is not None:
            return self.timeout_s
        group: Any = self.group
        with suppress(AttributeError, RuntimeError):  # not every backend has options
            return group._get_backend(group._device_types[0]).options._timeout.total_seconds()
        return None


class Send(NamedTuple):
    """A message on its way to a rank of the group; see ``pack``."""

    peer: int
    message: Tensor
    what: str


class Receive:
    """Room for tensors of one dtype from a rank of the group."""

    def __init__(self, peer: int, shapes: Sequence[Shape], like: Tensor, what: str) -> None:
        self.peer, self.shapes, self.what = peer, shapes, what
        self.message = like.new_empty(sum(map(math.prod, shapes)))

    @property
    def tensors(self) -> list[Tensor]:
        """What has arrived."""
        return _unpack(self.message, self.shapes, [self.message.dtype] * len(self.shapes))


class Pending:
    """Messages that are on their way."""

    def __init__(
        self, transport: Transport, works: list[Any], peers: list[int], what: str
    ) -> None:
        self.transport, self.works, self.peers, self.what = transport, works, peers, what

    def wait(self) -> None:
        """Until all are through."""
        for work in self.works:
            self.transport._guard(
                self.what, self.peers, lambda work=work: self.transport.wait_for(work)
            )


def _clause(error: RuntimeError) -> str:
    """The first clause of what gloo or NCCL says, without the place in its source."""
    said = re.sub(r"^\[[^\]]*\]\s*", "", reason(error))
    return re.split(r"[.,:;]\s|\s\[", said)[0]


_attendances: weakref.WeakKeyDictionary[ProcessGroup, Attendance] = weakref.WeakKeyDictionary()
"""By group, for as long as it lives: gloo's threads would run on into the end of the process."""
_names: list[str] = []
"""Of the groups with an attendance; one that was destroyed leaves its name to the next."""


def _attendance_of(group: ProcessGroup) -> Attendance | None:
    """Who is there, by the store that the processes met at; None where they met without one."""
    store: Any = dist.distributed_c10d._get_default_store()
    if store is None:  # by MPI
        return None
    if group not in _attendances:
        ranks = dist.get_process_group_ranks(group)
        name = f"flashpoint group {group.group_name} of ranks {ranks}"
        own: Any = cast("Any", dist).PrefixStore(f"{name}, {_names.count(name)} before", store)
        _names.append(name)
        _attendances[group] = Attendance(own, dist.get_rank(group), len(ranks))
    return _attendances[group]


_control_groups: weakref.WeakKeyDictionary[ProcessGroup, weakref.ref[ProcessGroup]] = (
    weakref.WeakKeyDictionary()
)


def control_group(group: ProcessGroup) -> ProcessGroup:
    """The same ranks, where numbers of the host can be exchanged without waiting for a GPU."""
    if "gloo" in str(dist.get_backend_config(group)):
        return group
    known = _control_groups.get(group)
    made = None if known is None else known()
    if made is None:
        ranks = dist.get_process_group_ranks(group)
        made = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        assert isinstance(made, ProcessGroup)
        _control_groups[group] = weakref.ref(made)
    return made


def _packed_numel(
    shapes: Sequence[Shape], dtypes: Sequence[torch.dtype], dtype: torch.dtype
) -> int:
    widths = [x.itemsize // dtype.itemsize for x in dtypes]
    return sum(w * math.prod(shape) for w, shape in zip(widths, shapes, strict=True))


def pack(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """All elements in a row; those of a wider dtype as several."""
    rows = [x.detach().reshape(-1) for x in tensors]
    rows = [x if x.dtype == dtype else _dense(x).view(dtype) for x in rows]
    return rows[0].contiguous() if len(rows) == 1 else torch.cat(rows)


def _dense(x: Tensor) -> Tensor:
    """A copy without gaps, which one element may have by its stride."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x)


def _unpack(
    message: Tensor, shapes: Sequence[Shape], dtypes: Sequence[torch.dtype]
) -> list[Tensor]:
    found: list[Tensor] = []
    start = 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        stop = start + _packed_numel([shape], [dtype], message.dtype)
        row = message[start:stop]
        if dtype != message.dtype:
            row = _dense(row).view(dtype)  # the wider ones may not lie where they can be read
        found.append(row.view(shape))
        start = stop
    return found


def _pad(row: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(row, (0, length - len(row))) if len(row) < length else row


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0].to(widened(parts[0].dtype))
    for part in parts[1:]:
        total = total + part
    return total
