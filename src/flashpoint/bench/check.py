"""Compare a row with what its suite promises."""

from typing import Literal, TypeAlias

from flashpoint.bench.accuracy import WRONG_BEYOND
from flashpoint.bench.result import Row

Promise: TypeAlias = Literal["error", "ratio", "memory"]


def broken_promises(row: Row) -> dict[Promise, str]:
    """For every promise that the row breaks, a clause with the two numbers.

    A wrong result breaks a promise too, with limits or without. What was not measured breaks none.
    """
    clauses: dict[Promise, str | None] = {
        "error": _wrong(row),
        "ratio": _slow(row),
        "memory": _large(row),
    }
    return {promise: clause for promise, clause in clauses.items() if clause}


def _wrong(row: Row) -> str | None:
    """Error beyond what rounding explains."""
    error, bound = row.of("flashpoint").relative_error, WRONG_BEYOND[row.case.dtype]
    if error is None or error <= bound:
        return None
    return f"relative error {error:.1e} is beyond rounding ({bound:.0e})"


def _slow(row: Row) -> str | None:
    """Ratio of times beyond its limit."""
    ratio, limit = row.ratio, row.limits.ratio
    if ratio is None or limit is None or ratio <= limit:
        return None
    return f"time is {ratio:.2f}x SDPA's, limit {limit:.2f}x"


def _large(row: Row) -> str | None:
    """Peak extra memory beyond SDPA's and the slack."""
    ours, theirs = row.of("flashpoint").extra_bytes, row.of("sdpa").extra_bytes
    slack = row.limits.memory_slack_bytes
    if ours is None or theirs is None or slack is None or ours <= theirs + slack:
        return None
    return (
        f"peak extra memory is {ours / 1e6:.0f} MB, limit {(theirs + slack) / 1e6:.0f} MB "
        f"(SDPA's {theirs / 1e6:.0f} MB and {slack / 1e6:.0f} MB)"
    )
