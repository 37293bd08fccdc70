"""Measure a plan: every case of it with every provider."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from typing import TypeAlias

import torch

from flashpoint.lab.bench import memory
from flashpoint.lab.bench.accuracy import Part, error_bound, exact_parts, result_error
from flashpoint.lab.bench.calls import (
    TORCH_DTYPES,
    Inputs,
    by_heads,
    make_inputs,
    make_rotating_call,
)
from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.device import num_input_sets, own_stream, timer_for
from flashpoint.lab.bench.environment import describe
from flashpoint.lab.bench.failure import Refused, attempt
from flashpoint.lab.bench.models import measure_model
from flashpoint.lab.bench.plan import Item, Plan
from flashpoint.lab.bench.providers.provider import Function, Provider
from flashpoint.lab.bench.providers.registry import PROVIDERS
from flashpoint.lab.bench.result import OURS, Measurement, ModelRow, Result, Row
from flashpoint.lab.bench.timing import Budget, Started, Timer, interleave, start
from flashpoint.lab.training.device_rate import matrix_rate

CPU_MEMORY_PROVIDERS = (OURS, "sdpa")
"""A fresh process for each takes seconds."""

KEPT_PROVIDERS = (OURS, "sdpa", "sdpa_flash", "sdpa_cudnn")
"""Those that run without a compiler, which would trace the count too."""

Report: TypeAlias = Callable[[int, str], None]
"""Is told how many items are done and what is measured next."""


def measure(plan: Plan, report: Report) -> Result:
    """Time, check and weigh every item of the plan."""
    device = plan.device
    threads_before = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        with own_stream(device):
            environment = describe(device)
            rates: dict[str, float] = {}
            for dtype in dict.fromkeys(item.case.dtype for item in plan.items):
                report(0, f"{dtype}: rate of a large matrix product")
                rates[dtype] = matrix_rate(torch.device(device), TORCH_DTYPES[dtype])
            rows: list[Row] = []
            for _, group in groupby(plan.items, key=lambda i: (i.case.shape, i.case.dtype)):
                rows += _measure_group(list(group), plan, report, len(rows))
            models: list[ModelRow] = []
            for case in plan.models:
                done = len(rows) + len(models)
                row = measure_model(
                    case, plan.budget, partial(report, done), has_memory=plan.has_memory
                )
                models.append(row)
        return Result(
            environment=environment,
            rows=tuple(rows),
            models=tuple(models),
            matrix_flops_per_s=rates,
            suite=plan.suite,
        )
    finally:
        torch.set_num_threads(threads_before)


def _measure_group(items: list[Item], plan: Plan, report: Report, done: int) -> list[Row]:
    """The cases of one shape and dtype; on the CPU their memory is measured together."""
    rows: list[Row] = []
    has_memory = plan.has_memory and not items[0].is_overhead
    for item in items:
        row = measure_item(item, plan.budget, partial(report, done + len(rows)))
        rows.append(_weigh(row) if has_memory else row)
    if not has_memory or items[0].case.device != "cpu":
        return rows
    for provider in CPU_MEMORY_PROVIDERS:
        what = f"{items[0].case.shape}  {items[0].case.dtype}: memory of {provider}"
        report(done + len(rows), what)
        peaks = memory.measure_on_cpu(provider, [item.case for item in items], plan.threads)
        for index, peak in enumerate(peaks):
            rows[index] = _with(rows[index], provider, lambda m, peak=peak: replace(m, peak=peak))
    return rows


def measure_item(item: Item, budget: Budget, report: Callable[[str], None]) -> Row:
    """Start every provider that serves the case, check it, and time them in turns."""
    case = item.case
    timer = timer_for(case.device, is_overhead=item.is_overhead, launched=case.launched)
    providers = [PROVIDERS[name] for name in item.providers]
    if case.qk_norm != "none" or any(provider.compiles for provider in providers):
        torch.compiler.reset()  # else torch gives up after a few shapes
    input_sets = [make_inputs(case, seed) for seed in range(num_input_sets(case))]

    @cache
    def parts_of(function: Function) -> list[Part]:
        return list(exact_parts(case, input_sets[0], function))

    started: dict[str, Started] = {}
    found: dict[str, Measurement] = {}
    for provider in providers:
        report(f"{case}: {'compile' if provider.compiles else 'start'} {provider.name}")
        try:
            started[provider.name], result = _start(provider, case, input_sets, timer)
        except Refused as refused:
            found[provider.name] = Measurement(provider=provider.name, skipped=str(refused))
            continue
        error = result_error(parts_of(provider.function), by_heads(provider, case, result))
        found[provider.name] = Measurement(provider=provider.name, relative_error=error)
        del result
    report(f"{case}: time")
    for name, timing in interleave(started, budget, timer).items():
        found[name] = replace(found[name], timing=timing)
    return Row(
        case=case,
        limits=item.limits,
        error_bound=error_bound(case),
        is_overhead=item.is_overhead,
        measurements=tuple(found.values()),
    )


def _start(
    provider: Provider, case: Case, input_sets: list[Inputs], timer: Timer
) -> tuple[Started, object]:
    """Make the call and call it once, or say why that is refused."""
    if reason := provider.refusal(case):
        raise Refused(reason)
    compiles = provider.compiles or case.device != "cpu"
    return attempt(
        lambda: start(make_rotating_call(provider, case, input_sets), timer, compiles=compiles),
        is_ours=provider.name == OURS,
    )


def _weigh(row: Row) -> Row:
    """The row with what Flashpoint and SDPA keep for backward, and on a GPU with all peaks."""
    on_gpu = row.case.device == "cuda"
    for name in [found.provider for found in row.measurements if found.timing]:
        is_counted = name in KEPT_PROVIDERS and row.case.qk_norm == "none"
        kept = memory.measure_kept(name, row.case) if is_counted else None
        peak = memory.measure_on_cuda(name, row.case) if on_gpu else None
        row = _with(row, name, lambda m, k=kept, p=peak: replace(m, kept_bytes=k, peak=p))
    return row


def _with(row: Row, provider: str, change: Callable[[Measurement], Measurement]) -> Row:
    """The row with the measurement of one provider changed."""
    return replace(
        row,
        measurements=tuple(
            change(found) if found.provider == provider else found for found in row.measurements
        ),
    )
