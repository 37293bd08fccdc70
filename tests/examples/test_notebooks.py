"""Notebooks run from top to bottom, and show what their stored outputs show."""

import re
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest
from scripts import load_script

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(file.name for file in EXAMPLES.glob("*.ipynb"))
LARGEST = 300_000
SECONDS = 60
"""Of a processor."""
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
    """What each cell shows: streams by name, results by their first kind."""
    return [
        [output.get("name") or min(output.data) for output in cell.outputs]
        for cell in cells(notebook)
    ]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_stored_outputs_are_of_one_run_without_errors(name):
    notebook, text = read(name), (EXAMPLES / name).read_text("utf-8")
    assert len(text) < LARGEST
    numbers = [cell.execution_count for cell in cells(notebook)]
    assert numbers == [*range(1, len(numbers) + 1)]
    shown = [kind for cell in kinds(notebook) for kind in cell]
    assert "image/png" in shown
    assert "stderr" not in shown
    assert not [folder for folder in FOLDERS if folder in printed(notebook)]


def test_notebooks_are_listed():
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text("utf-8")
    assert {*re.findall(r"\(\.\./examples/([^)]*\.ipynb)\)", page)} == {*NOTEBOOKS}


def run(name, folder):
    """A notebook with the outputs of a run now."""
    pytest.importorskip("nbclient")
    before = getrusage(RUSAGE_CHILDREN).ru_utime
    found = load_script("tools/notebooks.py").execute(EXAMPLES / name, folder)
    assert getrusage(RUSAGE_CHILDREN).ru_utime - before < SECONDS
    assert kinds(found) == kinds(read(name))
    return printed(found)


def percent(shown):
    """The numbers before "%", by what stands at the line's start."""
    found = re.findall(r"^(.*?)  +(?:names )?(\d+\.\d)%", shown, re.MULTILINE)
    return {what.strip(): float(number) for what, number in found}


def test_notebooks_have_tests():
    tested = re.findall(r'run\("(.*\.ipynb)"', Path(__file__).read_text("utf-8"))
    assert sorted(tested) == NOTEBOOKS


@pytest.mark.slow
def test_own_model_learns_with_every_attention(tmp_path):
    right = percent(run("own_model.ipynb", tmp_path))
    assert right.keys() == {"softmax", "relu", "relu4/sum"}
    assert min(right.values()) > 75


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_own_activation_has_an_exact_kernel(tmp_path):
    shown = run("own_activation.ipynb", tmp_path)
    assert shown.count("True") == 2
    errors = re.findall(r"^ +(?:o|dq|dk|dv) +(\S+) +(\S+)$", shown, re.MULTILINE)
    assert len(errors) == 4
    assert all(float(kernel) < 2 * float(plain) + 1e-7 for kernel, plain in errors)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")
def test_converted_vit_is_fine_tuned(tmp_path):
    shown = run("fine_tune_vit.ipynb", tmp_path)
    right = percent(shown)
    assert right["replaced by relu"] < right["fine-tuned for 50 steps"]
    assert right["loaded again"] == right["fine-tuned for 50 steps"]
    assert shown.count(" -> ") == 2


@pytest.mark.slow
def test_attention_maps_are_of_models_that_learned(tmp_path):
    right = percent(run("attention_maps.ipynb", tmp_path))
    assert right.keys() == {"softmax", "relu"}
    assert min(right.values()) > 60


@pytest.mark.slow
def test_own_study_comes_to_verdicts(tmp_path):
    shown = run("own_study.ipynb", tmp_path)
    assert len(re.findall(r"\. +(?:supports|contradicts|undecided) +[+-]", shown)) == 2
    assert len(re.findall(r"^ +(?:softmax|relu) +[14] +3 ", shown, re.MULTILINE)) == 4
