"""The measurements by name: the only functions that a trial's file can have called."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from flashpoint.errors import check_choice

Measure: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, float]]


def _step_time(options: Mapping[str, Any]) -> Mapping[str, float]:
    from flashpoint.lab.study.measures import step_time

    return step_time.measure(options)


def _stored_benchmarks(options: Mapping[str, Any]) -> Mapping[str, float]:
    from flashpoint.lab.study.measures import stored_benchmarks

    return stored_benchmarks.measure(options)


def _variance(options: Mapping[str, Any]) -> Mapping[str, float]:
    from flashpoint.lab.study.measures import variance

    return variance.measure(options)


MEASURES: Mapping[str, Measure] = {
    "step_time": _step_time,
    "stored_benchmarks": _stored_benchmarks,
    "variance": _variance,
}
"""Each imports torch when it is called: whoever reads a study needs none."""

_FORMER = {
    f"flashpoint.study.measures.{name}:measure": name
    for name in ("step_time", "stored_benchmarks", "variance")
}
"""How files of earlier versions, which called any "module:name", spell these."""


def known_name(name: object) -> str:
    """A measurement's name from a file, in today's spelling; any other is refused.

    Example:
        >>> known_name("flashpoint.study.measures.variance:measure")
        'variance'
        >>> known_name("os:system")
        Traceback (most recent call last):
        flashpoint.errors.InputError: function='os:system' is unknown. Known: step_time, \
stored_benchmarks, variance.
    """
    today = _FORMER.get(name, name) if isinstance(name, str) else name
    check_choice("function", today, tuple(MEASURES))
    return str(today)
