"""``flashpoint probe`` from the command line."""

import json

import pytest
from evaluation.trained import call, trained_run

from flashpoint.cli.probe import probe
from flashpoint.errors import InputError


def test_mean_and_spread_over_seeds_are_shown_and_written(tmp_path):
    file = tmp_path / "probe.json"
    out, _ = call(probe, trained_run(), "--data", "digits", "--shots", 5, "--json", file)
    content = json.loads(file.read_text())
    assert content["seeds"] == [0, 1, 2]
    assert content["mean"] == pytest.approx(sum(content["accuracies"]) / 3)
    assert content["mean"] > 0.3
    for number in (content["mean"], content["spread"], *content["accuracies"]):
        assert f"{number:.2%}" in out
    assert (content["shots"], content["num_test"]) == (5, 360)


def test_one_seed_has_no_spread():
    out, _ = call(probe, trained_run(), "--data", "digits", "--seeds", 1, "--json", "-")
    assert json.loads(out)["spread"] is None


def test_too_many_shots_are_one_line():
    with pytest.raises(InputError, match=r"shots=500 must lie between 1 and 1\d\d"):
        call(probe, trained_run(), "--data", "digits", "--shots", 500)
