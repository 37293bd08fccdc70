"""Results as a table for the terminal, 80 columns wide or more."""

from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flashpoint.bench.check import broken_promises
from flashpoint.bench.environment import Environment
from flashpoint.bench.result import Measurement, Result, Row
from flashpoint.bench.timing import Timing

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_LEGEND = (
    "Times are medians, with the 20th to 80th percentile below. Ratio: flashpoint over SDPA, with "
    "its limit below. Error: of flashpoint, relative to fp64. Memory: peak of forward, or of "
    "backward alone in training, over what was there before; SDPA's below."
)


def render(result: Result) -> RenderableType:
    """What was measured and where, the table, and how to read it."""
    table = Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, header_style="bold"
    )
    table.add_column("B, H, L, D", no_wrap=True)
    for heading in ("flashpoint", "SDPA", "ratio", "plain", "GFLOP/s", "error", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for _, group in groupby(result.rows, key=lambda row: row.case.shape):
        for row in group:
            table.add_row(*_cells(row))
        table.add_section()
    return Group(_title(result), Text(), table, Text(), *_notes(result))


def _title(result: Result) -> Text:
    """What is compared, then where."""
    case = result.rows[0].case
    causal = "causal " if case.causal else ""
    compared = f"{causal}{case.activation} attention beside softmax attention (SDPA)"
    return Text.assemble((compared, "bold"), "\n", describe_environment(result.environment))


def describe_environment(environment: Environment) -> Text:
    """Machine and versions on a line each."""
    machine = f"{environment.device}, {environment.cores} cores, {environment.threads} threads"
    commit = f" ({environment.commit})" if environment.commit else ""
    versions = (
        f"flashpoint {environment.flashpoint}{commit}, torch {environment.torch}, "
        f"Python {environment.python}"
    )
    return Text(f"{machine}\n{versions}", style="dim")


def format_seconds(seconds: float) -> str:
    """Three digits and a unit.

    Example:
        >>> format_seconds(0.01234)
        '12.3 ms'
    """
    size, unit = _unit(seconds)
    return f"{_three_digits(seconds / size)} {unit}"


def format_range(timing: Timing) -> str:
    """The 20th to 80th percentile in the unit of the median.

    Example:
        >>> format_range(Timing(median_s=1.5, p20_s=1.25, p80_s=2, rounds=3, repeats=1))
        '1.25-2.00'
    """
    size, _ = _unit(timing.median_s)
    return f"{_three_digits(timing.p20_s / size)}-{_three_digits(timing.p80_s / size)}"


def _unit(seconds: float) -> tuple[float, str]:
    """The largest unit of which there is at least one, else microseconds."""
    return next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])


def _three_digits(value: float) -> str:
    """``1.23``, ``12.3``, ``123``, ``1234``."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _cells(row: Row) -> list[Text]:
    """One row: the numbers, and a second line with what they are to be read against."""
    broken = broken_promises(row)
    ours, theirs, plain = row.of("flashpoint"), row.of("sdpa"), row.of("plain").timing
    limits = row.limits
    work = f"{row.case.dtype} {row.case.mode}"
    title = "call overhead" if row.is_overhead else str(row.case.shape)
    sign = ">" if "ratio" in broken else "<="
    limit = "" if limits.ratio is None else f"{sign}{limits.ratio:.2f}"
    rate = None if row.is_overhead else row.gflops_per_s
    return [
        _cell(title, work),
        _time_cell(ours),
        _time_cell(theirs),
        _cell(
            _or_dash(row.ratio, ".2f"), limit, _color("ratio" in broken, limits.ratio is not None)
        ),
        _cell("-" if plain is None else format_seconds(plain.median_s)),
        _cell(_or_dash(rate, ".0f")),
        _cell(_or_dash(ours.relative_error, ".0e"), "", "red" if "error" in broken else ""),
        _memory_cell(row, "memory" in broken),
    ]


def _memory_cell(row: Row, is_broken: bool) -> Text:
    """Flashpoint's peak extra memory, SDPA's below."""
    ours, theirs = row.of("flashpoint").extra_bytes, row.of("sdpa").extra_bytes
    if ours is None:
        return _cell("-")
    has_limit = row.limits.memory_slack_bytes is not None
    below = "" if theirs is None else _format_bytes(theirs)
    return _cell(_format_bytes(ours), below, _color(is_broken, has_limit))


def _format_bytes(size: int) -> str:
    """Tenths of few megabytes, whole ones of many, tenths of gigabytes."""
    if size >= 999.5e6:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.{0 if size >= 9.95e6 else 1}f} MB"


def _time_cell(measurement: Measurement) -> Text:
    """Median and range, or a dash."""
    timing = measurement.timing
    if timing is None:
        return _cell("-")
    return _cell(format_seconds(timing.median_s), format_range(timing))


def _cell(first: str, second: str = "", style: str = "") -> Text:
    """Two lines, the second one dim."""
    return Text.assemble((first, style), "\n", (second, "dim"))


def _color(is_broken: bool, has_limit: bool) -> str:
    """Green within a limit, red beyond it."""
    return "bold red" if is_broken else "green" if has_limit else ""


def _or_dash(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def _notes(result: Result) -> list[Text]:
    """How to read the table, and each reason for a dash once."""
    notes = {_LEGEND: None}
    for row in result.rows:
        for found in row.measurements:
            if found.skipped:
                notes[f"No {found.provider} at {row.case.shape}: {found.skipped}."] = None
            if found.peak and found.peak.reason:
                notes[f"No memory of {found.provider}: {found.peak.reason}."] = None
    return [Text(note, style="dim") for note in notes]
