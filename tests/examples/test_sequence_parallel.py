"""The examples of sequences on several processes run, and equal one process."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import flashpoint

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "sequence_parallel.py"
TITAN = Path(__file__).parent / "titan_llama.py"
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


def test_torchtitans_own_llama_on_two_processes_equals_one():
    pytest.importorskip("torchtitan", reason="runs the example's hook in torchtitan 0.3.0")
    shown = run("torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(TITAN))
    errors = re.findall(r"output (\S+), gradient (\S+)", shown)
    assert len(errors) == 12
    assert all(float(error) < 1e-5 for pair in errors for error in pair)


def test_inner_attention_for_torchtitan_keeps_documents_apart():
    example = runpy.run_path(str(EXAMPLES / "torchtitan_context_parallel.py"))
    attend = example["PointwiseInnerAttention"](None, "zigzag", alpha=0.5)
    q, k, v = torch.randn(3, 2, 8, 4, 16)
    documents = SimpleNamespace(cu_seq_q=torch.tensor([0, 3, 8, 16]), max_q=8)
    o = attend(q, k, v, attention_masks=documents)
    for row, own in ((0, slice(0, 3)), (0, slice(3, 8)), (1, slice(0, 8))):
        q_, k_, v_ = (x[row, own].transpose(0, 1) for x in (q, k, v))  # [H, L, D]
        alone = flashpoint.attention(q_[None], k_[None], v_[None], causal=True, alpha=0.5)
        torch.testing.assert_close(o[row, own].transpose(0, 1), alone[0])
    with pytest.raises(TypeError, match="must be VarlenMetadata or None, not int"):
        attend(q, k, v, attention_masks=1)


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
