"""benchmarks/sequence.py: its parts at tiny sizes on a CPU, and what it says of limits."""

import pytest
import typer
from scripts import load_script

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
        medians = [row["times"][name]["median_s"] for name in ("chunks", "one call")]
        assert row["ratio"] == pytest.approx(medians[0] / medians[1])


def test_failed_part_leaves_its_reason(record):
    assert record["failed"] == {"broken": "RuntimeError: no room"}


@pytest.mark.parametrize(("both", "share"), [(3.0, 0.0), (2.0, 1.0), (2.5, 0.5)])
def test_hidden_share_is_of_the_shorter_one(sequence, both, share):
    assert sequence.hidden_share(2.0, 1.0, both) == share
    assert sequence.hidden_share(1.0, 2.0, both) == share


def test_limits_that_are_missed_are_named(sequence):
    fine = {"mode": "forward", "length": 9, "errors": {"o": 1e-3}, "ratio": 1.05}
    slow = {**fine, "ratio": 1.051}
    wrong = {**fine, "errors": {"dq": float("nan")}}
    said = sequence.problems_of({"failed": {"long": "no room"}, "chunks": [fine, slow, wrong]})
    assert said == [
        "long: no room",
        "mode forward, length 9: ratio 1.051, at most 1.05",
        "mode forward, length 9: error of dq nan, at most 1.0e-02",
    ]


def test_without_a_gpu_it_is_refused(sequence, tmp_path, monkeypatch):
    monkeypatch.setattr(sequence.torch.cuda, "is_available", lambda: False)
    with pytest.raises(typer.BadParameter, match="on a GPU, and there is none here"):
        sequence.main(tmp_path / "out.json")
    assert not list(tmp_path.iterdir())
