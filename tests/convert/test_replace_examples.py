import io
import runpy
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments):
    """The lines that an example prints; here, where libraries are imported already."""
    before = sys.argv
    sys.argv = [name, *arguments]
    try:
        with redirect_stdout(io.StringIO()) as shown, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        sys.argv = before
    return shown.getvalue().splitlines()


@pytest.mark.slow
def test_example_for_timm_shows_what_changes(timm):
    lines = run("replace_timm.py")
    assert lines[1].startswith("2 of 3 attention modules replaced")
    right = {line[:34].strip(): int(line[34:-7]) for line in lines if line.endswith("% right")}
    assert min(right["softmax, 80 steps"], right["restored"]) > 90
    assert right["all layers replaced, 20 steps more"] > 85


@pytest.mark.slow
def test_example_for_torch_nn_shows_masks_and_weights():
    lines = run("replace_torch_nn.py")
    assert lines[0].startswith("3 of 3 attention modules replaced")
    assert float(lines[4].split()[-1]) < 1e-5
    assert "by 0.0e+00," in lines[5]
    assert float(lines[-1].split()[-1]) < 1e-5
