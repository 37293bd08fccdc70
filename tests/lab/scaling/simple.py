"""Rates, links and models of round numbers, so that results can be worked out by hand."""

from lab.bench.samples import ENVIRONMENT, make_timing

from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.entry import Limits
from flashpoint.lab.bench.result import Measurement, Result, Row
from flashpoint.lab.scaling.estimate import Setting
from flashpoint.lab.scaling.links import Links
from flashpoint.lab.scaling.load import Load
from flashpoint.lab.scaling.rates import rates_of

LINKS = Links(node_bytes_per_s=100e9, network_bytes_per_s=10e9, gpus_per_node=8)
LOAD = Load(
    name="toy",
    width=64,
    depth=2,
    num_heads=4,
    num_kv_heads=4,
    mlp_dim=256,
    has_qk_norm=False,
    is_causal=False,
    num_parameters=100_000,
    token_flops=1e5,
    sample_flops=0.0,
    input_bytes=16,
)


def make_row(mode, length, flops_per_s, dim=16, error=None, **options):
    """A case that ran at this rate."""
    shape = Shape(1, 4, length, dim)
    case = Case(shape=shape, dtype="bf16", mode=mode, device="cuda", **options)
    timing = make_timing(case.flops / flops_per_s)
    ours = Measurement(provider="flashpoint", timing=timing, relative_error=error)
    return Row(
        case=case, limits=Limits(), error_bound=0.01, is_overhead=False, measurements=(ours,)
    )


def make_result(*rows, matrix=400e12):
    return Result(environment=ENVIRONMENT, rows=rows, matrix_flops_per_s={"bf16": matrix})


def make_rates(forward=200e12, backward=100e12):
    rows = (make_row("forward", 1024, forward), make_row("backward", 1024, backward))
    return rates_of([make_result(*rows)], ["toy.json"])


def make_setting(**changes):
    """1024 tokens, 8 samples, 8 GPUs of 1 GB."""
    given = {"tokens": 1024, "batch": 8, "num_gpus": 8, "memory_bytes": 1e9}
    return Setting(**{"load": LOAD, "rates": make_rates(), "links": LINKS, **given, **changes})
