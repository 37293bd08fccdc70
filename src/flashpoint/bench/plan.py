"""What one run of the benchmark does, as plain data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from flashpoint.bench.cases import Case, Mode
from flashpoint.bench.suites import Entry, Limits
from flashpoint.bench.timing import Budget

OVERHEAD_DTYPE = "fp32"
OVERHEAD_MODES: tuple[Mode, ...] = ("forward", "recording")


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A case to measure and what is promised for it."""

    case: Case
    limits: Limits
    is_overhead: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What all cases of a plan share."""

    activation: str = "relu"
    causal: bool = False
    device: str = "cpu"

    @property
    def has_limits(self) -> bool:
        """Promises are made for relu without causality."""
        return self.activation == "relu" and not self.causal


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Items in the order of their measurement.

    Attributes:
        budget: of the timing of one item.
        has_memory: whether peak extra memory is measured too.
        threads: of torch.
    """

    items: tuple[Item, ...]
    budget: Budget
    has_memory: bool
    threads: int


def make_items(
    entries: Iterable[Entry], dtypes: Sequence[str], modes: Sequence[Mode], options: Options
) -> tuple[Item, ...]:
    """Every shape in every dtype and mode; modes of one shape and dtype stand together."""
    return tuple(
        _item(entry, dtype, mode, options)
        for entry in entries
        for dtype in dtypes
        for mode in modes
    )


def make_overhead_items(entry: Entry, options: Options) -> tuple[Item, ...]:
    """The tiny shape with nothing recorded, which has a limit, and with the graph recorded."""
    items = [
        _item(entry, OVERHEAD_DTYPE, mode, options, is_overhead=True) for mode in OVERHEAD_MODES
    ]
    return items[0], *(replace(item, limits=Limits()) for item in items[1:])


def _item(
    entry: Entry, dtype: str, mode: Mode, options: Options, is_overhead: bool = False
) -> Item:
    """One case of an entry with its limits."""
    case = Case(
        shape=entry.shape,
        dtype=dtype,
        mode=mode,
        activation=options.activation,
        causal=options.causal,
        device=options.device,
    )
    limits = entry.limits(dtype) if options.has_limits else Limits()
    return Item(case=case, limits=limits, is_overhead=is_overhead)
