"""Charts as files for papers: all drawn, the same bytes every time, names that stay in place."""

import dataclasses
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from lab.report.sample_studies import STUDIES, length_power, variance
from PIL import Image

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.report.pictures import write_pictures
from flashpoint.lab.runs.findings import Findings, Series


def renamed(findings, **changes):
    charts = [dataclasses.replace(chart, **changes) for chart in findings.charts]
    return dataclasses.replace(findings, charts=charts)


@pytest.mark.parametrize("make", STUDIES, ids=lambda make: make.__name__)
def test_every_chart_is_drawn_as_png_and_svg(make, tmp_path):
    findings = make().findings
    files = write_pictures(findings, tmp_path / "new" / "folder")
    names = [f"{chart.name}.{suffix}" for chart in findings.charts for suffix in ("png", "svg")]
    assert [file.name for file in files] == names
    for file in files:
        if file.suffix == ".svg":
            assert ElementTree.parse(file).getroot().tag.endswith("svg")
        else:
            with Image.open(file) as image:
                assert len(image.convert("RGB").getcolors(1 << 20)) > 20


def test_same_chart_gives_the_same_bytes(tmp_path):
    once = write_pictures(variance().findings, tmp_path / "a")
    again = write_pictures(variance().findings, tmp_path / "b")
    assert [f.read_bytes() for f in once] == [f.read_bytes() for f in again]


def test_no_chart_gives_no_file(tmp_path):
    assert write_pictures(Findings(verdicts=[], charts=[], tables=[]), tmp_path) == []


def test_chart_without_points_is_drawn_empty(tmp_path):
    empty = Series(name="relu", x=(1.0,), y=(None,))
    findings = renamed(variance().findings, series=[empty, dataclasses.replace(empty, name="b")])
    assert len(write_pictures(findings, tmp_path)) == 2
    assert len(write_pictures(renamed(findings, series=[]), tmp_path)) == 2


def test_long_title_stays_on_the_picture(tmp_path):
    title = "Accuracy against the power of the length, with and without a gate, by a long title"
    files = write_pictures(renamed(variance().findings, title=title), tmp_path)
    with Image.open(files[0]) as image:
        width, height = image.size
        edges = [(0, 0, 4, height), (width - 4, 0, width, height), (0, 0, width, 4)]
        inks = [image.convert("L").crop(edge).getextrema()[0] for edge in edges]
    assert inks == [255, 255, 255]


def test_signs_of_matplotlib_in_names_are_text(tmp_path):
    evil = "$x_{1"
    series = [Series(name=name, x=(evil, "_b"), y=(1, 2)) for name in (evil, "_relu")]
    findings = renamed(variance().findings, title=evil, x_title=evil, y_title=evil, series=series)
    assert len(write_pictures(renamed(findings, x_is_log=False), tmp_path)) == 2


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a b"])
def test_name_that_is_no_file_is_refused(name, tmp_path):
    with pytest.raises(InputError, match="must have letters, digits"):
        write_pictures(renamed(variance().findings, name=name), tmp_path)


def test_charts_of_one_name_are_refused(tmp_path):
    with pytest.raises(InputError, match="3 charts are called 'same'"):
        write_pictures(renamed(length_power().findings, name="same"), tmp_path)


def test_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write pictures into .*file"):
        write_pictures(variance().findings, tmp_path / "file")


def test_missing_matplotlib_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"\.\[lab\]"):
        write_pictures(variance().findings, tmp_path)


@pytest.mark.slow
def test_matplotlib_is_imported_when_something_is_drawn():
    code = "import sys, flashpoint.lab.report.pictures as p; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
