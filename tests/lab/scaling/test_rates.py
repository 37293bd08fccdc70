"""Rates come out of bench files: by mode, head dim and length, of right results only."""

from dataclasses import replace
from pathlib import Path

import pytest
from lab.scaling.simple import make_result, make_row

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.bench.result_file import read, to_json
from flashpoint.lab.scaling import rates as module
from flashpoint.lab.scaling.rates import rates_of, read_rates, stored_rates

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def rates(*rows, **changes):
    return rates_of([make_result(*rows, **changes)], ["mine.json"])


def test_rate_is_interpolated_over_the_logarithm_of_the_length():
    found = rates(make_row("forward", 1024, 500e12), make_row("forward", 4096, 700e12))
    lengths = (64, 1024, 2048, 4096, 2**20)
    assert [round(found.attention("forward", 16, x) / 1e12) for x in lengths] == [
        *(500, 500, 600, 700, 700)
    ]


def test_other_options_and_wrong_results_do_not_count():
    found = rates(
        make_row("forward", 1024, 500e12),
        make_row("forward", 2048, 9e12, causal=True),
        make_row("forward", 2048, 9e12, activation="silu"),
        make_row("forward", 2048, 9e12, error=0.5),
        make_row("forward", 512, 300e12, qk_norm="layer"),
    )
    assert found.attention("forward", 16, 2048) == pytest.approx(500e12)
    assert found.attention("forward", 16, 2048, "layer") == pytest.approx(300e12)
    assert (found.longest(16), found.longest(16, "layer"), found.longest(32)) == (1024, 512, 0)


def test_memory_is_as_fast_as_the_fastest_call_and_products_are_the_median():
    fast, slow = make_row("forward", 1024, 500e12), make_row("forward", 4096, 500e12)
    results = [make_result(fast, slow, matrix=x) for x in (300e12, 500e12, 900e12)]
    found = rates_of(results, ["a", "b", "c"])
    assert found.matrix_flops_per_s == 500e12
    assert found.memory_bytes_per_s == fast.bytes_per_s()


def test_head_dim_that_was_not_measured_is_one_line():
    with pytest.raises(InputError, match=r"head dim 64 was measured, only 16\. Measure with"):
        rates(make_row("forward", 1024, 5e12)).attention("forward", 64, 1024)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (make_result(), "mine.json holds no rows of relu in bf16"),
        (replace(make_result(), matrix_flops_per_s={}), "holds no rate of a large matrix product"),
    ],
)
def test_file_without_a_rate_is_refused(result, said):
    with pytest.raises(InputError, match=said):
        rates_of([result], ["mine.json"])


def test_files_of_two_devices_are_refused():
    one = make_result(make_row("forward", 1024, 5e12))
    other = replace(one, environment=replace(one.environment, device="B200"))
    with pytest.raises(InputError, match="several devices: B200, NVIDIA H200"):
        rates_of([one, other], ["a.json", "b.json"])


def test_file_of_a_user_is_read(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(to_json(make_result(make_row("forward", 1024, 500e12))))
    found = read_rates([file])
    assert (found.sources, found.device) == (("mine.json",), "NVIDIA H200")
    assert found.attention("forward", 16, 1024) == pytest.approx(500e12)


def test_package_without_its_files_says_what_to_do(monkeypatch):
    monkeypatch.setattr(module, "STORED", ("benchmarks/results/none.json",))
    with pytest.raises(UnsupportedError, match="Install it again, or give --rates FILE"):
        stored_rates()


LONG = [
    row
    for row in read(RESULTS / "h200_long.json").rows
    if row.case.activation == "relu" and not row.case.causal
]

LONGER = [row for row in LONG if row.case.shape.length > 1024]


@pytest.mark.parametrize("row", LONG, ids=lambda row: str(row.case))
def test_stored_times_of_long_sequences_come_back(row):
    case = row.case
    rate = stored_rates().attention(case.mode, case.shape.dim, case.shape.length)
    assert case.flops / rate == pytest.approx(row.of("flashpoint").timing.median_s, rel=1e-6)


@pytest.mark.parametrize("row", LONGER, ids=lambda row: str(row.case))
def test_time_is_predicted_within_an_eighth_from_other_lengths(row):
    """Each length left out: the one between others, and the longest by the one before it."""
    case, whole = row.case, read(RESULTS / "h200_long.json")
    rest = [other for other in whole.rows if other.case.shape.length != case.shape.length]
    rate = rates_of([replace(whole, rows=tuple(rest))], ["rest"])
    predicted = case.flops / rate.attention(case.mode, case.shape.dim, case.shape.length)
    assert predicted == pytest.approx(row.of("flashpoint").timing.median_s, rel=0.125)
