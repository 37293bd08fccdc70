"""``flashpoint doctor`` reports what is here and notices an implementation that is wrong."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import flashpoint
from flashpoint.lab.cli.main import app
from flashpoint.ops import api


def run_doctor(*arguments):
    """The result of the verb on a wide terminal."""
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "250"})


@pytest.fixture
def findings():
    """What ``doctor --json`` prints, parsed."""
    result = run_doctor("--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def break_cpu(monkeypatch, spoil):
    """Put ``spoil`` over the results of impl="cpu"."""
    true_attention = api.attention

    def attention(*tensors, impl, **options):
        o = true_attention(*tensors, impl=impl, **options)
        return spoil(o) if impl == "cpu" else o

    monkeypatch.setattr(api, "attention", attention)


def test_json_holds_versions_and_devices(findings):
    assert findings["versions"]["flashpoint"] == flashpoint.__version__
    assert findings["versions"]["torch"].startswith("2.")
    assert findings["cpu"]["threads"] >= 1
    assert isinstance(findings["gpus"], list)


def test_gpus_are_described(monkeypatch):
    device = SimpleNamespace(name="Big GPU", major=9, minor=0, total_memory=80 * 2**30)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: device)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("flashpoint.ops.implementations.survey", list)  # nothing to run there
    monkeypatch.setattr("flashpoint.lab.cli.doctor._describe_kernels", str)
    gpu = {"name": "Big GPU", "capability": "9.0", "memory_gib": 80.0, "driver": "unknown"}
    gpu["kernels"] = "cuda:0"
    assert json.loads(run_doctor("--json").stdout)["gpus"] == [gpu]


def test_available_implementations_are_exact(findings):
    rows = {row["name"]: row for row in findings["implementations"]}
    assert rows["reference"]["available"]
    assert rows["cpu"]["available"]
    assert rows["triton"]["available"] == (find_spec("triton") is not None)
    for row in rows.values():
        assert row["detail"]
        assert row["verdict"] == ("exact" if row["available"] else "")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("value", ["0", "1"])
def test_triton_without_a_gpu_is_interpreted_or_missing(value):
    environment = os.environ | {"TRITON_INTERPRET": value, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "flashpoint", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    triton = json.loads(done.stdout)["implementations"][2]
    assert triton["available"] == (value == "1")
    lines = {
        "0": "no CUDA device is visible; TRITON_INTERPRET=1 runs the kernels on the CPU, slowly",
        "1": "fused kernels; interpreted on the CPU, for tests",
    }
    assert triton["detail"] == lines[value]
    assert triton["verdict"] == {"0": "", "1": "exact"}[value]


def test_incomplete_extras_come_with_their_command(findings):
    if not findings["extras"]:
        pytest.skip("flashpoint runs from its source, not installed: no metadata to read")
    extras = {extra["name"]: extra for extra in findings["extras"]}
    assert {"lab", "timm", "hf", "study", "onnx", "dev"} <= extras.keys()
    assert "pytest" in extras["dev"]["installed"]
    for name, extra in extras.items():
        command = f'pip install -e ".[{name}]"' if extra["missing"] else None
        assert extra["install"] == command


def test_tables_name_every_part():
    output = run_doctor().output
    for part in ("Versions", "CPU", "GPUs", "Implementations", "Extras", "exact"):
        assert part in output


@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_wrong_result_fails(monkeypatch, factor):
    break_cpu(monkeypatch, lambda o: o * factor)
    result = run_doctor()
    assert result.exit_code == 1
    assert "WRONG" in result.output


def test_broken_implementation_is_reported_not_raised(monkeypatch):
    def raise_it(o):
        raise RuntimeError("no compiler")

    break_cpu(monkeypatch, raise_it)
    result = run_doctor()
    assert result.exit_code == 1
    assert "failed: RuntimeError: no compiler" in result.output


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(
    ("version", "said"),
    [("3.9.1", "is supported"), ("3.42.0", "is not supported yet (3.5 to 3.9 are)")],
)
def test_gpus_say_whether_triton_is_supported(monkeypatch, version, said):
    import torch
    import triton

    from flashpoint.lab.cli.doctor import _describe_kernels
    from flashpoint.ops.gpu import dispatch

    monkeypatch.setattr(dispatch, "serves", lambda _: False)
    monkeypatch.setattr(triton, "__version__", version)
    words = _describe_kernels(torch.device("cuda", 0))
    assert words.startswith(f"portable; Triton {version} {said}")


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_of_a_typical_call_come_with_reasons(findings):
    *before, served = findings["kernels"]
    assert served["forward"] == "serves"
    reasons = {row["name"]: row["forward"] for row in before}
    assert reasons["whole heads"] == "Lq=197 is over 64 tokens"
    assert "serves" not in reasons.values()
