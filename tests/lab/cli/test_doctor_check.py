"""``flashpoint doctor --check``: a verdict in one line, misses, records, and what is refused."""

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from flashpoint.lab.cli.main import app, main
from flashpoint.lab.selfcheck import session
from flashpoint.ops.cpu import scores


def run_check(*arguments):
    """The result of the verb; stdout and stderr apart."""
    return CliRunner().invoke(
        app, ["doctor", "--check", "--device", "cpu", "--impl", "cpu", *arguments]
    )


def plant_fault(monkeypatch):
    """One percent on the scale of the CPU's tiles."""
    usual = scores.product_into

    def product_into(buffer, shape, a, b, factor=1.0):
        return usual(buffer, shape, a, b, 1.01 * factor)

    monkeypatch.setattr(scores, "product_into", product_into)


def test_verdict_is_one_line():
    result = run_check("--cases", "4")
    assert result.exit_code == 0
    assert re.fullmatch(
        r"4 cases on cpu \(cpu\): all within the error budget; worst 0\.\d\d of it \(case \d\)\. "
        r"Repeat it: (TRITON_INTERPRET=1 )?flashpoint doctor --check --seed 0 --device cpu "
        r"--impl cpu --case \d\n",
        result.stdout,
    )
    assert result.stderr == ""


def test_miss_fails_and_its_command_repeats_it(monkeypatch):
    plant_fault(monkeypatch)
    result = run_check("--cases", "8", "--seed", "2")
    assert result.exit_code == 1
    assert "missed the error budget; worst" in result.stdout
    assert "missed: case" in result.stderr
    command = result.stdout.strip().partition("Repeat it: ")[2].removeprefix("TRITON_INTERPRET=1 ")
    _, *words = shlex.split(command)
    number = words[-1]
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 1
    assert again.stdout.startswith(f"case {number}: cpu ")
    monkeypatch.undo()
    assert CliRunner().invoke(app, words).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_command_repeats_the_case_where_other_implementations_are_missing(seed, monkeypatch):
    arguments = ["doctor", "--check", "--cases", "3", "--seed", str(seed), "--json"]
    record = json.loads(CliRunner().invoke(app, arguments).stdout)
    words = shlex.split(record["repeat"].removeprefix("TRITON_INTERPRET=1 "))[1:]
    assert words[words.index("--device") + 1] == record["device"]
    own = words[words.index("--impl") + 1]
    elsewhere = [(name, name == own, "") for name in ("reference", "cpu", "triton")]
    monkeypatch.setattr("flashpoint.ops.implementations.survey", lambda: elsewhere)
    again = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert again["impls"] == [own]
    assert again["worst"] == record["worst"]


def test_exception_in_a_case_is_a_miss(monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("no memory\nsecond line")

    monkeypatch.setattr("flashpoint.lab.selfcheck.run.evaluate", fail)
    result = run_check("--cases", "12")
    assert result.exit_code == 1
    assert "12 of 12 cases" in result.stdout
    assert result.stderr.count("RuntimeError: no memory\n") == 10
    assert "... and 2 more; --json has all" in result.stderr
    assert "second line" not in result.stderr


def test_time_limit_is_kept():
    result = run_check("--time-limit", "0")
    assert result.exit_code == 0
    assert result.stdout.startswith("1 case on cpu")
    assert "So few say little: give it a --time-limit for 50 or more. " in result.stdout


def test_record_says_where_and_what(monkeypatch):
    plant_fault(monkeypatch)
    result = run_check("--cases", "8", "--first", "2", "--seed", "2", "--json")
    record = json.loads(result.stdout)
    assert record["environment"]["torch"].startswith("2.")
    assert {"commit", "triton", "device"} <= record["environment"].keys()
    assert (record["seed"], record["first"], record["impls"]) == (2, 2, ["cpu"])
    assert record["judged"] + record["refused"] == 8
    assert (record["cases"], record["time_limit"], record["done"]) == (8, None, [[2, 9]])
    assert record["worst"]["index"] in {miss["index"] for miss in record["misses"]}
    assert record["repeat"].endswith(f"--case {record['worst']['index']}")
    assert "missed the error budget" in result.stderr


def test_refused_cases_are_counted_apart(monkeypatch):
    true_check = session.run_case

    def refuse_some(case, device):
        outcome = true_check(case, device)
        return session.Outcome(case.index, "", is_refused=True) if case.index else outcome

    monkeypatch.setattr(session, "run_case", refuse_some)
    assert "1 case on cpu (cpu), 3 more refused: all" in run_check("--cases", "4").stdout


def test_check_that_judges_nothing_fails(monkeypatch):
    def refuse(case, device):
        return session.Outcome(case.index, "", is_refused=True)

    monkeypatch.setattr(session, "run_case", refuse)
    result = run_check("--cases", "4")
    assert result.exit_code == 1
    assert result.stdout == "No case was judged on cpu (cpu), 4 refused.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "1"], "--seed is for the check. Pass --check too, or leave it out."),
        (["--check", "--case", "1", "--cases", "2"], "--case runs one case alone."),
        (["--check", "--device", "gpu"], "Did you mean 'cpu'? Known: cpu, cuda."),
        (["--check", "--impl", "trito"], "impl='trito' is unknown. Did you mean 'triton'?"),
        (["--check", "--device", "cpu", "--jobs", "0"], "should be greater than or equal to 1"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["flashpoint", "doctor", *arguments])
    with pytest.raises(SystemExit) as status:
        main()
    assert status.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
