"""Compare a row with what is promised for it."""

from collections.abc import Iterator

from flashpoint.lab.bench.entry import SpeedLimit
from flashpoint.lab.bench.result import OURS, ModelRow, Row
from flashpoint.lab.bench.suites import OUR_TWIN, TIMM

KEPT_RIVAL = "sdpa_flash"
"""Whose bytes kept for backward ours are compared with."""


def broken_promises(row: Row) -> dict[str, str]:
    """For every promise that the row breaks, a clause with the two numbers.

    A wrong result, or none, breaks a promise too, with limits or without. A limit whose rivals
    were asked for and gave nothing right cannot be kept; rivals nobody asked for break none.
    """
    return dict(_clauses(row))


def _clauses(row: Row) -> Iterator[tuple[str, str]]:
    """Name of the promise and what is wrong."""
    ours = row.of(OURS)
    if ours.skipped:
        yield "error", f"there is no result: {ours.skipped}"
    elif row.is_wrong(ours):
        error, bound = ours.relative_error, row.error_bound
        yield "error", f"relative error {error:.1e} is beyond rounding ({bound:.0e})"
    for limit in row.limits.speed:
        if clause := _slow(row, limit):
            yield speed_name(limit), clause
    if clause := _large(row):
        yield "memory", clause
    if clause := _kept(row):
        yield "kept", clause


def slow_model(row: ModelRow) -> str | None:
    """What a row of a whole model promises and does not keep, with the numbers.

    timm may not be installed: a promise over it that cannot be seen is not broken.
    """
    ours = row.of(OUR_TWIN)
    if ours.skipped:
        return f"there is no result: {ours.skipped}"
    clauses = (_slow_beside(row, limit) for limit in row.limits)
    return "; ".join(clause for clause in clauses if clause) or None


def _slow_beside(row: ModelRow, limit: SpeedLimit) -> str | None:
    """One limit that is missed, or cannot be seen."""
    (rival,) = limit.rivals
    speedup = row.speedup_over(rival)
    if speedup is None:
        return None if rival == TIMM else f"nothing to compare with: no result of {rival}"
    if speedup >= limit.must:
        return None
    return f"{speedup:.2f}x as fast as {rival}, limit {limit.must:.2f}x"


def speed_name(limit: SpeedLimit) -> str:
    """What tells one limit on the speed-up from another."""
    *others, last = limit.rivals
    return f"speed against {', '.join(others)}{' and ' if others else ''}{last}"


def _slow(row: Row, limit: SpeedLimit) -> str | None:
    """Speed-up below its limit, or none to be had."""
    if row.of(OURS).timing is None:
        return None
    rivals, speedup = ", ".join(limit.rivals), row.speedup(limit.rivals)
    if speedup is None:
        asked = any(found.provider in limit.rivals for found in row.measurements)
        return f"nothing to compare with: no right result of {rivals}" if asked else None
    if speedup >= limit.must:
        return None
    best = row.best_of(limit.rivals)
    return f"{speedup:.2f}x as fast as {best and best.provider}, limit {limit.must:.2f}x"


def _large(row: Row) -> str | None:
    """Peak extra memory beyond SDPA's and the slack."""
    ours, theirs = row.of(OURS).extra_bytes, row.of("sdpa").extra_bytes
    slack = row.limits.memory_slack_bytes
    if ours is None or theirs is None or slack is None or ours <= theirs + slack:
        return None
    return (
        f"peak extra memory is {ours / 1e6:.0f} MB, limit {(theirs + slack) / 1e6:.0f} MB "
        f"(SDPA's {theirs / 1e6:.0f} MB and {slack / 1e6:.0f} MB)"
    )


def _kept(row: Row) -> str | None:
    """Bytes kept for backward beyond a share of SDPA's."""
    ours, theirs = row.of(OURS).kept_bytes, row.of(KEPT_RIVAL).kept_bytes
    share = row.limits.kept_share
    if ours is None or theirs is None or share is None or ours <= share * theirs:
        return None
    return (
        f"{ours / 1e6:.1f} MB are kept for backward, {ours / theirs:.2f}x those of {KEPT_RIVAL} "
        f"({theirs / 1e6:.1f} MB), limit {share:.2f}x"
    )
