"""Numbers as people read them; a dash where there is none, and no minus before zeros."""

import math
from collections.abc import Sequence

DASH = "-"


def percent(value: float | None) -> str:
    """A share with two digits behind the point.

    Example:
        >>> percent(0.98765), percent(None)
        ('98.77%', '-')
    """
    return DASH if value is None else f"{value:z.2%}"


def decimal(value: float | None, digits: int = 4) -> str:
    """A plain number.

    Example:
        >>> decimal(0.123456)
        '0.1235'
    """
    return DASH if value is None else f"{value:z.{digits}f}"


def count(value: float | None) -> str:
    """A large number in thousands (k), millions (M) and so on, to three digits.

    Example:
        >>> count(950), count(22_050_000), count(1.2e9)
        ('950', '22.1 M', '1.20 G')
    """
    if value is None:
        return DASH
    for size, letter in zip((1e15, 1e12, 1e9, 1e6, 1e3), "PTGMk", strict=True):
        if value >= size:
            return f"{three_digits(value / size)} {letter}"
    return f"{value:.0f}"


def counted(number: int, noun: str) -> str:
    """A number of things in words.

    Example:
        >>> counted(1, "GPU"), counted(1024, "GPU")
        ('1 GPU', '1,024 GPUs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def three_digits(value: float) -> str:
    """``1.23``, ``12.3``, ``123``, ``1234``."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def brief(seconds: float) -> str:
    """A short time in three digits and a unit.

    Example:
        >>> brief(0.01234), brief(1.5), brief(2e-6)
        ('12.3 ms', '1.50 s', '2.00 us')
    """
    size, unit = _unit(seconds)
    return f"{three_digits(seconds / size)} {unit}"


def between(low: float, high: float, middle: float) -> str:
    """Two times in the unit of the one between them.

    Example:
        >>> between(1.25, 2, middle=1.5)
        '1.25-2.00'
    """
    size, _ = _unit(middle)
    return f"{three_digits(low / size)}-{three_digits(high / size)}"


def _unit(seconds: float) -> tuple[float, str]:
    """The largest unit of which there is at least one, else microseconds."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    return next((unit for unit in units if seconds >= unit[0]), units[-1])


def megabytes(size: float | None) -> str:
    """Tenths of few megabytes, whole ones of many, tenths of gigabytes.

    Example:
        >>> megabytes(40_000_000), megabytes(None)
        ('40 MB', '-')
    """
    if size is None:
        return DASH
    if size >= 999.5e6:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.{0 if size >= 9.95e6 else 1}f} MB"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours.

    Example:
        >>> duration(12.34), duration(200), duration(7260)
        ('12.3 s', '3 min 20 s', '2 h 01 min')
    """
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def rounded(values: Sequence[float], digits: int = 4) -> list[str]:
    """Numbers that stand below each other: as many places behind the point as the largest needs.

    Fewer where they show all of them exactly.

    Example:
        >>> rounded([0.98765, 0.5, 0.00012]), rounded([34.5678, 5]), rounded([1, 2048])
        (['0.9877', '0.5000', '0.00012'], ['34.57', '5.00'], ['1', '2048'])
        >>> rounded([0.0058312, 0.0027]), rounded([0.0, 0.5, 1.0])
        (['0.005831', '0.002700'], ['0.0', '0.5', '1.0'])
    """
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    greatest = max(sizes, default=1.0)
    if greatest >= 1e9:
        return [f"{value:.{digits}g}" for value in values]
    most = max(0, digits - 1 - max(math.floor(math.log10(greatest)), -4))
    exact = (
        places for places in range(most) if all(size == round(size, places) for size in sizes)
    )
    places = next(exact, most)
    least = 10.0 ** (1 - most)
    return [
        f"{value:z.{places}f}" if value == 0 or abs(value) >= least else f"{value:.3g}"
        for value in values
    ]


def with_interval(
    value: float, low: float, high: float, bounds: Sequence[float] = ()
) -> tuple[str, str, str]:
    """A number and the ends of its interval, to two digits of the interval's width.

    One more where rounding would put any of them onto one of the bounds.

    Example:
        >>> with_interval(1.2345, 0.98, 1.51), with_interval(0.5, 0.5, 0.5)
        (('1.23', '0.98', '1.51'), ('0.5', '0.5', '0.5'))
        >>> with_interval(-0.04, -1.9, 1.9), with_interval(-1.049, -7.4, 2.2, bounds=[-1])
        (('0.0', '-1.9', '1.9'), ('-1.05', '-7.40', '2.20'))
    """
    width = high - low
    if not (math.isfinite(width) and width > 1e-9 * max(abs(low), abs(high))):
        return f"{value:.4g}", f"{low:.4g}", f"{high:.4g}"
    places = max(0, 1 - math.floor(math.log10(width)))
    if any(round(x, places) == bound != x for bound in bounds for x in (value, low, high)):
        places += 1
    if places > 6:
        return f"{value:.3g}", f"{low:.3g}", f"{high:.3g}"
    return f"{value:z.{places}f}", f"{low:z.{places}f}", f"{high:z.{places}f}"
