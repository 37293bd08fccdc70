"""Notebooks run from top to bottom, and show what they showed when they were stored."""

import re
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(file.name for file in EXAMPLES.glob("*.ipynb"))
LARGEST, SECONDS = 300_000, 60
FOLDERS = ("/tmp", "/home", "/root", "/usr", "site-packages")


def read(name):
    """A notebook as it is stored."""
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(EXAMPLES / name, as_version=4)


def cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook):
    """All that it prints."""
    outputs = [output for cell in cells(notebook) for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def kinds(notebook):
    """What each cell shows: streams by name, results by their richest form."""
    return [
        [output.get("name") or max(output.data) for output in cell.outputs]
        for cell in cells(notebook)
    ]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_stored_outputs_are_of_one_run_without_errors(name):
    notebook, text = read(name), (EXAMPLES / name).read_text("utf-8")
    assert len(text) < LARGEST
    numbers = [cell.execution_count for cell in cells(notebook)]
    assert numbers == [*range(1, len(numbers) + 1)]
    shown = [kind for cell in kinds(notebook) for kind in cell]
    assert shown.count("text/plain") > 0  # a figure
    assert "stderr" not in shown
    assert not [folder for folder in FOLDERS if folder in printed(notebook)]


def test_notebooks_are_listed():
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text("utf-8")
    assert {*re.findall(r"\(\.\./examples/([^)]*\.ipynb)\)", page)} == {*NOTEBOOKS}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a notebook in a process of its own; once a module."""
    pytest.importorskip("nbclient")
    from scripts import load_script

    execute, done = load_script("tools/notebooks.py").execute, {}

    def run(name):
        if name not in done:
            start = time.perf_counter()
            found = execute(EXAMPLES / name, tmp_path_factory.mktemp("notebook"))
            done[name] = found, time.perf_counter() - start
        return done[name]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs(run, name):
    found, _ = run(name)
    assert kinds(found) == kinds(read(name))
    assert re.sub(r"[\d.+-]+", "", printed(found)).split() == []
