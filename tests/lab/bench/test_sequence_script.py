"""benchmarks/sequence.py: its parts at tiny sizes on a CPU, and what it says of limits."""

from types import SimpleNamespace

import pytest
import typer
from scripts import load_script

from docs_numbers import sequences
from flashpoint.lab.bench.timing import Budget, CpuTimer


@pytest.fixture(scope="module")
def sequence():
    return load_script("benchmarks/sequence.py")


@pytest.fixture(scope="module")
def record(sequence):
    """All parts that a CPU can run."""
    timer, written = CpuTimer(), []
    sequence.BUDGET = Budget(rounds=2, seconds=0.0)
    parts = {
        "chunks": lambda: sequence.compare_chunks("cpu", timer, 24, (8,), 3),
        "long": lambda: [sequence.run_long("cpu", timer, 40, 8)],
        "strategies": lambda: sequence.run_strategies("cpu", 24, 8),
        "broken": _raise,
    }
    with sequence.one_rank("gloo"):
        found = sequence.measure(parts, written.append)
    assert len(written) == len(parts)
    return found


def _raise():
    raise RuntimeError("no room\nand more")


def test_parts_agree_with_one_call(sequence, record):
    assert {row["strategy"] for row in record["strategies"]} == set(sequence.STRATEGIES)
    assert len(record["strategies"]) == 4 * 2 * 2
    for part in ("strategies", "chunks", "long"):
        for row in record[part]:
            assert set(row["errors"]) == {"o", "dq", "dk", "dv"}
    assert sequence.problems_of({**record, "failed": {}, "chunks": []}) == []
    assert max(max(row["errors"].values()) for row in record["chunks"]) <= sequence.MOST_ERROR


def test_long_counts_products(record):
    (row,) = record["long"]
    flops = 4 * 8 * 40**2 * 8
    assert row["forward_flops_per_s"] * row["forward_s"] == pytest.approx(flops)
    assert row["backward_flops_per_s"] * row["backward_s"] == pytest.approx(2.5 * flops)


def test_chunks_are_timed_both_ways(record):
    assert [row["mode"] for row in record["chunks"]] == ["forward", "backward"]
    for row in record["chunks"]:
        for ratio, times in (("ratio", "times"), ("in_a_row", "times_of_rows")):
            medians = [row[times][name]["median_s"] for name in ("chunks", "one call")]
            assert row[ratio] == pytest.approx(medians[0] / medians[1])


def test_calls_in_a_row_are_timed_together(sequence):
    made = []
    calls = {name: lambda name=name: made.append(name) for name in ("chunks", "one call")}
    timer = CpuTimer()
    timer.seconds_of = lambda call: call() or 1.0
    row = sequence._time_both_ways(calls, timer)
    assert row["calls_in_a_row"] == sequence.IN_A_ROW
    last = made[-2 * sequence.IN_A_ROW :]
    assert [len(set(half)) for half in (last[:5], last[5:], last)] == [1, 1, 2]


def test_failed_part_leaves_its_reason(record):
    assert record["failed"] == {"broken": "RuntimeError: no room"}


@pytest.mark.parametrize(("both", "share"), [(3.0, 0.0), (2.0, 1.0), (2.5, 0.5)])
def test_hidden_share_is_of_the_shorter_one(sequence, both, share):
    assert sequence.hidden_share(2.0, 1.0, both) == share
    assert sequence.hidden_share(1.0, 2.0, both) == share


def test_limits_that_are_missed_are_named(sequence):
    fine = {"mode": "forward", "length": 9, "errors": {"o": 1e-3}, "ratio": 1.05}
    slow = {**fine, "ratio": 1.051}
    slow_in_a_row = {**fine, "in_a_row": 1.06}
    wrong = {**fine, "errors": {"dq": float("nan")}}
    rows = [fine, slow, slow_in_a_row, wrong]
    said = sequence.problems_of({"failed": {"long": "no room"}, "chunks": rows})
    assert said == [
        "long: no room",
        "mode forward, length 9: ratio 1.051, at most 1.05",
        "mode forward, length 9: in a row 1.060, at most 1.05",
        "mode forward, length 9: error of dq nan, at most 1.0e-02",
    ]


def test_table_of_chunks_has_calls_in_a_row_where_they_were_timed():
    rows = [{"mode": mode, "dim": 64, "ratio": 1.03} for mode in ("forward", "backward")]
    timed = [{**row, "in_a_row": 1.02} for row in rows]
    before, since = (
        sequences._chunks(SimpleNamespace(read_json=lambda _, found=found: found))
        for found in ({"chunks": rows}, {"chunks": timed})
    )
    assert before.splitlines()[2:] == ["| forward | 1.030 |", "| backward | 1.030 |"]
    assert since.splitlines()[3] == "| forward, in a row | 1.020 |"
    assert len(since.splitlines()) == 6


def test_without_a_gpu_it_is_refused(sequence, tmp_path, monkeypatch):
    monkeypatch.setattr(sequence.torch.cuda, "is_available", lambda: False)
    with pytest.raises(typer.BadParameter, match="on a GPU, and there is none here"):
        sequence.main(tmp_path / "out.json")
    assert not list(tmp_path.iterdir())
