"""The CPU suite carries the limits that Flashpoint states, and plans keep them."""

import pytest

from flashpoint.bench.cases import Shape
from flashpoint.bench.plan import Options, make_items, make_overhead_items
from flashpoint.bench.suites import SUITES, Limits, stated_entry

CPU = SUITES["cpu"]
LONGEST = Shape(1, 8, 16384, 64)


def test_cpu_suite_states_its_limits():
    for entry in CPU.entries:
        assert (entry.limits("bf16").ratio, entry.limits("fp32").ratio) == (0.65, 1.0)
        slack = 64 * 10**6 if entry.shape == LONGEST else None
        assert entry.limits("bf16").memory_slack_bytes == slack
    assert CPU.overhead.limits("fp32").ratio == 3.0


def test_items_are_every_dtype_and_mode_of_every_shape():
    items = make_items(CPU.entries, ("bf16", "fp32"), ("forward", "training"), Options())
    assert len(items) == 4 * 2 * 2
    assert [str(item.case) for item in items[:3]] == [
        "8, 6, 197, 64  bf16 forward",
        "8, 6, 197, 64  bf16 training",
        "8, 6, 197, 64  fp32 forward",
    ]


def test_overhead_is_measured_with_and_without_a_graph():
    items = make_overhead_items(CPU.overhead, Options())
    assert [item.case.mode for item in items] == ["forward", "recording"]
    assert all(item.is_overhead for item in items)
    assert [item.limits.ratio for item in items] == [3.0, None]


@pytest.mark.parametrize("options", [Options(causal=True), Options(activation="gelu")])
def test_limits_hold_for_relu_without_causality_only(options):
    (item,) = make_items(CPU.entries[:1], ("bf16",), ("forward",), options)
    assert item.limits == Limits()


def test_shape_of_a_suite_keeps_its_limits_and_another_has_none():
    assert stated_entry(CPU, LONGEST).limits("bf16").ratio == 0.65
    assert stated_entry(CPU, Shape(1, 1, 1, 1)).limits("bf16") == Limits()
