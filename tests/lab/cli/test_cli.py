"""The command line: its surface is frozen, its help is fast, its errors are one line."""

import re
import resource
import shlex
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import flashpoint
from flashpoint.lab.cli.main import _flow_help, app, main

SURFACE = {
    "activations": ["--dtype", "--shape"],
    "adapt": [
        *("--attention", "--checkpoint", "--data", "--fresh", "--layers", "--out", "--rank"),
        *("--set", "--share", "--steps", "run"),
    ],
    "bench": [
        *("--activation", "--causal", "--check", "--device", "--dtype", "--from", "--json"),
        *("--mode", "--no-memory", "--only", "--plot", "--providers", "--quick", "--rounds"),
        *("--seconds", "--shape", "--suite", "--threads"),
    ],
    "data prepare": ["--from", "--to", "name"],
    "data show": ["--labels", "--languages", "--pairs", "--png", "--split", "where"],
    "demo": ["--fresh", "--out"],
    "doctor": [
        *("--case", "--cases", "--check", "--device", "--first", "--impl", "--jobs", "--json"),
        *("--seed", "--time-limit"),
    ],
    "evaluate": [
        *("--batch-size", "--beam", "--checkpoint", "--classes", "--data", "--device", "--json"),
        *("--labels", "--length-penalty", "run"),
    ],
    "export": ["--checkpoint", "--format", "--int8", "--out", "run"],
    "inspect": [
        *("--checkpoint", "--data", "--device", "--images", "--json", "--layers", "--out"),
        *("--samples", "run"),
    ],
    "models": ["--attention", "--image-size", "--tokens", "pattern"],
    "page": ["--checkpoint", "--data", "--out", "--runtime", "--samples", "--title", "runs"],
    "plan": [
        *("--batch", "--gpus", "--gpus-per-node", "--json", "--keep", "--link", "--memory"),
        *("--model", "--network", "--plot", "--rates", "--recompute", "--sequence", "--strategy"),
        "--tokens",
    ],
    "probe": [
        *("--batch-size", "--checkpoint", "--classes", "--data", "--device", "--json"),
        *("--seeds", "--shots", "run"),
    ],
    "report": ["--out", "--title", "runs"],
    "study list": [],
    "study pack": ["folder"],
    "study report": ["--out", "--pictures", "--title", "folder"],
    "study run": [
        *("--documents", "--fresh", "--gpus-per-trial", "--images", "--jobs"),
        *("--keep-checkpoints", "--on", "--only", "--out", "--passages", "--scale", "--seeds"),
        "names",
    ],
    "study show": ["--documents", "--images", "--passages", "--scale", "--seeds", "name"],
    "study unpack": ["folder"],
    "train": ["--data", "--dry-run", "--fresh", "--out", "--set", "--weights", "what"],
    "translate": [
        *("--batch-size", "--beam", "--checkpoint", "--device", "--length-penalty"),
        *("file", "run"),
    ],
    "tune": ["--activation", "--causal", "--dry-run", "--dtype", "--shape"],
}


