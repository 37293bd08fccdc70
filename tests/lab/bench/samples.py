"""Results that nobody measured."""

import io

from rich.console import Console

from flashpoint.lab.bench.accuracy import error_bound
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.entry import Limits, SpeedLimit
from flashpoint.lab.bench.environment import Environment
from flashpoint.lab.bench.memory import Peak
from flashpoint.lab.bench.plan import Request, select_items
from flashpoint.lab.bench.providers.registry import USUAL
from flashpoint.lab.bench.result import Measurement, Result, Row
from flashpoint.lab.bench.timing import Timing
from flashpoint.lab.cli.bench_view import render

MB = 10**6

ENVIRONMENT = Environment(
    device="NVIDIA H200",
    driver="570.86.15",
    cores=16,
    threads=16,
    platform="Linux-x86_64",
    python="3.12.3",
    torch="2.11.0",
    flashpoint="0.2.0",
    commit="3b8627827c00",
    time_utc="2026-11-15T11:04:58+00:00",
    cuda="12.8",
    cudnn="91002",
    triton="3.6.0",
)
RATES = {
    "flashpoint": 600e12,
    "sdpa_cudnn": 400e12,
    "sdpa_flash": 300e12,
    "sdpa_efficient": 200e12,
    "sdpa": 400e12,
    "flex_log": 100e12,
    "flex_softmax": 90e12,
    "fa4": 500e12,
}


def make_timing(median_s, method="clock"):
    return Timing(
        median_s=median_s,
        p20_s=0.9 * median_s,
        p80_s=1.1 * median_s,
        rounds=5,
        repeats=1,
        method=method,
    )


def make_row(ours_s=0.0121, theirs_s=0.0202, ours_bytes=40 * MB, error=2.4e-3):
    """A row of the CPU suite."""
    return Row(
        case=Case(shape=Shape(1, 8, 16384, 64), dtype="bf16", mode="training"),
        limits=Limits(
            speed=(SpeedLimit(rivals=("sdpa",), must=1 / 0.65),), memory_slack_bytes=64 * MB
        ),
        error_bound=4e-3,
        is_overhead=False,
        measurements=(
            Measurement(
                provider="flashpoint",
                timing=make_timing(ours_s),
                relative_error=error,
                peak=Peak(ours_bytes),
            ),
            Measurement(provider="sdpa", timing=make_timing(theirs_s), peak=Peak(50 * MB)),
            Measurement(provider="plain", skipped="its L x L matrix takes 8.6 GB"),
        ),
    )


def make_result(*rows):
    """A result of rows in bf16."""
    return Result(environment=ENVIRONMENT, rows=rows, matrix_flops_per_s={"bf16": 2e11})


def draw(result, width=80):
    """What the terminal shows of a result."""
    console = Console(width=width, file=io.StringIO())
    console.print(render(result))
    return console.file.getvalue()


def make_gpu_result(suite="all"):
    """All rows of a suite, with the same rates everywhere."""
    request = Request(device="cuda", suite=suite, dtypes=("bf16",))
    return Result(
        suite=suite,
        environment=ENVIRONMENT,
        rows=tuple(make_gpu_row(item) for item in select_items(request, USUAL["cuda"])),
        matrix_flops_per_s={"bf16": 750e12},
    )


def make_gpu_row(item):
    """The row of an item; a query at a time is faster by as much as its keys are more."""
    work = item.case.bytes_moved * 150 if item.case.is_memory_bound else item.case.flops
    return Row(
        case=item.case,
        limits=item.limits,
        error_bound=error_bound(item.case),
        is_overhead=item.is_overhead,
        measurements=tuple(
            Measurement(
                provider=name,
                timing=make_timing(work / RATES[name], "graph"),
                relative_error=error_bound(item.case) / 2,
                peak=Peak(67 * MB),
                kept_bytes=100 * MB if name == "flashpoint" else 135 * MB,
            )
            for name in item.providers
        ),
    )
