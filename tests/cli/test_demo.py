"""``flashpoint demo`` from the command line."""

import sys

import pytest

from flashpoint.bench import activations, timing
from flashpoint.cli.main import main
from flashpoint.ops.spec import BUILTIN


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process; gives its exit status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(timing, "WARM_S", 0.001)
    monkeypatch.setattr(timing, "MIN_SAMPLE_S", 0.0005)

    def run_demo(*arguments):
        monkeypatch.setattr(sys, "argv", ["flashpoint", "demo", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return run_demo


def test_demo_shows_every_activation_and_what_to_type_next(run):
    status, out, err = run("--shape", "1,2,33,16", "--dtype", "fp32,bf16")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert max(len(line) for line in lines) <= 80
    for name in BUILTIN:
        assert sum(line.split()[:1] == [name] for line in lines) == 2
    assert "All 16 rows are right" in out
    assert "flashpoint doctor" in out
    assert "flashpoint bench" in out
    assert "from flashpoint import attention" in out


def test_demo_fails_when_an_error_is_beyond_its_bound(run, monkeypatch):
    monkeypatch.setattr(activations, "FACTOR", -1.0)
    status, out, _ = run("--shape", "1,2,33,16", "--dtype", "fp32")
    assert status == 1
    assert "WRONG" in out
    assert "rows are wrong" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "8,6,197"), "shape '8,6,197' must be four positive whole numbers"),
        (("--dtype", "float32"), "unknown dtype 'float32'."),
        (("--shape", "1,8,16384,64"), "the fp64 reference would need 17.2 GB"),
    ],
)
def test_bad_input_is_one_line(run, arguments, message):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
