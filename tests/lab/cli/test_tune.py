"""``flashpoint tune`` from the command line."""

import sys

import pytest
import torch
from implementations import HAS_GPU, HAS_TRITON, needs_gpu

from flashpoint.lab.cli.main import main

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.lab.bench import cases
from flashpoint.ops.gpu import dispatch
from flashpoint.ops.gpu.tiles import autotune, stored

without_gpu = pytest.mark.skipif(HAS_GPU, reason="is about machines without a GPU")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command in this process; gives its exit status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path))
    stored.forget()

    def run_tune(*arguments):
        monkeypatch.setattr(sys, "argv", ["flashpoint", "tune", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    yield run_tune
    stored.forget()


@without_gpu
def test_without_a_gpu_one_line_says_what_is_needed(run):
    status, out, err = run()
    assert (status, out) == (2, "")
    assert err == (
        f"error: tune needs an NVIDIA GPU: torch {torch.__version__} sees none. "
        "Pass --dry-run to see the candidates, or see `flashpoint doctor`.\n"
    )


def test_dry_run_shows_candidates_and_stores_nothing(run, tmp_path):
    shapes = ("--shape", "1,2,4096,64", "--shape", "1,8/2,1:4096,128")
    status, out, err = run("--dry-run", *shapes, "--causal")
    assert (status, err) == (0, "")
    rows = [line.replace("│", " ").split() for line in out.splitlines() if "bf16" in line]
    assert [row[0] for row in rows] == ["forward", "dkdv", "dq", "decode"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "8,6,197"), "shape '8,6,197' must be four positive whole numbers"),
        (("--dtype", "float32"), "unknown dtype 'float32'."),
        (("--activation", "rellu"), "Did you mean 'relu'"),
        (("--shape", "1,1,99,300", "--dry-run"), "serves head dims up to 256, not D=300"),
    ],
)
def test_bad_input_is_one_line(run, arguments, message):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.slow
@without_gpu
def test_tune_measures_every_kernel_and_says_where_tiles_are(run, monkeypatch, tmp_path):
    """On the CPU, by Triton's interpreter and a clock that runs backwards."""
    times = iter(range(1000, 0, -1))
    session, Case = autotune.session, cases.Case
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        autotune, "session", lambda **options: session(lambda call: float(next(times)), **options)
    )
    monkeypatch.setattr(cases, "Case", lambda **fields: Case(**fields | {"device": "cpu"}))
    shapes = ("--shape", "1,2,40,16", "--shape", "1,2/1,1:600,16")
    status, out, _ = run(*shapes, "--dtype", "fp32", "--activation", "gelu", "--causal")
    assert status == 0
    rows = [line.replace("│", " ").split() for line in out.splitlines() if "fp32" in line]
    assert [row[0] for row in rows] == ["forward", "dkdv", "dq", "decode"]
    assert "Stored in" in out
    assert str(tmp_path / "tiles.json") in "".join(out.split("\n")).replace(" ", "")
    assert (tmp_path / "tiles.json").exists()


@pytest.mark.gpu
@needs_gpu
def test_tune_on_a_gpu(run, tmp_path):
    status, out, _ = run("--shape", "1,2,200,64")
    assert status == 0
    star = "*" * dispatch.serves(torch.device("cuda", torch.cuda.current_device()))
    assert [f" {name}{star} " in out for name in ("forward", "dkdv", "dq")] == [True] * 3
    assert (tmp_path / "tiles.json").exists()
