"""The suite that reads images from shards."""

import io
import json
import sys

import pytest
from PIL import Image

from flashpoint.lab.bench.loader import suite
from flashpoint.lab.bench.loader.feeds import FEEDS
from flashpoint.lab.bench.loader.photographs import photograph
from flashpoint.lab.bench.loader.suite import LoaderCase, usual_case
from flashpoint.lab.cli import bench_loader
from flashpoint.lab.cli.main import main
from flashpoint.lab.data.jpeg_header import baseline_size

TINY = LoaderCase(
    device="cpu",
    model="vit_ti16",
    batch_size=2,
    image_size=32,
    num_images=6,
    num_different=3,
    workers=1,
    seconds=0.01,
)


def test_photographs_have_the_detail_of_natural_ones():
    wide, high = photograph(1), photograph(4)
    assert baseline_size(wide) == (500, 375)
    assert baseline_size(high) == (375, 500)
    assert photograph(1) == wide
    assert 80_000 < len(wide) < 120_000
    assert Image.open(io.BytesIO(wide)).convert("L").getextrema() == (0, 255)


@pytest.fixture
def without_timm(monkeypatch):
    """Its import takes long; missing packages are left out."""

    def missing(*_):
        raise ImportError("no timm")

    monkeypatch.setitem(FEEDS, "timm", missing)


@pytest.mark.usefixtures("without_timm")
def test_all_rates_are_measured_and_nothing_is_left(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(bench_loader, "usual_case", lambda device, is_quick: TINY)
    monkeypatch.setattr(
        sys, "argv", ["flashpoint", "bench", "--suite", "loader", "--device", "cpu", "--json", "-"]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert not stop.value.code
    assert not list(tmp_path.glob("flashpoint-*"))
    data = json.loads(out)
    assert data["feeds"].pop("timm") is None
    assert all(rate > 0 for rate in data["feeds"].values())
    assert data["share"] == data["fed"] / data["resident"]
    assert "not installed" in err
    assert "images from shards" in err


@pytest.mark.parametrize("words", [("--causal",), ("--dtype", "fp32"), ("--check",)])
def test_words_of_other_suites_are_refused(words, monkeypatch, capsys):
    line = ["flashpoint", "bench", "--suite", "loader", "--device", "cpu", *words]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code
    assert "loader" in capsys.readouterr().err


def test_usual_cases_are_of_the_recipe_on_a_gpu_and_small_elsewhere():
    gpu, cpu = usual_case("cuda", is_quick=False), usual_case("cpu", is_quick=True)
    assert (gpu.model, gpu.image_size) == ("vit_s16", 224)
    assert cpu.num_images < gpu.num_images
    assert suite.LEAST_SHARE == 0.95
