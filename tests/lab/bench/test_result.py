"""What follows from the medians."""

from dataclasses import replace

import pytest
from lab.bench.samples import make_gpu_result, make_row


def test_speedup_and_rates_come_from_the_medians():
    row = make_row(ours_s=2.0, theirs_s=4.0)
    assert row.speedup(row.best_sdpa) == 2.0
    assert row.flops_per_s() == pytest.approx(3.5 * 4 * 8 * 16384**2 * 64 / 2)
    assert row.bytes_per_s() == row.case.bytes_moved / 2


def test_best_is_the_fastest_that_is_right():
    row = make_gpu_result("long").rows[0]
    assert row.best_of(row.best_sdpa).provider == "sdpa_cudnn"
    assert row.speedup(row.best_sdpa) == pytest.approx(1.5)
    wrong = tuple(
        replace(found, relative_error=float("nan")) if found.provider == "sdpa_cudnn" else found
        for found in row.measurements
    )
    row = replace(row, measurements=wrong)
    assert row.best_of(row.best_sdpa).provider == "sdpa_flash"
    assert row.speedup(("sdpa_cudnn",)) is None


def test_overhead_is_held_to_a_call_that_names_no_backend():
    rows = make_gpu_result("vit").rows
    assert {row.best_sdpa for row in rows if row.is_overhead} == {("sdpa",)}
    assert all("sdpa_flash" in row.best_sdpa for row in rows if not row.is_overhead)


def test_share_is_that_of_one_large_product():
    result = make_gpu_result("long")
    assert result.matrix_share(result.rows[0]) == pytest.approx(0.8)
    assert replace(result, matrix_flops_per_s={}).matrix_share(result.rows[0]) is None


def test_provider_that_was_not_asked_for_is_empty():
    found = make_row().of("flex_log")
    assert (found.timing, found.skipped, found.extra_bytes) == (None, None, None)
