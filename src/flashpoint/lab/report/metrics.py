"""Metrics of validation as reports show them: their names for readers, and how values read."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flashpoint.lab.runs.formats import decimal, percent
from flashpoint.lab.runs.run_files import RunFiles, mapping_of, number


class Metric(NamedTuple):
    """A number of a validation.

    Attributes:
        name: in files.
        label: on pages.
        show: its value as text.
        is_share: from 0 to 1, more is better; else less is.
    """

    name: str
    label: str
    show: Callable[[float | None], str]
    is_share: bool


METRICS = (
    Metric("top1", "top-1", percent, True),
    Metric("top5", "top-5", percent, True),
    Metric("token_accuracy", "token accuracy", percent, True),
    Metric("loss", "loss", decimal, False),
    Metric("perplexity", "perplexity", decimal, False),
)
"""All that pages show, in their order; the first that a run has says how good it is."""


def final(run: RunFiles, metric: Metric) -> float | None:
    """Its value in the last validation, of a run that goes on too."""
    last = run.validation[-1] if run.validation else {}
    return number(mapping_of(run.record, "validation") or last, metric.name)


def metrics_of(runs: Sequence[RunFiles]) -> list[Metric]:
    """Those that some run has at its end."""
    return [metric for metric in METRICS if any(final(run, metric) is not None for run in runs)]
