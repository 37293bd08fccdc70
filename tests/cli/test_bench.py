"""``flashpoint bench`` from the command line."""

import json
import sys
import time
from dataclasses import replace

import pytest
import torch

import flashpoint
from flashpoint.bench import providers, runner, suites
from flashpoint.bench.cases import Shape
from flashpoint.bench.result import Result
from flashpoint.bench.suites import Entry, Suite
from flashpoint.cli.main import main

TINY = ("--quick", "--threads", "1", "--dtype", "fp32", "--mode", "forward")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process; gives its exit status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def run_bench(*arguments):
        monkeypatch.setattr(sys, "argv", ["flashpoint", "bench", "--device", "cpu", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return run_bench


@pytest.fixture
def tiny_suite(monkeypatch):
    """A suite that Flashpoint passes unless something is badly wrong."""
    entry = Entry(shape=Shape(1, 1, 16, 16), ratios={"fp32": 200.0})
    monkeypatch.setitem(suites.SUITES, "tiny", Suite(entries=(entry,), overhead=entry))


def replace_attend(monkeypatch, attend):
    ours = replace(providers.PROVIDERS["flashpoint"], attend=attend)
    monkeypatch.setitem(providers.PROVIDERS, "flashpoint", ours)


def test_json_on_stdout_and_nothing_else(run):
    status, out, err = run("--quick", "--shape", "1,2,64,16", "--dtype", "fp32", "--json", "-")
    assert status == 0
    result = Result.from_json(out)
    assert [row.case.mode for row in result.rows] == ["forward", "training"]
    for row in result.rows:
        assert [found.provider for found in row.measurements] == ["flashpoint", "sdpa", "plain"]
        assert row.of("flashpoint").relative_error < 1e-5
        assert row.ratio > 0
        if sys.platform.startswith("linux"):
            assert row.of("sdpa").extra_bytes is not None
    assert "1, 2, 64, 16" in err


def test_table_on_stdout_and_json_in_a_file(run, tmp_path):
    file = tmp_path / "result.json"
    status, out, _ = run(*TINY, "--shape", "1,2,8,16", "--no-memory", "--json", str(file))
    assert status == 0
    assert "1, 2, 8, 16" in out
    assert "fp32 forward" in out
    assert json.loads(file.read_text())["rows"][0]["measurements"][0]["peak"] is None


def test_suite_has_overhead_rows_and_passes_its_check(run, tiny_suite):
    status, out, err = run(*TINY, "--suite", "tiny", "--no-memory", "--check")
    assert (status, err) == (0, "")
    assert out.count("call overhead") == 2
    assert "fp32 recording" in out


def test_check_names_a_slow_result(run, tiny_suite, monkeypatch):
    right = flashpoint.attention

    def slow(*tensors, **options):
        time.sleep(0.05)
        return right(*tensors, **options)

    replace_attend(monkeypatch, slow)
    status, _, err = run(*TINY, "--suite", "tiny", "--no-memory", "--check", "--rounds", "2")
    assert status == 1
    assert "1, 1, 16, 16  fp32 forward: time is" in err
    assert "limit 200.00x" in err


def test_check_names_a_wrong_result(run, tiny_suite, monkeypatch):
    right = flashpoint.attention
    replace_attend(monkeypatch, lambda *tensors, **options: 1.01 * right(*tensors, **options))
    status, _, err = run(*TINY, "--suite", "tiny", "--no-memory", "--check")
    assert status == 1
    assert "relative error 1.0e-02 is beyond rounding (1e-04)" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "1,2,3"), "shape '1,2,3' must be four positive whole numbers"),
        (("--dtype", "fp23"), "unknown dtype 'fp23'. Did you mean 'fp32'?"),
        (("--suite", "cpus"), "unknown suite 'cpus'. Did you mean 'cpu'?"),
        (("--device", "gpu"), "unknown device 'gpu'."),
        (("--device", "cuda"), "GPU suites come with the GPU kernels"),
        (("--activation", "rellu"), "activation='rellu' is unknown. Did you mean 'relu'"),
        (("--suite", "cpu", "--shape", "1,1,1,1"), "--suite and --shape exclude each other"),
        (("--causal", "--check"), "--check has nothing to check"),
        (("--json", "/no/such/folder/result.json"), "cannot write --json /no/such/folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line_before_any_measurement(run, monkeypatch, arguments, message):
    monkeypatch.setattr(runner, "measure", lambda *_: pytest.fail("measured"))
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_writability_is_tested_without_leaving_a_file(run, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "measure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    run("--json", str(tmp_path / "result.json"))
    assert list(tmp_path.iterdir()) == []


def test_threads_are_used_and_given_back(run):
    before = torch.get_num_threads()
    _, out, _ = run(*TINY, "--shape", "1,1,8,8", "--no-memory")
    assert "1 threads" in out
    assert torch.get_num_threads() == before
