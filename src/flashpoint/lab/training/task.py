"""What the loop asks of a task; vision's is in vision.py."""

import math
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from flashpoint.lab.training.config import TrainConfig
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.stopping import Wish

Batch = tuple[Tensor, ...]
Numbers = Mapping[str, float]


def finite(validation: Mapping[str, float | None], name: str, *, sign: int = 1) -> float:
    """A number of a validation for a score; none, or one that is not finite, is the worst.

    Example:
        >>> finite({"loss": 0.5}, "loss", sign=-1), finite({"loss": None}, "loss", sign=-1)
        (-0.5, -inf)
    """
    value = validation.get(name)
    return -math.inf if value is None or not math.isfinite(value) else sign * value


class Objective(Protocol):
    """As much of a task as an update of the weights needs."""

    config: TrainConfig

    def loss(self, forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        """The mean loss over the samples of a batch, or of a part of one."""
        ...


class Task(Objective, Protocol):
    """A model, its data and its loss, for one process of a run.

    A new task is a module with a subclass of TrainConfig as ``CONFIG`` and a class like this as
    ``TASK``, named in task_registry.py.

    Attributes:
        config: of the run, complete: building it again needs nothing else.
        unit: what samples are called, as "images".
        shapes_vary: whether batches come in several shapes.
        steps_per_epoch: updates in which a run sees all samples once; need not be whole.
        flops_per_sample: operations of forward and backward together.
        identity: what the training data are, as plain data; a run that goes on must find the same.
        remark: what the user should know about the data before training; may be empty.
    """

    unit: str
    shapes_vary: bool
    steps_per_epoch: float
    flops_per_sample: float
    identity: Mapping[str, Any]
    remark: str

    def __init__(self, config: Any, ranks: Ranks) -> None: ...

    def begin(self, say: Callable[[str], None] = ...) -> Mapping[str, Any]:
        """Read or make what a new run starts from; gives it as plain data, or nothing.

        What takes its time says how far it is.
        It comes before ``build_model``, and never where a run goes on from a checkpoint.
        """
        ...

    def build_model(self) -> nn.Module:
        """A new model on the CPU; the loop has set the seed."""
        ...

    def batches(self, start: int) -> Generator[Batch]:
        """This process' share of batch number ``start`` and of all later ones, on the device.

        A batch is a pure function of the config and its number. All tensors of a batch have the
        samples along their first axis, and any randomness already in them.
        """
        ...

    def largest_shares(self, batch_size: int) -> list[Callable[[], Batch]]:
        """Makers of this process' share of those batches of a size that take most memory.

        Shapes, dtypes and device count, values do not: a maker may be called on fake tensors.
        """
        ...

    def bytes_read_ahead(self, batch_size: int) -> int:
        """Bytes on the device of batches that wait beside the one in use, or are left of it."""
        ...

    @staticmethod
    def round_batch(config: Any, batch_size: int, num_processes: int) -> int:
        """The largest batch up to a size that processes can share; 0 if there is none."""
        ...

    @staticmethod
    def measure(config: Any) -> tuple[int, float]:
        """Training samples, and operations for each, roughly: before a task is made."""
        ...

    def describe_batch(self) -> str:
        """What a batch holds, as "32 images of 224 px"."""
        ...

    def samples_until(self, step: int) -> int:
        """Samples that the first ``step`` updates see, over all processes; waits for no device."""
        ...

    def validate(self, model: nn.Module, wish: Wish | None = None) -> Numbers:
        """Numbers of the whole validation set, the same in every process.

        Stopped, in every process, if a wish to stop comes to one of them meanwhile.
        """
        ...

    def check_data(self, say: Callable[[str], None]) -> Mapping[str, int]:
        """Counts of what could not be read so far, for a log line; every process asks at once.

        What is new and the user should know is said; RunError, in every process, past a limit.
        """
        ...

    def resume_data(self, step: int, counts: Mapping[str, int]) -> None:
        """Go on at a step from what ``check_data`` gave there."""
        ...

    @staticmethod
    def score(validation: Numbers) -> tuple[float, ...]:
        """What the best checkpoint has most of; the second decides among equals of the first."""
        ...

    def notes(self) -> Mapping[str, Any]:
        """What else the record should say, as plain data."""
        ...
