"""``flashpoint probe`` from the command line."""

import json
from shutil import copytree

import pytest
from lab.data.pictures import make_folder, make_shards
from lab.evaluation.trained import call, trained_run

from flashpoint.errors import InputError
from flashpoint.lab.cli.probe import probe


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


def test_class_list_lets_a_split_lack_a_class(tmp_path):
    make_folder(tmp_path / "train", {"ant": 3, "bee": 3, "cow": 3})
    make_folder(tmp_path / "val", {"ant": 2, "cow": 2})
    arguments = (trained_run(), "--data", tmp_path, "--shots", 2, "--seeds", 1, "--json", "-")
    with pytest.raises(InputError, match=r"first 'bee' and 'cow'.*--classes for a probe"):
        call(probe, *arguments)
    (tmp_path / "names.txt").write_text("ant\nbee\ncow\n")
    out, _ = call(probe, *arguments, "--classes", tmp_path / "names.txt")
    content = json.loads(out)
    assert (content["num_classes"], content["num_test"]) == (3, 4)
    assert content["classes"] == str(tmp_path / "names.txt")


def test_damaged_shards_are_reported(tmp_path, monkeypatch):
    """Of the split that a few images are taken from, and of the other."""
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "cache"))
    for split in ("train", "val"):
        make_shards(tmp_path / split, num_shards=3, each=40, classes=2)
        (tmp_path / split / "set-002.tar").write_bytes(b"garbage" * 1000)
    run = copytree(trained_run(), tmp_path / "run")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(
        config.replace("max_broken_share: 0.01", "max_broken_share: 0.5")
    )
    out, err = call(probe, run, "--data", f"shards:{tmp_path}", "--seeds", 1, "--json", "-")
    damage = [f"{tmp_path}/{split}/set-002.tar: no header at byte 0" for split in ("train", "val")]
    assert json.loads(out)["broken"] == damage
    assert f"2 images or shards cannot be read: {', '.join(damage)}." in err
