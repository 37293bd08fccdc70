"""What a figure of a result shows, as plain data: panels of cases, cases of bars."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias

from flashpoint.lab.bench.cases import Case, Mode
from flashpoint.lab.bench.result import OURS, ModelRow, Result, Row
from flashpoint.lab.bench.suites import OUR_TWIN, RIVAL_TWIN

Family: TypeAlias = Literal["long", "short", "normed", "decode"]
FAMILIES: tuple[Family, ...] = ("long", "short", "normed", "decode")
SHORT = 1024
MIN_SHORT_SHAPES = 3
"""So many shapes below the length ``SHORT`` are drawn apart from longer ones."""
MODES: tuple[Mode, ...] = ("forward", "backward", "training", "recording")


@dataclass(frozen=True, slots=True)
class Bar:
    """One provider's rate, in the unit of the panel."""

    provider: str
    rate: float


@dataclass(frozen=True, slots=True)
class Group:
    """The bars of one case; ``speedup`` is ours over the best SDPA."""

    label: str
    bars: tuple[Bar, ...]
    speedup: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Cases that share all but their length.

    Attributes:
        unit: of the rates.
        most: the rate of one large matrix product; None where it says nothing.
    """

    title: str
    unit: str
    most: float | None
    groups: tuple[Group, ...]


class Place(NamedTuple):
    """Where a row is drawn, in the order of drawing; dims of one mode stand side by side."""

    dtype: str
    family: int  # index into FAMILIES
    mode: int  # index into MODES
    dim: int


def arrange(result: Result) -> list[list[Panel]]:
    """Lines of panels: modes below each other, head dims abreast; one dim: modes abreast."""
    drawn = [row for row in result.rows if _is_drawn(row)]
    num_short = len({row.case.shape for row in drawn if row.case.shape.length < SHORT})
    placed = sorted(
        ((_place(row.case, num_short >= MIN_SHORT_SHAPES), row) for row in drawn),
        key=lambda pair: pair[0],
    )
    lines: dict[tuple[str, int, int], list[Panel]] = {}
    for place, cell in groupby(placed, key=lambda pair: pair[0]):
        panel = _panel(result, place, [row for _, row in cell])
        lines.setdefault(place[:3], []).append(panel)
    arranged = [
        line
        for _, block in groupby(lines, key=lambda key: key[:2])
        for line in _fold([lines[key] for key in block])
    ]
    return [*arranged, [_model_panel(result.models)]] if result.models else arranged


def _model_panel(rows: Sequence[ModelRow]) -> Panel:
    """Whole models, both twins of each."""
    groups = [
        Group(
            f"{row.case.model}\nB {row.case.batch}",
            tuple(
                Bar(provider, rate)
                for provider, attention in ((OURS, OUR_TWIN), ("sdpa", RIVAL_TWIN))
                if (rate := row.images_per_s(attention))
            ),
            row.speedup,
        )
        for row in rows
    ]
    title = "Training step of whole models, bf16"
    return Panel(title=title, unit="images/s", most=None, groups=tuple(groups))


def _fold(lines: list[list[Panel]]) -> list[list[Panel]]:
    """Lines of one panel each become one line."""
    return lines if any(len(line) > 1 for line in lines) else [[line[0] for line in lines]]


def _is_drawn(row: Row) -> bool:
    """Rows with a right result of ours; calling overhead has no rate."""
    ours = row.of(OURS)
    return not row.is_overhead and ours.timing is not None and not row.is_wrong(ours)


def _place(case: Case, splits_short: bool) -> Place:
    """Of one case; short ones go with long ones where they are few."""
    is_short = splits_short and case.shape.length < SHORT
    family: Family = "decode" if case.is_memory_bound else "short" if is_short else "long"
    family = "normed" if case.qk_norm != "none" else family
    return Place(case.dtype, FAMILIES.index(family), MODES.index(case.mode), case.shape.dim)


def _panel(result: Result, place: Place, rows: Sequence[Row]) -> Panel:
    """One panel of rows that belong together."""
    family, case = FAMILIES[place.family], rows[0].case
    mode = case.mode.capitalize()
    work = {
        "decode": "Decoding",
        "short": f"{mode}, short sequences",
        "normed": f"{mode} with norms of q and k",
    }.get(family, mode)
    is_decode, on_cpu = family == "decode", case.device == "cpu"
    unit, size = ("GB/s", 1e9) if is_decode else ("GFLOP/s", 1e9) if on_cpu else ("TFLOP/s", 1e12)
    most = None if is_decode else result.matrix_flops_per_s.get(case.dtype)
    labels = _labels([row.case for row in rows], has_batch=family != "long")
    return Panel(
        title=f"{work}, head dim {case.shape.dim}, {case.dtype}",
        unit=unit,
        most=most and most / size,
        groups=tuple(
            Group(label, _bars(row, is_decode, size), row.speedup(row.rivals))
            for label, row in zip(labels, rows, strict=True)
        ),
    )


def _bars(row: Row, is_decode: bool, size: float) -> tuple[Bar, ...]:
    """Those of right results; wrong ones are no rate of anything."""
    rates = {
        found.provider: (
            row.bytes_per_s(found.provider) if is_decode else row.flops_per_s(found.provider)
        )
        for found in row.measurements
        if not row.is_wrong(found)
    }
    return tuple(Bar(name, rate / size) for name, rate in rates.items() if rate)


def _labels(cases: Sequence[Case], has_batch: bool) -> list[str]:
    """Length and what is special; the batch too where lengths alone do not tell cases apart."""
    labels = [_label(case) for case in cases]
    if has_batch or len(set(labels)) < len(labels):
        labels = [
            f"{text}\nB {case.shape.batch}" for text, case in zip(labels, cases, strict=True)
        ]
    height = max(text.count("\n") for text in labels)
    return [text + "\n " * (height - text.count("\n")) for text in labels]


def _label(case: Case) -> str:
    length = case.shape.length
    text = f"{length // 1024}k" if length % 1024 == 0 else str(length)
    special = (
        "causal" if case.causal else "",
        "" if case.activation == "relu" else case.activation,
    )
    return "\n".join(word for word in (text, *special) if word)
