"""Every verb on runs whose files are broken: one line, and nothing is written."""

import errno
import json
import os
import shutil

import broken_files
import pytest
import yaml
from caches import new_cache
from hypothesis import HealthCheck, given, settings
from lab.evaluation.trained import call
from lab.training.runs import contents, tiny_config, train_quietly
from lab.training.text_runs import text_config, write_corpus

from flashpoint.errors import FlashpointError
from flashpoint.lab.cli.evaluate import evaluate
from flashpoint.lab.cli.inspect import inspect
from flashpoint.lab.cli.probe import probe
from flashpoint.lab.cli.report import report
from flashpoint.lab.cli.train import train
from flashpoint.lab.cli.translate import translate
from flashpoint.lab.report.run_report import report_runs
from flashpoint.lab.training.run_folder import open_run

LAST = "checkpoints/step_12"
LOADED = (f"{LAST}/state.json", f"{LAST}/model.safetensors")
RUN_FILES = ("config.yaml", "record.json", "metrics.jsonl")
NAMES = (*RUN_FILES, "data.json", "attention/statistics.json", *LOADED)
VERBS = {
    "evaluate": (lambda run, _: call(evaluate, run, "--checkpoint", "last"), "data.json"),
    "inspect": (lambda run, _: call(inspect, run, "--checkpoint", "last"), None),
    "probe": (lambda run, _: call(probe, run, "--data", "digits", "--checkpoint", "last"), None),
    "report": (lambda run, _: call(report, run), "attention/statistics.json"),
    "train": (lambda run, config: call(train, config, "--out", run), "data.json"),
}
"""How each is called on a run of images, and what it reads besides the files of every run."""
BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefghij", "bcdefghijk", strict=True)
)
SPOILED = {
    "empty": b"",
    "a list": b"[1, 2]\n",
    "no UTF-8": b'{"a": "\xff\xfe"}\n',
    "zeros": b"\0" * 50 + b"\n",
    "nested": b'{"steps": ' + b"[" * 100_000 + b"\n",
    "digits": b'{"steps": ' + b"9" * 5_000 + b"}\n",
    "half a pair": b'{"steps": "\\ud800"}\n',
    "another thing": b'{"steps": "ten", "kind": 3, "step": {}, "classes": 3, "heads": 7}\n',
    "refers to itself": b"model: &a [*a]\n",
    "bomb": BOMB.encode(),
}

FEW = ("empty", "another thing")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run that was inspected; read only."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train_quietly(tiny_config(), out)
    call(inspect, out, "--images", "1")
    return out


