"""Results go to JSON and back, are compared with their limits, and fit a terminal."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from flashpoint.bench.cases import Case, Shape
from flashpoint.bench.check import broken_promises
from flashpoint.bench.environment import describe
from flashpoint.bench.memory import Peak
from flashpoint.bench.result import Measurement, Result, Row
from flashpoint.bench.suites import Limits
from flashpoint.bench.table import format_seconds, render
from flashpoint.bench.timing import Timing
from flashpoint.errors import InputError

MB = 10**6


def make_timing(median_s):
    return Timing(
        median_s=median_s, p20_s=0.9 * median_s, p80_s=1.1 * median_s, rounds=5, repeats=1
    )


def make_row(ours_s=0.0121, theirs_s=0.0202, ours_bytes=40 * MB, error=2.4e-3):
    return Row(
        case=Case(shape=Shape(1, 8, 16384, 64), dtype="bf16", mode="training"),
        limits=Limits(ratio=0.65, memory_slack_bytes=64 * MB),
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
    return Result(environment=describe(), rows=rows)


def draw(result, width):
    console = Console(width=width, file=io.StringIO())
    console.print(render(result))
    return console.file.getvalue()


def test_json_round_trip_keeps_everything():
    result = make_result(make_row(), replace(make_row(), is_overhead=True))
    assert Result.from_json(result.to_json()) == result


def test_other_format_is_refused():
    data = json.loads(make_result(make_row()).to_json()) | {"format": 99}
    with pytest.raises(InputError, match="format is 99, this version reads 1"):
        Result.from_json(json.dumps(data))


def test_ratio_and_rate_come_from_the_medians():
    row = make_row(ours_s=2.0, theirs_s=4.0)
    assert row.ratio == 0.5
    assert row.gflops_per_s == pytest.approx(3.5 * 4 * 8 * 16384**2 * 64 / 2 / 1e9)


def test_kept_promises_say_nothing():
    assert broken_promises(make_row()) == {}


def test_broken_promises_say_both_numbers():
    row = make_row(ours_s=0.02, theirs_s=0.02, ours_bytes=120 * MB, error=0.5)
    assert broken_promises(row) == {
        "error": "relative error 5.0e-01 is beyond rounding (3e-02)",
        "ratio": "time is 1.00x SDPA's, limit 0.65x",
        "memory": "peak extra memory is 120 MB, limit 114 MB (SDPA's 50 MB and 64 MB)",
    }


def test_nothing_measured_breaks_no_limit():
    row = make_row(ours_s=1.0)
    unmeasured = tuple(
        replace(found, timing=None, peak=None, relative_error=None) for found in row.measurements
    )
    assert broken_promises(replace(row, measurements=unmeasured)) == {}


@pytest.mark.parametrize("width", [80, 120])
def test_table_fits_the_terminal_without_cutting(width):
    rows = (make_row(), make_row(99.4e-6, 12.0), replace(make_row(), is_overhead=True))
    text = draw(make_result(*rows), width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    assert "1, 8, 16384, 64" in text
    assert "bf16 training" in text
    assert "call overhead" in text
    assert "12.1 ms" in text
    assert "10.9-13.3" in text
    assert "its L x L matrix takes 8.6 GB" in text


def test_table_marks_limits_without_color():
    assert "<=0.65" in draw(make_result(make_row()), 80)
    assert ">0.65" in draw(make_result(make_row(ours_s=1.0)), 80)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.2e-7, "0.32 us"),
        (5.65e-6, "5.65 us"),
        (9.999e-4, "1000 us"),
        (0.1234, "123 ms"),
        (13.25, "13.2 s"),
    ],
)
def test_seconds_have_three_digits_and_a_unit(seconds, text):
    assert format_seconds(seconds) == text


def test_reason_for_missing_memory_is_shown_once():
    row = make_row()
    missing = tuple(replace(found, peak=Peak(None, "no Linux")) for found in row.measurements[:2])
    row = replace(row, measurements=(*missing, row.measurements[2]))
    assert draw(make_result(row, row), 80).count("No memory of sdpa: no Linux.") == 1
