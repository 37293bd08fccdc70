"""Numbers as people read them; a dash where there is none."""

DASH = "-"


def percent(value: float | None) -> str:
    """A share with two digits behind the point.

    Example:
        >>> percent(0.98765), percent(None)
        ('98.77%', '-')
    """
    return DASH if value is None else f"{value:.2%}"


def decimal(value: float | None, digits: int = 4) -> str:
    """A plain number.

    Example:
        >>> decimal(0.123456)
        '0.1235'
    """
    return DASH if value is None else f"{value:.{digits}f}"


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
            scaled = value / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {letter}"
    return f"{value:.0f}"


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
