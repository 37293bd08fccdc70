"""Peaks of calls whose memory is known."""

import os
import sys
from functools import partial

import pytest
import torch
from implementations import needs_gpu

from flashpoint.lab.bench import memory
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.memory import (
    measure_in_child,
    measure_kept,
    measure_on_cuda,
    prepare_case,
)

pytestmark = pytest.mark.slow

ONES_BYTES = 64 * 2**20
SHAPE = Shape(1, 8, 4096, 64)
TENSOR_BYTES = 4 * 8 * 4096 * 64

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@on_linux
def test_peaks_are_what_the_calls_allocate():
    make_ones = partial(partial, torch.ones, ONES_BYTES // 4)
    backward = Case(shape=SHAPE, dtype="fp32", mode="training")
    peaks = measure_in_child([make_ones, partial(prepare_case, "sdpa", backward, 2), make_ones])
    first, gradients, second = (peak.extra_bytes for peak in peaks)
    assert first == pytest.approx(ONES_BYTES, rel=0.15)
    assert 3 * TENSOR_BYTES * 0.9 <= gradients <= 8 * TENSOR_BYTES
    assert second == pytest.approx(ONES_BYTES, rel=0.15)


@on_linux
def test_process_that_dies_gets_a_reason():
    (peak,) = measure_in_child([partial(partial, os._exit, 1)])
    assert peak.extra_bytes is None
    assert "process died" in peak.reason


def test_flashpoint_keeps_its_inputs_and_sdpa_the_output_too():
    case = Case(shape=Shape(1, 2, 64, 16), dtype="fp32", mode="backward")
    tensor_bytes, statistics_bytes = 4 * 2 * 64 * 16, 4 * 2 * 64
    assert measure_kept("flashpoint", case) == 3 * tensor_bytes
    assert measure_kept("sdpa_flash", case) == 4 * tensor_bytes + statistics_bytes


def test_forward_keeps_nothing():
    case = Case(shape=Shape(1, 2, 64, 16), dtype="fp32", mode="forward")
    assert measure_kept("flashpoint", case) is None


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("mode", "least"), [("forward", 1), ("backward", 3)])
def test_peak_on_the_gpu_is_at_least_the_result(mode, least):
    case = Case(shape=Shape(1, 8, 1024, 64), dtype="fp32", mode=mode, device="cuda")
    tensor_bytes = 4 * 8 * 1024 * 64
    peak = measure_on_cuda("sdpa", case).extra_bytes
    assert least * tensor_bytes <= peak <= 10 * tensor_bytes


def test_other_platforms_get_a_reason(monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    (peak,) = measure_in_child([partial(partial, int)])
    assert peak.extra_bytes is None
    assert peak.reason == "measured on Linux only, this is darwin"


def test_kernel_that_cannot_reset_the_mark_gets_a_reason(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(memory.Path, "write_text", refuse)
    peak = memory._measure(partial(partial, int))
    assert "Operation not permitted" in peak.reason
