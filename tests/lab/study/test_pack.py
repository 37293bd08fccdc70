"""A packed study is read as its folders were, and comes back as it was."""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager

import broken_files
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lab.report.run_folders import add_attention, make_run
from lab.study.tiny import SETTINGS, STUDY, content, measurement, plan, settle, training
from lab.training.runs import train_quietly
from typer.testing import CliRunner

from flashpoint.errors import InputError
from flashpoint.lab.cli.main import app
from flashpoint.lab.report.run_report import report_runs
from flashpoint.lab.report.study_report import report_studies
from flashpoint.lab.runs import names, stored, trials, writing
from flashpoint.lab.runs.metrics import read_metrics
from flashpoint.lab.study import store
from flashpoint.lab.study.sections import read_section
from flashpoint.lab.training import config_file, loop

FINISHED, STOPPED, FAILED, WAITING = "relu-seed0", "relu-seed1", "few-seed0", "wait"
"""Trials of the study that is packed here, by what became of them."""


def make_study(folder):
    """Trials in every state, with curves, attention, evaluations and a log."""
    shutil.rmtree(folder, ignore_errors=True)
    runs = [training("relu", 0), training("relu", 1), training("few")]
    others = [measurement(name, "add", x=1) for name in ("add", WAITING)]
    settle(folder, [*runs, *others])
    for name in (FINISHED, STOPPED):
        kept = (folder / name / names.TRIAL).read_bytes()
        shutil.rmtree(folder / name)
        (make_run(folder / name, top1=0.5) / names.TRIAL).write_bytes(kept)
    add_attention(folder / FINISHED)
    writing.write_json(folder / FINISHED / names.EVALUATIONS, {"far": {"top1": 0.25}})
    (folder / STOPPED / names.RECORD).unlink()
    (folder / STOPPED / names.LOG).write_text("began\r\nand \u00e4\u2028\n")
    writing.write_json(folder / FAILED / names.FAILURE, {"reason": "no memory", "log": ["a"]})
    writing.write_json(folder / "add" / names.RECORD, {"numbers": {"sum": 3.5}, "seconds": 1})
    return folder


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages name folders
    return make_study(tmp_path / "tiny").relative_to(tmp_path)


def page(study):
    return report_studies([read_section(study, {"tiny": STUDY})], title="A study")


def files(study):
    """All but the lock."""
    return {name: data for name, data in content(study).items() if name != names.LOCK}


def test_pages_of_folders_and_of_the_pack_are_the_same(study):
    run = study / FINISHED
    outcomes = store.read_outcomes(store.read_study(study), STUDY)
    statuses = [one.status for one in outcomes.values()]
    assert statuses == ["finished", "stopped", "failed", "finished", "waiting"]
    pages, before = (page(study), report_runs([run], title="A run")), files(study)
    assert all("data:image/png" in text for text in pages)
    store.pack_study(study)
    assert files(study).keys() == {names.STUDY, names.TRIALS}
    assert (page(study), report_runs([run], title="A run")) == pages
    assert store.read_outcomes(store.read_study(study), STUDY) == outcomes
    store.unpack_study(study)
    assert files(study) == before


@pytest.mark.parametrize("broken", [b'{"numbers": {"sum": "', b'{\n "numbers": 3\n}\n'])
def test_file_that_was_broken_before_is_named_in_its_pack(study, broken):
    (study / "add" / names.RECORD).write_bytes(broken)
    one = store.read_outcome(study / "add").reason
    store.pack_study(study)
    file = study / names.TRIALS
    moved = one.replace(str(study / "add" / names.RECORD), f"{file}, add/{names.RECORD}")
    moved = moved.replace(f"Remove {study / 'add'} to do the trial again.", f"Restore {file}.")
    assert store.read_outcome(study / "add").reason == moved != one


def test_config_of_a_packed_trial_can_be_trained(study):
    """A page says how: by the path of its config."""
    file = study / FINISHED / names.CONFIG
    config = training("relu", 0).work.config
    file.write_text(config_file.dump(config_file.parse(config)))
    store.pack_study(study)
    assert config_file.load(file) == config_file.parse(config)


@given(data=st.binary(max_size=200))
@example(b"")
@example(b"null")
@example(b'{"a": NaN}\n')
@example(b'{"a": 1, "a": 2}\n')
@example(b'{\n "base64": "AAAA"\n}\n')
@example(b'{\n "a": "\\ud800"\n}\n')
@example(b'{\n "a": 1e999\n}\n')
@example(b'{\n "a": ' + b"9" * 50 + b"\n}\n")
@example(b"[" * 48 + b"]" * 48)
@example(b"[" * 100_000)
@example(b'{"a": 1}\n{"b": 2.50}\n')
@example(b'{"a": 1}\r\n{"b": 2}\r\n')
@example(b'{"a": "\xc3\xa4\xe2\x80\xa8"}\n')
@example(b"\xff\xfe\0")
@example(b"text without an end")
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_byte_comes_back(tmp_path, data):
    study = tmp_path / "tiny"
    shutil.rmtree(study, ignore_errors=True)
    (trial,) = settle(study, [measurement("add", "add", x=1)])
    for name in (names.RECORD, names.METRICS, names.LOG):
        (trial / name).write_bytes(data)
    before = files(study)
    store.pack_study(study)
    store.unpack_study(study)
    assert files(study) == before


