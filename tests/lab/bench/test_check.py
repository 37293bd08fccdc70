"""Rows are compared with their limits, and what breaks one says both numbers."""

import re
from dataclasses import replace

import pytest
from lab.bench.samples import MB, make_gpu_result, make_row

from flashpoint.lab.bench.check import broken_promises


def gpu_row(work, **changes):
    """The row of the long suite at L = 4096 and D = 64 with some measurements changed."""
    row = next(
        row
        for row in make_gpu_result("long").rows
        if row.case.work == f"bf16 {work}" and str(row.case.shape) == "4, 16, 4096, 64"
    )
    return replace(
        row,
        measurements=tuple(
            replace(found, **changes.get(found.provider, {})) for found in row.measurements
        ),
    )


def slower(row, factor):
    timing = row.of("flashpoint").timing
    return replace(timing, median_s=timing.median_s * factor)


def broken(row):
    """The promises that a row breaks, and the numbers in what is said of each."""
    return {
        name: re.findall(r"[\d.]+(?:e-\d+)?", said) for name, said in broken_promises(row).items()
    }


def test_kept_promises_say_nothing():
    assert broken_promises(make_row()) == {}
    results = map(make_gpu_result, ("long", "decode"))
    assert all(broken_promises(row) == {} for result in results for row in result.rows)


def test_broken_promises_say_both_numbers():
    row = make_row(ours_s=0.02, theirs_s=0.02, ours_bytes=120 * MB, error=0.5)
    assert broken(row) == {
        "error": ["5.0e-01", "4e-03"],
        "speed against sdpa": ["1.00", "1.54"],
        "memory": ["120", "114", "50", "64"],
    }


def test_each_rival_has_its_own_limit():
    row = gpu_row("forward")
    row = gpu_row("forward", flashpoint={"timing": slower(row, 2.0)})
    assert broken(row) == {
        "speed against sdpa_cudnn and sdpa_flash": ["0.75", "1.40"],
        "speed against flex_log": ["3.00", "4.00"],
    }


def test_bytes_kept_for_backward_are_compared_with_flash():
    row = gpu_row("backward", flashpoint={"kept_bytes": 120 * MB})
    assert broken(row) == {"kept": ["120.0", "0.89", "135.0", "0.78"]}


def test_no_result_of_ours_breaks_a_promise():
    gone = {"timing": None, "relative_error": None, "skipped": "out of memory"}
    found = broken_promises(gpu_row("forward", flashpoint=gone))
    assert list(found) == ["error"]
    assert found["error"].endswith("out of memory")


def test_limit_without_a_right_rival_is_not_kept():
    row = gpu_row("forward", flex_log={"timing": None, "skipped": "no compiler"})
    found = broken_promises(row)
    assert list(found) == ["speed against flex_log"]
    assert found["speed against flex_log"].endswith("no right result of flex_log")


@pytest.mark.parametrize("names", [("flashpoint",), ()])
def test_rivals_nobody_asked_for_break_nothing(names):
    row = make_row(ours_s=1.0)
    asked = tuple(found for found in row.measurements if found.provider in names)
    assert broken_promises(replace(row, measurements=asked)) == {}


def test_wrong_result_of_a_rival_is_not_ours():
    assert broken_promises(gpu_row("forward", sdpa_cudnn={"relative_error": 1.0})) == {}
