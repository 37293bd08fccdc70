"""benchmarks/neighbours.py: rows at a tiny size, and neighbours that end."""

import multiprocessing

import pytest
from scripts import load_script

from flashpoint.ops.cpu.native import build, call


@pytest.fixture(scope="module")
def script():
    return load_script("benchmarks/neighbours.py")


@pytest.mark.skipif(build.why_not() is not None, reason=f"no kernel: {build.why_not()}")
@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize("scores", ["none", "mask", "bias", "decoding"])
def test_a_row_has_three_times_and_two_ratios(script, monkeypatch, mode, scores):
    monkeypatch.setattr(script, "BUDGET", script.Budget(rounds=2, seconds=0.1))
    usual = (call.CLASSES, call._plans)
    causal = scores == "none"
    decoding = scores == "decoding"
    given = ("sigmoid", "none" if decoding else scores, decoding and mode == "forward")
    row = script.measure(script.Shape(1, 2, 64, 16), mode, causal, 1, *given)
    assert row["times"].keys() == {"flashpoint", "products", "sdpa"}
    medians = {name: timing["median_s"] for name, timing in row["times"].items()}
    assert row["ratio"] == pytest.approx(medians["flashpoint"] / medians["sdpa"])
    assert row["ratio_of_products"] == pytest.approx(medians["products"] / medians["sdpa"])
    assert usual == (call.CLASSES, call._plans)


def test_neighbours_end_with_what_they_were_for(script):
    with script.beside(2):
        assert len(multiprocessing.active_children()) == 2
    assert not multiprocessing.active_children()