def run_cli(*arguments):
    """The finished process of ``python -m flashpoint ARGUMENTS``."""
    command = [sys.executable, "-m", "flashpoint", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_verbs_and_options_are_frozen():
    verbs = {}
    for name, verb in typer.main.get_command(app).commands.items():
        members = getattr(verb, "commands", None)
        verbs |= {f"{name} {m}": v for m, v in members.items()} if members else {name: verb}
    surface = {
        name: sorted(o for p in verb.params for o in (*p.opts, *p.secondary_opts))
        for name, verb in verbs.items()
    }
    assert surface == SURFACE


def test_help_answers_in_half_a_second():
    """Of the processor's time, which others on its cores lengthen: the least of some runs."""
    seconds = []
    while len(seconds) < 10 and not any(found < 0.5 for found in seconds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_cli("--help").check_returncode()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert 0 < min(seconds) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("verb", [[], ["data"], *map(str.split, SURFACE)], ids=" ".join)
def test_help_does_not_load_torch(verb):
    code = (
        "import sys; from flashpoint.lab.cli.main import app;"
        f"app({[*verb, '--help']}, standalone_mode=False);"
        "sys.exit(not {'torch', 'numpy'}.isdisjoint(sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert process.returncode == 0, process.stderr.decode()


def test_help_flows_with_the_terminal_but_for_its_examples():
    said = CliRunner().invoke(app, ["study", "run", "--help"], env={"COLUMNS": "80"}).output
    lines = [line.strip() for line in said.splitlines()]
    start = lines.index("flashpoint study run length-power --scale smoke")
    assert lines[start + 1] == "flashpoint study run all --jobs 8"
    end = lines.index("", start)
    assert "\b" not in said
    told = lines[end + 1 : lines.index("", end + 1)]
    assert all(len(line) > 60 for line in told[:-1])
    assert " ".join(told).endswith("If trials failed the status is 1.")


def test_help_of_groups_flows_too_and_what_has_none_says_nothing():
    group = typer.Typer(help="What it\n    is for.")
    group.command("bare")(lambda: None)
    group.command("other")(lambda: None)
    outer = typer.Typer()
    outer.add_typer(group, name="group")
    outer.callback()(main)
    _flow_help(outer)
    assert group.info.help == "What it is for."
    assert outer.registered_callback.help == main.__doc__
    assert "None" not in CliRunner().invoke(outer, ["group", "bare", "--help"]).output


def test_version_is_the_package_version():
    assert run_cli("--version").stdout.strip() == flashpoint.__version__


def fail_with(error, monkeypatch):
    """Run ``flashpoint doctor`` with a part of it that raises this error."""

    def survey():
        raise error

    monkeypatch.setattr("flashpoint.ops.implementations.survey", survey)
    monkeypatch.setattr(sys, "argv", ["flashpoint", "doctor"])
    main()


def test_our_error_is_one_line_and_status_2(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        fail_with(flashpoint.InputError("alpha=nan must be finite."), monkeypatch)
    assert capsys.readouterr().err == "error: alpha=nan must be finite.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("study run length-power --jobs 0", r".*'--jobs'.* 1\. See: .*study run --help"),
        ("study run gate --jobs 99999999999", r".*'--jobs'.* 1000\. See: .*study run --help"),
        ("study run gate --seeds 0", r".*'--seeds'.* 1\. See: .*study run --help"),
        ("study run gate --out ''", r"invalid value for '--out': it is empty and names no .*"),
        ("study report ''", r"invalid value for 'DIR': it is empty and names no .*"),
        ("study report --out ''", r"invalid value for '--out': it is empty and names no .*"),
        ("study report --pictures ''", r"invalid value for '--pictures': it is empty and .*"),
        ("study run length-power --bogus", r"no such option: --bogus.* See: .* run --help"),
        ("study run x --scale tiny", r"invalid value for '--scale': 'tiny' is not one of .*"),
        ("study show", r"missing argument 'NAME'\. See: .*study show --help"),
        ("docter", r"no such command 'docter'\. Did you mean 'doctor'\? See: .*--help"),
        ("bench --dtype", r"option '--dtype' requires an argument\. See: flashpoint bench --help"),
        ("study run x --on", r"option '--on' requires an argument\. See: .* study run --help"),
    ],
)
def test_error_of_usage_is_one_line_and_status_2(words, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["flashpoint", *shlex.split(words)])
    with pytest.raises(SystemExit, match="2"):
        main()
    out, err = capsys.readouterr()
    assert not out
    assert re.fullmatch(f"error: {said}\n", err), err


@pytest.mark.parametrize("words", [[], ["study"]], ids=["flashpoint", "study"])
def test_no_arguments_show_the_help_and_no_error(words):
    bare = run_cli(*words)
    assert (bare.returncode, bare.stderr) == (2, "")
    assert bare.stdout.strip() == run_cli(*words, "--help").stdout.strip()


@pytest.mark.parametrize("status", [0, 75])
def test_exit_of_a_verb_is_the_status(status, monkeypatch):
    with pytest.raises(SystemExit) as exit_:
        fail_with(typer.Exit(status), monkeypatch)
    assert exit_.value.code == status


def test_abort_is_one_line_and_status_1(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="1"):
        fail_with(typer.Abort(), monkeypatch)
    assert capsys.readouterr().err == "aborted.\n"


def test_bug_keeps_its_traceback(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        fail_with(ZeroDivisionError(), monkeypatch)
