"""``flashpoint bench`` from the command line."""

import json
import re
import sys
import time
from dataclasses import replace

import pytest
import torch
from lab.bench.samples import make_gpu_result

import flashpoint
from flashpoint.lab.bench import plot, runner, suites
from flashpoint.lab.bench.cases import Shape
from flashpoint.lab.bench.entry import Entry, Limits, SpeedLimit, Suite
from flashpoint.lab.bench.result_file import from_json, to_json
from flashpoint.lab.cli.main import main
from flashpoint.lab.training import device_rate

TINY = ("--quick", "--threads", "1", "--dtype", "fp32", "--mode", "forward")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process; gives its exit status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setitem(device_rate.SIZES, "cpu", 128)

    def run_bench(*arguments, device=("--device", "cpu")):
        monkeypatch.setattr(sys, "argv", ["flashpoint", "bench", *device, *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return run_bench


@pytest.fixture
def tiny_suite(monkeypatch):
    """A suite that Flashpoint passes unless something is badly wrong; no shape of another one."""
    limits = {"fp32": Limits(speed=(SpeedLimit(rivals=("sdpa",), must=1 / 200),))}
    entries = (
        Entry(shape=Shape(1, 1, 17, 16), mode="forward", limits=limits),
        Entry(shape=Shape(1, 1, 15, 16), mode="forward", limits=limits, overhead_dtype="fp32"),
        Entry(shape=Shape(1, 1, 15, 16), mode="recording", overhead_dtype="fp32"),
    )
    monkeypatch.setitem(suites.SUITES, "tiny", Suite(device="cpu", entries=entries))


def replace_attention(monkeypatch, attend):
    """Ours alone: the reference, which errors are measured against, stays."""
    right = flashpoint.attention

    def attention(*tensors, impl="auto", **options):
        ours = impl == "auto"
        return (attend if ours else right)(*tensors, impl=impl, **options)

    monkeypatch.setattr(flashpoint, "attention", attention)


@pytest.mark.slow  # memory is measured in processes
def test_json_on_stdout_and_nothing_else(run):
    status, out, err = run(*TINY, "--shape", "1,2,64,16", "--json", "-")
    assert status == 0
    result = from_json(out)
    assert [row.case.mode for row in result.rows] == ["forward"]
    for row in result.rows:
        assert [found.provider for found in row.measurements] == ["flashpoint", "sdpa", "plain"]
        assert row.of("flashpoint").relative_error < 1e-5
        assert row.of("sdpa").relative_error < 1e-5
        assert row.speedup(("sdpa",)) > 0
        assert result.matrix_share(row) > 0
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
    assert out.count("call overhead") == 2 * 2  # among the other providers too
    assert "fp32 recording" in out


def test_check_names_a_slow_result(run, tiny_suite, monkeypatch):
    right = flashpoint.attention

    def slow(*tensors, **options):
        time.sleep(0.05)
        return right(*tensors, **options)

    replace_attention(monkeypatch, slow)
    status, _, err = run(*TINY, "--suite", "tiny", "--no-memory", "--check", "--rounds", "2")
    assert status == 1
    assert "1, 1, 17, 16  fp32 forward: 0.00x as fast as sdpa, limit 0.01x" in err


def test_check_names_a_wrong_result(run, tiny_suite, monkeypatch):
    right = flashpoint.attention
    replace_attention(monkeypatch, lambda *tensors, **options: 1.01 * right(*tensors, **options))
    status, _, err = run(*TINY, "--suite", "tiny", "--no-memory", "--check")
    assert status == 1
    assert "relative error 1.0e-02 is beyond rounding (1e-04)" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "1,2,3"), r"shape '1,2,3' .*B,H,L,D"),
        (("--dtype", "fp23"), r"dtype 'fp23'.* 'fp32'\?"),
        (("--suite", "cpus"), r"suite 'cpus'.* 'cpu'\?"),
        (("--device", "gpu"), r"device 'gpu'"),
        (("--suite", "long"), r"suite 'long' .*--device cuda.* cpu.*Pass"),
        (("--mode", "backward"), r"suite 'cpu' .*backward.*forward, training.*--mode"),
        (("--providers", "sdpa,flax_log"), r"provider 'flax_log'.* 'flex_log'\?"),
        (("--plot", "figure.jpg"), r"--plot figure.jpg .*\.png, \.svg.*\.pdf"),
        (("--plot", "/no/such/folder/figure.png"), r"--plot /no/such/folder"),
        (("--from", "/no/result.json"), r"--from .*--device is given"),
        (("--activation", "rellu"), r"activation='rellu' .*'relu'"),
        (("--suite", "cpu", "--shape", "1,1,1,1"), r"--suite and --shape"),
        (("--causal", "--check"), r"--check .*--causal"),
        (("--only", "gelu"), r"--only 'gelu' is in no name of the 18 cases, .*'8, 6, 197, 64"),
        (("--json", "/no/such/folder/result.json"), r"--json /no/such/folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line_before_any_measurement(run, monkeypatch, arguments, message):
    monkeypatch.setattr(runner, "measure", lambda *_: pytest.fail("measured"))
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert re.search(message, err)
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


def test_gpu_that_is_not_there_is_one_line(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, _, err = run(device=("--device", "cuda"))
    assert status == 2
    assert re.search(r"'cuda' .*torch.*device cpu", err)
    assert len(err.strip().splitlines()) == 1


def test_device_is_the_cpu_where_there_is_no_gpu(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, out, _ = run(*TINY, "--shape", "1,1,8,8", "--no-memory", "--json", "-", device=())
    assert (status, from_json(out).rows[0].case.device) == (0, "cpu")


def test_missing_matplotlib_is_told_before_measuring(run, monkeypatch):
    monkeypatch.setattr(runner, "measure", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    status, _, err = run("--plot", "figure.png")
    assert (status, len(err.strip().splitlines())) == (2, 1)
    assert "--plot needs matplotlib" in err


def test_providers_are_those_named_and_refusals_are_told(run):
    status, out, err = run(
        *TINY, "--shape", "1,2/1,1:64,16", "--no-memory", "--json", "-",
        "--providers", "sdpa_math,sdpa_cudnn,plain",
    )  # fmt: skip
    assert status == 0
    (row,) = from_json(out).rows
    assert [found.provider for found in row.measurements] == [
        *("flashpoint", "sdpa_math", "sdpa_cudnn", "plain"),
    ]
    assert row.of("sdpa_cudnn").skipped == "this backend needs a CUDA device"
    assert "No sdpa_cudnn: this backend needs a CUDA device (1, 2/1, 1:64, 16)." in err


@pytest.mark.slow  # memory is measured in processes
def test_backward_alone_is_measured(run):
    status, out, _ = run(
        "--quick", "--shape", "1,2,64,16", "--dtype", "fp32", "--mode", "backward", "--json", "-",
        "--causal", "--activation", "silu", "--providers", "sdpa",
    )  # fmt: skip
    assert status == 0
    (row,) = from_json(out).rows
    assert row.case.work == "fp32 causal silu backward"
    assert row.of("flashpoint").kept_bytes == 3 * 4 * 2 * 64 * 16
    assert row.of("flashpoint").relative_error < 1e-5


def test_stored_result_is_shown_drawn_and_checked_without_measuring(run, monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "measure", lambda *_: pytest.fail("measured"))
    file, figure = tmp_path / "result.json", tmp_path / "figure.svg"
    file.write_text(to_json(make_gpu_result("decode")))
    options = ["--plot", str(figure)] if plot.find_spec("matplotlib") else []
    status, out, err = run("--from", str(file), "--check", *options, device=())
    assert (status, err) == (0, "")
    assert "NVIDIA H200" in out
    assert "1, 32/8, 1:32768, 128" in out
    assert figure.exists() == bool(options)


@pytest.mark.parametrize(
    "option", [("--dtype", "fp16"), ("--mode", "forward"), ("--causal",), ("--quick",)]
)
def test_stored_result_takes_no_word_about_measuring(run, tmp_path, option):
    file = tmp_path / "result.json"
    file.write_text(to_json(make_gpu_result("decode")))
    status, _, err = run("--from", str(file), *option, device=())
    assert status == 2
    assert f"{option[0]} is given" in err


def test_stored_result_nested_without_end_is_one_line(run, tmp_path):
    file = tmp_path / "result.json"
    file.write_text("[" * 100_000)
    status, _, err = run("--from", str(file), device=())
    assert (status, err) == (2, f"error: {file} is nested more than 50 deep.\n")


def test_stored_result_without_limits_cannot_be_checked(run, tmp_path):
    result = make_gpu_result("decode")
    rows = tuple(replace(row, limits=Limits()) for row in result.rows)
    file = tmp_path / "result.json"
    file.write_text(to_json(replace(result, rows=rows)))
    status, _, err = run("--from", str(file), "--check", device=())
    assert status == 2
    assert "--check has nothing to check" in err


def test_compiler_that_fails_is_a_reason(run, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no compiler here\nand many more lines")

    monkeypatch.setattr(torch, "compile", refuse)
    _, out, _ = run(
        *TINY, "--shape", "1,1,9,8", "--no-memory", "--json", "-", "--providers", "plain_compiled"
    )
    assert from_json(out).rows[0].of("plain_compiled").skipped == "no compiler here"
