"""Whether an update fits into memory, asked before anything is written."""

from collections.abc import Callable

import torch

from flashpoint.errors import InputError
from flashpoint.lab.training.available_memory import available_memory
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.step_memory import StepMemory, estimate, gigabytes
from flashpoint.lab.training.task import Task

BYTES_PER_OPERATION = 16
"""More than any model leaves behind for an operation of its matrix products, even of width 1."""

SMALL_SHARE = 0.25
"""Of the memory that is there: an update that cannot need more is not looked at closely."""

ADVISED_SHARE = 0.9
"""Of the memory that is there, what an advised batch takes: allocators leave gaps."""

_TRIES = 4


def check_memory(task: Task, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Refuse a batch that no process could get through, with the largest one that would fit.

    What is compiled or captured needs another amount than the estimate, which knows neither: of
    such a step ``say`` only gets the numbers. A step whose tokens or heads are shared is not
    looked at: it needs less than the estimate, which takes whole samples.
    """
    if task.config.parallel.splits_model:
        return
    free = free_memory(ranks)
    if free is None or most_needed(task) < SMALL_SHARE * free:
        return
    needed = estimate(task, ranks)
    if needed.total <= free:
        return
    numbers = _compare(task, needed, ranks, free)
    if task.config.compile == "none":
        raise InputError(f"{numbers} {_advice(task, ranks, free)}")
    say(f"{numbers} Trying it.")


def describe_memory(task: Task, ranks: Ranks) -> str:
    """What an update needs and what there is, in a line; with advice where it does not fit."""
    free, needed = free_memory(ranks), estimate(task, ranks)
    line = _compare(task, needed, ranks, free)
    return line if free is None or needed.total <= free else f"{line} {_advice(task, ranks, free)}"


def free_memory(ranks: Ranks) -> int | None:
    """What the process with the least can still take, the same number in all of them."""
    found = ranks.gather(available_memory(ranks.device))
    known = [free for free in found if free is not None]
    return min(known) if known else None


def _compare(task: Task, needed: StepMemory, ranks: Ranks, free: int | None) -> str:
    """The numbers of an update beside what there is."""
    there = "an unknown amount" if free is None else f"{gigabytes(free)} GB"
    compiled = task.config.compile
    unsure = "" if compiled == "none" else f" With compile={compiled} it may need less or more."
    whose = "a step" if ranks.size == 1 else "a step of each process"
    return (
        f"{whose} with batch_size={task.config.batch_size} needs {needed}; "
        f"{ranks.device.type} has {there} free.{unsure}"
    )


def most_needed(task: Task) -> float:
    """A quick bound from above."""
    config = task.config
    with torch.device("meta"):
        state = sum(parameter.nbytes for parameter in task.build_model().parameters())
    operations = config.batch_size * task.flops_per_sample
    inputs = task.bytes_read_ahead(config.batch_size)
    return 5 * state + inputs + BYTES_PER_OPERATION * operations


def _advice(task: Task, ranks: Ranks, free: int) -> str:
    largest = largest_batch(task, ranks, int(ADVISED_SHARE * free))
    if not largest:
        return "Not even the smallest batch fits: take a smaller model."
    return (
        f"The largest batch that fits well is {largest}: pass --set batch_size={largest}, or "
        "--set accumulate=N to go through a batch in N parts."
    )


def largest_batch(task: Task, ranks: Ranks, free: int) -> int:
    """The largest batch below the config's whose update fits, 0 if none does.

    Memory grows in proportion with the batch, beyond what weights need; two sizes show how fast.
    """
    config, shares = task.config, ranks.data_size
    more = config.batch_size
    less = task.round_batch(config, more // 2, shares)
    if not less:
        return 0
    most, least = (estimate(task, ranks, size).total for size in (more, less))
    slope = (most - least) / (more - less)
    found = less + int((free - least) / slope)
    for _ in range(_TRIES):
        found = task.round_batch(config, min(found, more), shares) if found > 0 else 0
        if not found or estimate(task, ranks, found).total <= free:
            return found
        found = int(0.9 * found)
    return 0
