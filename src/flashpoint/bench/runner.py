"""Measure a plan: every case of it with every provider."""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

import torch

from flashpoint.bench import memory
from flashpoint.bench.accuracy import case_error
from flashpoint.bench.cases import Case
from flashpoint.bench.environment import describe
from flashpoint.bench.plan import Item, Plan
from flashpoint.bench.providers import PROVIDERS, make_call, make_inputs
from flashpoint.bench.result import Measurement, Result, Row
from flashpoint.bench.timing import Budget, interleave, timer_for

MEMORY_PROVIDERS = ("flashpoint", "sdpa")

Report: TypeAlias = Callable[[int, str], None]
"""Is told how many items are done and what is measured next."""


def measure(plan: Plan, report: Report) -> Result:
    """Time, check and weigh every item of the plan."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        environment = describe(plan.items[0].case.device)
        rows: list[Row] = []
        for _, group in groupby(plan.items, key=lambda item: (item.case.shape, item.case.dtype)):
            rows += _measure_group(list(group), plan, report, len(rows))
        return Result(environment=environment, rows=tuple(rows))
    finally:
        torch.set_num_threads(threads_before)


def _measure_group(items: list[Item], plan: Plan, report: Report, done: int) -> list[Row]:
    """The modes of one shape and dtype; their memory is measured in shared processes."""
    rows: list[Row] = []
    for item in items:
        report(done + len(rows), f"{item.case}: time")
        rows.append(
            Row(
                case=item.case,
                limits=item.limits,
                is_overhead=item.is_overhead,
                measurements=tuple(measure_case(item.case, plan.budget)),
            )
        )
    if not plan.has_memory or items[0].is_overhead:
        return rows
    for provider in MEMORY_PROVIDERS:
        what = f"{items[0].case.shape}  {items[0].case.dtype}: memory of {provider}"
        report(done + len(rows), what)
        peaks = memory.measure_case(provider, [item.case for item in items], plan.threads)
        rows = [_with_peak(row, provider, peak) for row, peak in zip(rows, peaks, strict=True)]
    return rows


def measure_case(case: Case, budget: Budget) -> list[Measurement]:
    """Time every provider that serves the case, in turns, and check the pointwise ones."""
    inputs = make_inputs(case)
    refusals = {name: provider.refusal(case) for name, provider in PROVIDERS.items()}
    calls = {
        name: make_call(provider, case, inputs)
        for name, provider in PROVIDERS.items()
        if refusals[name] is None
    }
    errors: dict[str, float] = {}

    def inspect(name: str, result: object) -> None:
        if PROVIDERS[name].is_pointwise:
            errors[name] = case_error(case, inputs, result)

    timings = interleave(calls, budget, timer_for(case.device), inspect)
    return [
        Measurement(
            provider=name,
            timing=timings.get(name),
            skipped=refusals[name],
            relative_error=errors.get(name),
        )
        for name in PROVIDERS
    ]


def _with_peak(row: Row, provider: str, peak: memory.Peak) -> Row:
    """The row with the memory of one provider filled in."""
    return replace(
        row,
        measurements=tuple(
            replace(found, peak=peak) if found.provider == provider else found
            for found in row.measurements
        ),
    )
