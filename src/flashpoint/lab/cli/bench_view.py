"""``flashpoint bench``'s results as tables for the terminal, 80 columns wide or more."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flashpoint.lab.bench.check import KEPT_RIVAL, broken_promises, speed_name
from flashpoint.lab.bench.entry import SpeedLimit
from flashpoint.lab.bench.result import OURS, Measurement, ModelRow, Result, Row
from flashpoint.lab.bench.suites import RIVAL_TWIN, TIMM, TWINS
from flashpoint.lab.cli.terminal import plain_table
from flashpoint.lab.runs.formats import between, brief, megabytes, three_digits

_LEGEND = (
    "Times are medians, with the 20th to 80th percentile below. Speed-up: the time of the fastest "
    "softmax attention over flashpoint's, with its limit below, or the aim where that is reached. "
    "Error: of flashpoint, "
    "relative to fp64. Memory: peak of forward, or of backward alone, over what was there before; "
    "SDPA's below. FLOP/s: of the matrix products, with their share of one large product's below; "
    "GB/s: of q, k, v and o, where reading them decides."
)
_MODEL_LEGEND = (
    "A training step of the whole model, norms of q and k in all: median time, images a second "
    "below it. Speed-up: softmax's time over relu's, with its limit below, or the aim where that "
    "is reached; likewise timm's own model. Memory: the peak of a step over weights and images, "
    "softmax's below."
)
_OTHERS_PER_TABLE = 2


def render(result: Result) -> RenderableType:
    """What was measured and where, the tables, and how to read them."""
    tables = (_main_table(result), *_other_tables(result)) if result.rows else ()
    models = (_model_table(result.models),) if result.models else ()
    return Group(_title(result), Text(), *tables, *models, Text(), *_notes(result))


def _table(*headings: str) -> Table:
    """Columns as narrow as their numbers, so that all of them fit; names of cases may wrap."""
    table = plain_table(*headings, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.no_wrap = True
    return table


def _cell(first: str, second: str = "", style: str = "") -> Text:
    """Two lines, the second one dim."""
    return Text.assemble((first, style), "\n", (second, "dim"))


def _title(result: Result) -> Text:
    """What is compared, where, and what the device reaches in a product."""
    rates = ", ".join(
        f"{dtype} {rate / 1e12:.{0 if rate > 1e13 else 2}f} TFLOP/s"
        for dtype, rate in result.matrix_flops_per_s.items()
    )
    product = Text(f"\nOne large matrix product: {rates}" if rates else "", style="dim")
    compared = "Pointwise attention beside softmax attention (SDPA)"
    place = result.environment
    machine = f"{place.device}, {place.cores} cores, {place.threads} threads"
    return Text.assemble((compared, "bold"), (f"\n{machine}\n{place.versions}", "dim"), product)


def _main_table(result: Result) -> Table:
    """Flashpoint beside the best softmax attention."""
    rate = "GFLOP/s" if result.rows[0].case.device == "cpu" else "TFLOP/s"
    table = _table("B, H, L, D", OURS, "SDPA", "speed-up", rate, "error", "memory")
    for _, group in groupby(result.rows, key=lambda row: row.case.shape):
        for row in group:
            table.add_row(*_cells(result, row))
        table.add_section()
    return table


def _cells(result: Result, row: Row) -> list[Text]:
    """One row: the numbers, and a second line with what they are to be read against."""
    broken = broken_promises(row)
    ours, best = row.of(OURS), row.best_of(row.rivals)
    return [
        _cell(_place(row), row.case.work),
        _time_cell(ours),
        _sdpa_cell(row, best),
        _sdpa_speed_cell(row, broken),
        _rate_cell(result, row),
        _error_cell(ours.relative_error, "error" in broken),
        _memory_cell(row, best, "memory" in broken),
    ]


def _place(row: Row) -> str:
    """What stands first in a row."""
    shape = row.case.shape
    return f"call overhead, L {shape.length}" if row.is_overhead else str(shape)


def _time_cell(measurement: Measurement) -> Text:
    """Median and range, or a dash."""
    timing = measurement.timing
    if timing is None:
        return _cell("-")
    return _cell(brief(timing.median_s), between(timing.p20_s, timing.p80_s, timing.median_s))


def _sdpa_cell(row: Row, best: Measurement | None) -> Text:
    """Median of the best SDPA with its range, or with its name where it is one of several."""
    if best is None or best.timing is None:
        return _cell("-")
    if len(row.rivals) == 1:
        return _time_cell(best)
    return _cell(brief(best.timing.median_s), best.provider.removeprefix("sdpa_"))


def _sdpa_speed_cell(row: Row, broken: dict[str, str]) -> Text:
    """The speed-up over the best SDPA, or over whom else the limit names."""
    rivals = set(row.rivals)
    limit = next((found for found in row.limits.speed if rivals.issuperset(found.rivals)), None)
    is_broken = limit is not None and speed_name(limit) in broken
    return _speed_cell(row.speedup(row.rivals), limit, is_broken=is_broken)


def _speed_cell(speedup: float | None, limit: SpeedLimit | None, *, is_broken: bool) -> Text:
    """A speed-up; below it the limit, or the aim where that is reached."""
    if speedup is None:
        return _cell("-")
    if limit is None:
        return _cell(f"{speedup:.2f}x")
    return _cell(f"{speedup:.2f}x", limit.bar(speedup), "bold red" if is_broken else "green")


def _rate_cell(result: Result, row: Row) -> Text:
    """FLOP/s and its share of a product's, or bytes where those decide."""
    flops, moved = row.flops_per_s(), row.bytes_per_s()
    if row.is_overhead or flops is None or moved is None:
        return _cell("-")
    if row.case.is_memory_bound:
        return _cell(three_digits(moved / 1e9), "GB/s")
    share = result.matrix_share(row)
    size = 1e9 if row.case.device == "cpu" else 1e12
    return _cell(three_digits(flops / size), "" if share is None else f"{share:.0%}")