def test_report_of_a_packed_trial_is_no_obstacle_to_unpack(study):
    before = files(study)
    store.pack_study(study)
    result = CliRunner().invoke(app, ["report", str(study / FINISHED)])
    assert result.exit_code == 0, result.output
    written = study / FINISHED / names.PAGE
    assert files(study).keys() == {names.STUDY, names.TRIALS, f"{FINISHED}/{names.PAGE}"}
    store.unpack_study(study)
    assert written.is_file()
    written.unlink()
    assert files(study) == before


def test_packed_trial_is_not_trained(study):
    """A finished one has nothing to do, unless it is to begin anew."""
    config, run = config_file.parse(training("relu", 0).work.config), study.parent / "run"
    train_quietly(config, run)
    for trial in (FINISHED, STOPPED):
        shutil.copyfile(run / names.CONFIG, study / trial / names.CONFIG)
    shutil.copyfile(run / names.RECORD, study / FINISHED / names.RECORD)
    store.pack_study(study)
    before = files(study).keys()
    assert "is finished" in train_quietly(config, study / FINISHED)[1]
    for trial, fresh in ((FINISHED, True), (STOPPED, True), (STOPPED, False)):
        said = f"{trial} is packed. Make its folder again: flashpoint study unpack {study}."
        with pytest.raises(InputError, match=said):
            loop.train(config, study / trial, fresh=fresh)
    locks = {f"{trial}/{names.LOCK}" for trial in (FINISHED, STOPPED)}
    assert files(study).keys() - before == locks


def test_what_is_written_as_json_is_packed_as_json(study):
    """So that a difference between two packs can be read."""
    lines = [{"kind": "train", "step": 1, "loss": 0.1}, {"kind": "validation", "step": 1}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (study / FINISHED / names.METRICS).write_text(text)
    store.pack_study(study)
    packed = [json.loads(line) for line in (study / names.TRIALS).read_text().splitlines()]
    assert [line["trial"] for line in packed] == [
        path.name for path in store.read_study(study).trials
    ]
    found = packed[0]["files"]
    assert found[names.METRICS] == lines == read_metrics(study / FINISHED)
    assert found[names.EVALUATIONS] == {"far": {"top1": 0.25}}
    assert found[names.CONFIG].startswith("model:\n")


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("command", [store.pack_study, store.unpack_study])
def test_killed_in_the_middle_loses_nothing_and_goes_on(study, monkeypatch, command, at):
    """Before each of the first changes of names or folders: of a write, of a removal."""
    before, shown = files(study), page(study)
    if command is store.unpack_study:
        store.pack_study(study)
    calls = iter(range(100))

    def dying(original):
        def attempt(*arguments, **options):
            if next(calls) >= at:
                raise Killed
            return original(*arguments, **options)

        return attempt

    with monkeypatch.context() as patch:
        for name in ("replace", "unlink", "rmdir"):
            patch.setattr(f"os.{name}", dying(getattr(writing.os, name)))
        with pytest.raises(Killed):
            command(study)
    assert page(study) == shown
    command(study)
    assert page(study) == shown
    if command is store.pack_study:
        assert files(study).keys() == {names.STUDY, names.TRIALS}
        store.unpack_study(study)
    assert files(study) == before


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/step_1/model.safetensors",
        "events.out.tfevents.1",
        "pieces.model",
        "notes.txt",
        "attention/deep/maps.png",
        "attention/attention/maps.png",
    ],
)
def test_file_that_a_pack_would_lose_is_refused(study, name):
    (study / FINISHED / name).parent.mkdir(parents=True, exist_ok=True)
    (study / FINISHED / name).write_text("kept")
    before = files(study)
    with pytest.raises(InputError, match="is no record of a trial, and a pack would lose") as said:
        store.pack_study(study)
    assert "a trial goes on from its checkpoints until it has finished" in str(said.value)
    assert files(study) == before


def test_link_is_refused(study, tmp_path):
    (study / FINISHED / names.LOG).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"log\.txt is no record of a trial"):
        store.pack_study(study)


def test_what_a_killed_writer_left_is_no_file_to_keep(study):
    (study / FINISHED / ".record.json.12.part").write_text("{")
    (study / FINISHED / names.LOCK).write_text("12")
    store.pack_study(study)
    assert files(study).keys() == {names.STUDY, names.TRIALS}


@pytest.mark.parametrize("folder", [".", "runs"])
def test_file_of_the_same_name_that_is_no_study_s_is_nobody_s_pack(tmp_path, folder):
    """A run's folder may lie beside, or below, a user's own trials.jsonl."""
    (tmp_path / names.TRIALS).write_text('{"my": "own"}\n')
    run = make_run(tmp_path / folder / "run", top1=0.5)
    assert not stored.exists(run / names.START)
    assert stored.listed(run / names.ATTENTION, names.ALL_MAPS) == []
    assert report_runs([run], title="A run")


