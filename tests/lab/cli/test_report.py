"""``flashpoint report`` from the command line."""

import pytest
from lab.evaluation.trained import call, trained_run
from lab.report.run_folders import make_run

from flashpoint.errors import InputError
from flashpoint.lab.cli.report import report


def test_page_of_one_run_lies_in_it(tmp_path):
    run = make_run(tmp_path / "one")
    out, _ = call(report, run)
    assert f"{run / 'report.html'} (4." in out
    assert "Flashpoint: runs" in (run / "report.html").read_text()


def test_page_of_several_lies_in_their_folder(tmp_path):
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    call(report, *runs, "--title", "Two <runs>")
    assert "<h1>Two &lt;runs&gt;</h1>" in (tmp_path / "report.html").read_text()


def test_relative_and_absolute_folders_go_together(tmp_path, monkeypatch):
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    monkeypatch.chdir(tmp_path)
    call(report, "one", runs[1])
    assert (tmp_path / "report.html").exists()
    out, _ = call(report, "one", "two")
    assert out.startswith("report.html (")


def test_real_run_makes_a_page(tmp_path):
    page = tmp_path / "new" / "page.html"
    call(report, trained_run(), "--out", page)
    text = page.read_text()
    for part in ("relu_10", "Accuracy on validation data", "by time", "torch"):
        assert part in text


def test_wrong_folders_and_files_are_one_line(tmp_path):
    with pytest.raises(InputError, match="is not a run's folder"):
        call(report, tmp_path)
    with pytest.raises(InputError, match="cannot write the page"):
        call(report, make_run(tmp_path / "one"), "--out", "/proc/none/page.html")