def _error_cell(error: float | None, is_broken: bool) -> Text:
    return _cell("-" if error is None else f"{error:.0e}", style="bold red" if is_broken else "")


def _memory_cell(row: Row, best: Measurement | None, is_broken: bool) -> Text:
    """Flashpoint's peak extra memory, SDPA's below."""
    ours, theirs = row.of(OURS).extra_bytes, best.extra_bytes if best else None
    if ours is None:
        return _cell("-")
    has_limit = row.limits.memory_slack_bytes is not None
    below = "" if theirs is None else megabytes(theirs)
    style = "bold red" if is_broken else "green" if has_limit else ""
    return _cell(megabytes(ours), below, style)


def _other_tables(result: Result) -> Iterator[RenderableType]:
    """The times of all other providers, and how much faster Flashpoint is."""
    shown = (OURS, *result.rows[0].best_sdpa)
    names = [found.provider for row in result.rows for found in row.measurements if found.timing]
    others = [name for name in dict.fromkeys(names) if name not in shown]
    if not others:
        return
    yield Text("\nOther providers, and the speed-up over each", style="bold")
    for first in range(0, len(others), _OTHERS_PER_TABLE):
        part = others[first : first + _OTHERS_PER_TABLE]
        table = _table("B, H, L, D", *part)
        for row in result.rows:
            if any(row.of(name).timing for name in part):
                title = _place(row)
                cells = (_other_cell(row, name) for name in part)
                table.add_row(Text.assemble(title, (f"  {row.case.work}", "dim")), *cells)
        yield table