def test_what_a_killed_unpack_left_is_gone_after_the_next(study):
    before = files(study)
    store.pack_study(study)
    for folder in (study / FINISHED, study / FINISHED / names.ATTENTION):
        folder.mkdir(exist_ok=True)
        (folder / ".maps.png.12.part").write_bytes(b"half")
    store.unpack_study(study)
    assert files(study) == before


def test_folder_beside_its_pack_must_be_the_same(study):
    copy = study.parent / "copy"
    shutil.copytree(study / FINISHED, copy)
    store.pack_study(study)
    shutil.copytree(copy, study / FINISHED)
    writing.write_json(study / FINISHED / names.EVALUATIONS, {"far": {"top1": 0.75}})
    before = files(study)
    for command in (store.pack_study, store.unpack_study):
        with pytest.raises(
            InputError, match=r"evaluations\.json is not what tiny/trials\.jsonl has"
        ):
            command(study)
    assert files(study) == before


def test_packed_study_is_not_run(study):
    store.pack_study(study)
    said = f"{study} is packed. Make its folders again: flashpoint study unpack {study}."
    with pytest.raises(InputError, match=said):
        store.settle_study(study, STUDY, SETTINGS, plan(SETTINGS))
    trials.remove_study(study)
    assert not files(study)


@contextmanager
def held(file):
    """A file that another process locks."""
    code = (
        "import sys; from pathlib import Path; from flashpoint.lab.runs.locks import locked\n"
        "with locked(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(file)], **pipes) as process:
        process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()


def test_study_in_use_is_not_packed(study):
    with held(study / names.LOCK):
        for refused in (store.pack_study, store.unpack_study):
            with pytest.raises(InputError, match="is in use by process"):
                refused(study)


def test_trial_whose_runner_was_killed_is_not_packed_while_it_trains(study):
    before = files(study)
    with (
        held(study / STOPPED / names.LOCK),
        pytest.raises(InputError, match=f"{STOPPED} is in use by a process that trains it"),
    ):
        store.pack_study(study)
    assert files(study).keys() - before.keys() == {f"{STOPPED}/{names.LOCK}"}


def test_folders_are_not_unpacked(study):
    with pytest.raises(InputError, match=r"tiny is not packed: it has no trials\.jsonl\."):
        store.unpack_study(study)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"trial": "../out", "files": {}}, "trial='../out' is no name of a folder."),
        ({"trial": "add", "files": {}}, "trial='add' is there twice."),
        ({"trial": "b", "files": {"../a": ""}}, "files has '../a', which is no file of a trial."),
        ({"trial": "b", "files": {"/etc/x": ""}}, "files has '/etc/x', which is no file of"),
        ({"trial": "b", "files": {names.LOCK: ""}}, "files has '.lock', which is no file of"),
        (
            {"trial": "b", "files": {names.LOG: {"base64": "?"}}},
            "files.log.txt has bytes that",
        ),
        ({"trial": "b", "files": {names.LOG: 3}}, "files.log.txt=3 must be"),
        ({"trial": "b", "file": {}}, "file is unknown. Did you mean 'files'?"),
        ({"trial": "b"}, "files is missing."),
    ],
)
def test_line_of_another_shape_is_refused(study, line, said):
    store.pack_study(study)
    with (study / names.TRIALS).open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(InputError) as caught:
        read_section(study, {"tiny": STUDY})
    assert str(caught.value).startswith(f"{study / names.TRIALS}, line 6: {said}")
    assert str(caught.value).endswith("Restore the file.")


@given(data=st.data())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_broken_pack_is_one_line(tmp_path, data):
    study = make_study(tmp_path / "tiny")
    store.pack_study(study)
    lines = (study / names.TRIALS).read_bytes().splitlines()
    number = data.draw(st.integers(1, len(lines) - 1))
    lines[number] = data.draw(broken_files.broken(json.loads(lines[number])))
    (study / names.TRIALS).write_bytes(b"\n".join(lines) + b"\n")
    try:
        read_section(study, {"tiny": STUDY})
    except InputError as error:
        said = str(error)
    else:
        return  # what was drawn may stand there
    assert "\n" not in said
    assert str(study) in said
    assert len(said) < 1000


@pytest.mark.parametrize("put", broken_files.NO_FILES)
def test_what_lies_where_the_pack_was_is_one_line(study, put):
    store.pack_study(study)
    put(study / names.TRIALS)
    with pytest.raises(InputError, match=r"tiny/trials\.jsonl"):
        page(study)


def test_cut_pack_is_refused(study):
    store.pack_study(study)
    file = study / names.TRIALS
    whole = file.read_bytes()
    for end in (-2, -100):
        file.write_bytes(whole[:end])
        with pytest.raises(InputError, match=r"tiny/trials\.jsonl, line 5 cannot be read"):
            page(study)
    file.write_bytes(whole[: whole.rindex(b"\n", 0, -1)])
    for use in (page, store.pack_study, store.unpack_study):
        with pytest.raises(InputError, match=r"tiny/trials\.jsonl has no trial 'wait'"):
            use(study)
    assert files(study).keys() == {names.STUDY, names.TRIALS}
