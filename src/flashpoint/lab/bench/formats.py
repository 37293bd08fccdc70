"""Numbers as people read them."""

from flashpoint.lab.bench.timing import Timing

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def format_seconds(seconds: float) -> str:
    """Three digits and a unit.

    Example:
        >>> format_seconds(0.01234)
        '12.3 ms'
    """
    size, unit = _unit(seconds)
    return f"{three_digits(seconds / size)} {unit}"


def format_range(timing: Timing) -> str:
    """The 20th to 80th percentile in the unit of the median.

    Example:
        >>> format_range(Timing(median_s=1.5, p20_s=1.25, p80_s=2, rounds=3, repeats=1))
        '1.25-2.00'
    """
    size, _ = _unit(timing.median_s)
    return f"{three_digits(timing.p20_s / size)}-{three_digits(timing.p80_s / size)}"


def format_bytes(size: int) -> str:
    """Tenths of few megabytes, whole ones of many, tenths of gigabytes.

    Example:
        >>> format_bytes(40_000_000)
        '40 MB'
    """
    if size >= 999.5e6:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.{0 if size >= 9.95e6 else 1}f} MB"


def format_or_dash(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def three_digits(value: float) -> str:
    """``1.23``, ``12.3``, ``123``, ``1234``."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _unit(seconds: float) -> tuple[float, str]:
    """The largest unit of which there is at least one, else microseconds."""
    return next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])
