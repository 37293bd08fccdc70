"""The examples of sequences on several processes run, and equal one process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "sequence_parallel.py"
OTHERS = ("hugging_face_sequence_parallel.py", "torchtitan_context_parallel.py")

pytestmark = pytest.mark.distributed


def run(module, *arguments):
    """What a module prints."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_train_as_one():
    shown = run("torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(EXAMPLE))
    first, last = map(float, re.findall(r"loss (\d\.\d+)", shown))
    assert last < 0.5 < first
    assert float(re.search(r"to one process: (\S+)", shown)[1]) < 1e-6
    assert "* ulysses" in shown
    assert len(EXAMPLE.read_text().splitlines()) <= 80


def test_other_peoples_models_equal_one_process():
    pytest.importorskip("transformers")
    shown = run("examples.forked", *(str(EXAMPLES / name) for name in OTHERS))
    first, last = map(float, re.findall(r"loss (\d\.\d+)", shown))
    assert last < 1 < first
    assert "elements that this rank sent: 655,360" in shown
    errors = re.findall(r"to one process: (\S+)", shown)
    assert len(errors) == 3
    assert all(float(error) < 1e-6 for error in errors)
    assert all(len((EXAMPLES / name).read_text().splitlines()) <= 130 for name in OTHERS)