@pytest.fixture
def run(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def config(whole, tmp_path):
    """What ``train`` was told, apart from the run's own file."""
    return shutil.copy(whole / "config.yaml", tmp_path / "tiny.yaml")


def is_read(verb, name):
    """Whether a verb needs a file of the run; ``train`` takes a finished run by its record."""
    if verb == "train" and name in ("metrics.jsonl", *LOADED):
        return False
    if name in LOADED:
        return verb != "report"
    return name in RUN_FILES or name == VERBS[verb][1]


def one_line(do):
    """What a verb says when it refuses a run."""
    with pytest.raises(FlashpointError) as error:
        do()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    return str(error.value)


def refused(do, run):
    """The same; all files are as before."""
    before = contents(run.parent)
    said = one_line(do)
    assert contents(run.parent) == before
    return said


def spoiled_files():
    """Verbs that open runs alike share most of the cases; an empty curve is not broken."""
    for verb, (_, own) in VERBS.items():
        for name in NAMES:
            for what in SPOILED if verb in ("evaluate", "report") or name == own else FEW:
                if is_read(verb, name) and (name, what) != ("metrics.jsonl", "empty"):
                    yield verb, name, what


@pytest.mark.parametrize(("verb", "name", "what"), list(spoiled_files()))
def test_spoiled_file_is_one_line_that_names_it(run, config, verb, name, what):
    (run / name).write_bytes(SPOILED[what])
    said = refused(lambda: VERBS[verb][0](run, config), run)
    assert str(run) in said
    assert ("step_12" if name in LOADED else name) in said


@pytest.mark.parametrize("put", broken_files.NO_FILES)
@pytest.mark.parametrize("verb", VERBS)
def test_no_file_in_a_file_s_place_is_one_line_at_once(whole, run, config, verb, put):
    for name in NAMES:
        if is_read(verb, name):
            put(run / name)
            assert name.partition("/")[0] in one_line(lambda: VERBS[verb][0](run, config))
            shutil.rmtree(run)
            shutil.copytree(whole, run)


@pytest.mark.parametrize("verb", VERBS)
def test_unreadable_file_is_one_line(run, config, monkeypatch, verb):
    for name in NAMES:
        if is_read(verb, name):
            before = contents(run)
            with monkeypatch.context() as patch:
                broken_files.unreadable(patch, errno.EIO, os.path.basename(name))
                said = one_line(lambda: VERBS[verb][0](run, config))
            assert contents(run) == before
            assert f"{name} cannot be read: Input/output error." in said


def test_weights_of_a_broken_run_are_refused_and_no_run_begins(run, config, tmp_path):
    for name in (*RUN_FILES, "data.json"):
        content = (run / name).read_bytes()
        (run / name).write_bytes(SPOILED["another thing"])
        refused(lambda: call(train, config, "--weights", run, "--out", tmp_path / "new"), run)
        (run / name).write_bytes(content)


def test_config_of_another_model_is_refused_for_its_weights(run):
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["model"]["width"] = 32
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    said = refused(lambda: call(evaluate, run), run)
    assert "do not fit the model of its config.yaml: " in said


@pytest.mark.parametrize("name", [*RUN_FILES, "pieces.model"])
@pytest.mark.slow
def test_broken_run_of_text_is_not_translated_with(tmp_path, monkeypatch, name):
    monkeypatch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path / "cache"))
    run = tmp_path / "run"
    train_quietly(text_config(write_corpus(tmp_path), "steps=4"), run)
    whole = contents(run)
    (tmp_path / "text").write_text("some words\n")
    for content in SPOILED.values():
        if content or name != "metrics.jsonl":
            (run / name).write_bytes(content)
            assert name in refused(lambda: call(translate, run, tmp_path / "text"), run)
            assert name in refused(lambda: call(evaluate, run), run)
    (run / name).write_bytes(whole[(run / name).relative_to(run)])


def test_command_line_ends_with_the_status_of_wrong_input(run, monkeypatch, capsys):
    from flashpoint.lab.cli.main import main

    (run / "record.json").write_bytes(SPOILED["another thing"])
    for verb in ("evaluate", "inspect", "report"):
        monkeypatch.setattr("sys.argv", ["flashpoint", verb, str(run)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith(f"error: {run}/record.json: ")
        assert "\n" not in said


def complaints(run):
    """What evaluation and the report say of a run that they cannot read."""
    for read in (lambda: open_run(run).load_model(), lambda: report_runs([run], title="x")):
        try:
            read()
        except FlashpointError as error:
            yield str(error)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if "safetensors" not in name])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=broken_files.st.data())
def test_any_change_of_a_file_is_read_or_refused(whole, tmp_path_factory, name, data):
    run = tmp_path_factory.getbasetemp() / "changed"
    if not run.exists():
        shutil.copytree(whole, run)
    text = (whole / name).read_text()
    if name == "config.yaml":
        content = data.draw(broken_files.broken(yaml.safe_load(text)))
    elif name == "metrics.jsonl":
        line = data.draw(broken_files.broken(json.loads(text.splitlines()[0])))
        content = line + b"\n" + text.encode()
    else:
        content = data.draw(broken_files.broken(json.loads(text)))
    (run / name).write_bytes(content)
    try:
        assert all(len(said.splitlines()) == 1 for said in complaints(run))
    finally:
        (run / name).write_text(text)
