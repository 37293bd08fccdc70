import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
STUBS = """
import runpy, sys, torch
try:
    import torchvision
except ImportError:
    pass
except RuntimeError:  # beside a CPU torch that tools/mend_torchvision.py did not see
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", schema)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run(name):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STUBS, str(EXAMPLES / name)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


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