def _other_cell(row: Row, name: str) -> Text:
    """Median, and the speed-up over it with its limit."""
    found = row.of(name)
    if found.timing is None:
        return Text("-")
    speedup = row.speedup((name,))
    factor = "wrong" if row.is_wrong(found) else "-x" if speedup is None else f"{speedup:.2f}x"
    limit = next((stated for stated in row.limits.speed if stated.rivals == (name,)), None)
    bar = f" {limit.bar(speedup)}" if limit is not None and speedup is not None else ""
    return Text.assemble(brief(found.timing.median_s), (f"  {factor}{bar}", "dim"))


def _notes(result: Result) -> list[Text]:
    """How to read the table, and each reason for a dash once."""
    notes = [_LEGEND, *_kept_note(result)] if result.rows else []
    notes += [_MODEL_LEGEND, *_skipped_models(result.models)] if result.models else []
    cases: dict[str, list[Row]] = {}
    for row in result.rows:
        for reason in _reasons(row):
            cases.setdefault(reason, []).append(row)
    for reason, rows in cases.items():
        shapes = dict.fromkeys(str(row.case.shape) for row in rows)
        where = next(iter(shapes)) if len(shapes) == 1 else f"{len(shapes)} shapes"
        notes.append(f"{reason} ({where}).")
    return [Text(note, style="dim") for note in notes]


def _reasons(row: Row) -> Iterator[str]:
    """Why there is no number, or one that does not count."""
    for found in row.measurements:
        if found.skipped:
            yield f"No {found.provider}: {found.skipped}"
        if found.peak and found.peak.reason:
            yield f"No memory of {found.provider}: {found.peak.reason}"
        if found.provider != OURS and row.is_wrong(found):
            yield f"{found.provider} is wrong, its error is {found.relative_error:.1e}"


def _kept_note(result: Result) -> Iterator[str]:
    """What is kept for backward, over what SDPA keeps."""
    pairs = [(row.of(OURS).kept_bytes, row.of(KEPT_RIVAL).kept_bytes) for row in result.rows]
    shares = sorted(ours / theirs for ours, theirs in pairs if ours and theirs)
    if shares:
        span = " to ".join(dict.fromkeys(f"{share:.2f}" for share in (shares[0], shares[-1])))
        yield f"Bytes kept for backward, over those of {KEPT_RIVAL}: {span}."


def _model_table(rows: Sequence[ModelRow]) -> Table:
    """Both twins beside each other, and timm's with its own speed-up where it is measured."""
    has_timm = any(row.of(TIMM).timing for row in rows)
    more = (TIMM, "speed-up") if has_timm else ()
    table = _table("model, batch", *TWINS, "speed-up", "memory", *more)
    for row in rows:
        times = (_twin_cell(row, name) for name in TWINS)
        beside = (_twin_cell(row, TIMM), _model_speed_cell(row, TIMM)) if has_timm else ()
        cells = (*times, _model_speed_cell(row, RIVAL_TWIN), _model_memory_cell(row), *beside)
        table.add_row(Text(str(row.case)), *cells)
    return table


def _model_speed_cell(row: ModelRow, rival: str) -> Text:
    """The speed-up over one of the others."""
    speedup, limit = row.speedup_over(rival), row.limit_over(rival)
    is_broken = bool(speedup and limit and speedup < limit.must)
    return _speed_cell(speedup, limit, is_broken=is_broken)


def _skipped_models(rows: Sequence[ModelRow]) -> Iterator[str]:
    """Why a twin has no number."""
    for row in rows:
        for found in row.measurements:
            if found.skipped:
                yield f"No {found.attention}: {found.skipped} ({row.case})."


def _twin_cell(row: ModelRow, attention: str) -> Text:
    timing, rate = row.of(attention).timing, row.images_per_s(attention)
    if timing is None or rate is None:
        return Text("-")
    return _cell(brief(timing.median_s), f"{three_digits(rate)} images/s")


def _model_memory_cell(row: ModelRow) -> Text:
    """relu's peak, softmax's below."""
    peaks = [row.of(attention).peak for attention in TWINS]
    return _cell(*(megabytes(peak and peak.extra_bytes) for peak in peaks))
