"""``flashpoint activations`` from the command line."""

import pytest
import typer
from typer.testing import CliRunner

from flashpoint.errors import InputError
from flashpoint.lab.bench import activations as measuring
from flashpoint.lab.bench import timing
from flashpoint.lab.cli.activations import activations
from flashpoint.ops.activation import BUILTIN

app = typer.Typer()
app.command()(activations)


@pytest.fixture
def run(monkeypatch):
    """Run the verb on quick timings; gives its exit status and output, raises our errors."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(timing, "WARM_S", 0.001)
    monkeypatch.setattr(timing, "MIN_SAMPLE_S", 0.0005)

    def run_activations(*arguments):
        result = CliRunner().invoke(app, arguments)
        if isinstance(result.exception, InputError):
            raise result.exception
        return result.exit_code, result.output

    return run_activations


def test_every_activation_is_shown_and_what_to_type_next(run):
    status, out = run("--shape", "1,2,33,16", "--dtype", "fp32,bf16")
    assert status == 0
    lines = out.splitlines()
    assert max(len(line) for line in lines) <= 80
    for name in BUILTIN:
        assert sum(line.split()[:1] == [name] for line in lines) == 2
    assert f"All {2 * len(BUILTIN)} rows are right" in out
    assert "flashpoint doctor" in out
    assert "flashpoint bench" in out
    assert "from flashpoint import attention" in out


def test_error_beyond_its_bound_fails(run, monkeypatch):
    monkeypatch.setattr(measuring, "FACTOR", -1.0)
    status, out = run("--shape", "1,2,33,16", "--dtype", "fp32")
    assert status == 1
    assert "WRONG" in out
    assert "rows are wrong" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "8,6,197"), "shape '8,6,197' .*B,H,L,D"),
        (("--dtype", "float32"), "dtype 'float32'"),
        (("--shape", "1,8,16384,64"), "fp64 .*17.2 GB"),
    ],
)
def test_bad_input_is_one_line(run, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
