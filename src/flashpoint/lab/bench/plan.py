"""What one run of the benchmark does, as plain data: a request becomes items."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from flashpoint.errors import InputError, describe
from flashpoint.lab.bench.cases import Case, Mode, Shape, choose
from flashpoint.lab.bench.entry import Entry, Limits
from flashpoint.lab.bench.suites import (
    DEFAULT_SUITE,
    LONG,
    MODEL_LIMITS,
    SUITES,
    ModelCase,
    stated_limits,
)
from flashpoint.lab.bench.timing import Budget

MODEL_SUITE = "vit-model"
LOADER_SUITE = "loader"  # which has no cases: the command line runs it


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A case to measure, by whom, and what is promised for it."""

    case: Case
    providers: tuple[str, ...]
    limits: Limits
    is_overhead: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What was asked for.

    Attributes:
        suite: None: the usual one of the device.
        shapes: to be measured in place of a suite, in every mode.
        mode: None: every mode of the suite; for shapes, forward and what the device's suites
            measure besides.
        activation, causal: what all cases get; None and False leave them as the suite has them.
        providers: None: the usual ones and those that the suite names.
        only: take cases whose name has this text; "" takes all.
        is_quick: leave out what takes long.
    """

    device: str
    suite: str | None = None
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...]
    mode: Mode | None = None
    activation: str | None = None
    causal: bool = False
    providers: tuple[str, ...] | None = None
    only: str = ""
    is_quick: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Items in the order of their measurement.

    Attributes:
        models: whole models, after the items.
        suite: whose items they are; None for shapes and the usual suite.
        budget: of the timing of one item.
        has_memory: whether memory is measured too.
        threads: of torch.
    """

    items: tuple[Item, ...] = ()
    models: tuple[ModelCase, ...] = ()
    suite: str | None = None
    budget: Budget
    has_memory: bool
    threads: int

    @property
    def device(self) -> str:
        """Where everything of it runs."""
        return self.items[0].case.device if self.items else self.models[0].device


def select_models(request: Request) -> tuple[ModelCase, ...]:
    """The whole models of a suite, which takes no other words; none of all other suites."""
    if request.suite != MODEL_SUITE:
        return ()
    if request.device != "cuda":
        raise InputError(
            f"suite {MODEL_SUITE!r} is for --device cuda, the device is {request.device}. "
            "Pass --device cuda where there is a GPU, or --suite cpu."
        )
    words = {
        "--shape": request.shapes,
        "--dtype": request.dtypes != ("bf16",),
        "--mode": request.mode,
        "--activation": request.activation,
        "--causal": request.causal,
        "--providers": request.providers,
        "--only": request.only,
    }
    given = [word for word, value in words.items() if value]
    if given:
        raise InputError(
            f"suite {MODEL_SUITE!r} measures a training step of whole models, relu beside "
            f"softmax, in bf16, and takes no {', '.join(given)}. Leave it out."
        )
    return tuple(MODEL_LIMITS)


def select_items(request: Request, usual: Sequence[str]) -> tuple[Item, ...]:
    """The items of a suite or of shapes, each case once.

    Args:
        usual: the providers to measure unless the request names others.
    """
    if request.suite == MODEL_SUITE:
        return ()
    if request.suite is not None and request.shapes:
        raise InputError("--suite and --shape exclude each other. Pass one of them.")
    entries = list(_shape_entries(request) if request.shapes else _suite_entries(request))
    items: dict[Case, Item] = {}
    for entry, dtype in _in_dtypes(entries, request.dtypes):
        item = _item(entry, dtype, request, usual)
        items.setdefault(item.case, item)
    wanted = request.only.lower()
    found = tuple(item for case, item in items.items() if wanted in str(case).lower())
    if not found:
        names = ", ".join(f"'{case}'" for case in list(items)[:2])
        raise InputError(
            f"--only {describe(request.only)} is in no name of the {len(items)} cases, which are "
            f"{names} and so on. Take a part of one."
        )
    return found


def default_modes(device: str) -> tuple[Mode, ...]:
    """What is measured of a shape when no mode is named."""
    return SUITES[DEFAULT_SUITE[device]].modes


def _shape_entries(request: Request) -> Iterator[Entry]:
    """Every shape in every mode."""
    modes = (request.mode,) if request.mode else default_modes(request.device)
    for shape in request.shapes:
        for mode in modes:
            yield Entry(shape=shape, mode=mode)


def _suite_entries(request: Request) -> list[Entry]:
    """The entries of the suite in the mode asked for, or a refusal."""
    known = (*SUITES, MODEL_SUITE, LOADER_SUITE)
    name = choose(request.suite or DEFAULT_SUITE[request.device], known, "suite")
    suite = SUITES[name]
    if suite.device != request.device:
        known = ", ".join(n for n, other in SUITES.items() if other.device == request.device)
        raise InputError(
            f"suite {name!r} is for --device {suite.device}, the device is {request.device}. "
            f"Pass --device {suite.device}, --shape, or a suite for {request.device}: {known}."
        )
    if request.mode and request.mode not in suite.modes:
        raise InputError(
            f"suite {name!r} has no {request.mode} cases, only {', '.join(suite.modes)}. "
            "Pass one of these as --mode, or a --shape."
        )
    skips_long = request.is_quick and request.device == "cpu"
    return [
        entry
        for entry in suite.entries
        if not (skips_long and entry.shape.length > LONG)
        if request.mode in (None, entry.mode) or entry.overhead_dtype
    ]


def _in_dtypes(entries: Iterable[Entry], dtypes: Sequence[str]) -> Iterator[tuple[Entry, str]]:
    """Every entry in every dtype; the modes of one shape and dtype stand together."""
    for (_, fixed), group in groupby(entries, key=lambda entry: (entry.shape, entry.fixed_dtype)):
        alike = list(group)
        for dtype in (fixed,) if fixed else dtypes:
            yield from ((entry, dtype) for entry in alike)


def _item(entry: Entry, dtype: str, request: Request, usual: Sequence[str]) -> Item:
    """One case of an entry with what the request changes."""
    case = replace(
        entry.case(dtype, request.device),
        activation=request.activation or entry.activation,
        causal=request.causal or entry.causal,
    )
    slow = () if request.is_quick else entry.slow_providers
    return Item(
        case=case,
        providers=_providers(request.providers, (*usual, *entry.providers, *slow)),
        limits=stated_limits(case),
        is_overhead=entry.overhead_dtype is not None,
    )


def _providers(asked: tuple[str, ...] | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Flashpoint first, then the others, each once."""
    return tuple(dict.fromkeys(("flashpoint", *(asked or usual))))
