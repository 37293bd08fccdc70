"""``flashpoint inspect`` from the command line."""

import json

import pytest
from lab.evaluation.trained import call, trained_run
from PIL import Image

from flashpoint.errors import InputError
from flashpoint.lab.cli import inspect as inspect_module
from flashpoint.lab.cli.inspect import inspect
from flashpoint.lab.training.run_folder import open_run


def test_table_and_files_are_made(tmp_path):
    json_file = tmp_path / "all.json"
    out, _ = call(inspect, trained_run(), "--out", tmp_path / "a", "--json", json_file)
    content = json.loads((tmp_path / "a" / "statistics.json").read_text())
    assert (content["num_images"], content["num_keys"]) == (256, 16)
    step = open_run(trained_run()).best_step
    assert (content["step"], content["data"]) == (step, "digits")
    assert [(h["layer"], h["head"]) for h in content["heads"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for head in content["heads"]:
        assert f"{head['sparsity']:.1%}" in out
        assert f"{head['mass']:.3f}" in out
        assert 0.0 < head["sparsity"] < 1.0
    assert json.loads(json_file.read_text()) == {"run": str(trained_run()), **content}
    for name in ("statistics.png", "maps.png"):
        with Image.open(tmp_path / "a" / name) as picture:
            assert picture.width > 300
    assert "64x64" not in out  # there are only 16 tokens


def test_files_go_into_the_run_where_reports_look(tmp_path):
    from shutil import copytree

    from flashpoint.lab.runs.run_files import read_runs

    run = copytree(trained_run("softmax"), tmp_path / "run")
    out, _ = call(inspect, run, "--samples", 10)
    (files,) = read_runs([run])
    assert len(files.maps) == 1
    assert files.statistics["num_images"] == 10
    assert f"{run / 'attention'}: statistics.json, statistics.png, maps.png" in out
    assert all(head["mass"] == pytest.approx(1.0) for head in files.statistics["heads"])


def test_chosen_layers_and_images_are_drawn(tmp_path):
    widths = []
    for layers in ("0", "0,-1"):
        call(inspect, trained_run(), "--out", tmp_path, "--layers", layers, "--images", 2)
        with Image.open(tmp_path / "maps.png") as picture:
            widths.append(picture.width)
    assert widths[1] / widths[0] == pytest.approx(3 / 2, rel=0.02)


def test_no_images_no_maps(tmp_path):
    out, _ = call(inspect, trained_run(), "--out", tmp_path, "--images", 0)
    assert not (tmp_path / "maps.png").exists()
    assert "maps.png" not in out


def test_many_heads_are_shown_by_layer(tmp_path, monkeypatch):
    monkeypatch.setattr(inspect_module, "MAX_ROWS", 3)
    out, _ = call(inspect, trained_run(), "--out", tmp_path, "--images", 0)
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["0"], ["1"])]
    assert [row[:2] for row in rows] == [["0", "2"], ["1", "2"]]
    assert "means over the heads" in " ".join(out.split())


@pytest.mark.parametrize(
    ("layers", "message"),
    [("0,9", "layer 9 does not exist: the model has 2"), ("a", "must be whole numbers")],
)
def test_wrong_layers_are_one_line(tmp_path, layers, message):
    with pytest.raises(InputError, match=message):
        call(inspect, trained_run(), "--out", tmp_path, "--layers", layers)
