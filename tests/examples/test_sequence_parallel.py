"""The example of sequences on several processes runs, and equals one process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "sequence_parallel.py"

pytestmark = pytest.mark.distributed


def test_two_processes_train_as_one():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    shown = subprocess.run(
        [*command, "--standalone", str(EXAMPLE)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    first, last = map(float, re.findall(r"loss (\d\.\d+)", shown))
    assert last < 0.5 < first
    assert float(re.search(r"to one process: (\S+)", shown)[1]) < 1e-6
    assert "* ulysses" in shown
    assert len(EXAMPLE.read_text().splitlines()) <= 80
