"""``flashpoint study`` from the command line, on a study of seconds."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lab.evaluation.trained import call
from lab.report.run_folders import make_run
from lab.study.tiny import STUDY, content, measurement, settle, training, use_registry
from typer.testing import CliRunner

from flashpoint.errors import FlashpointError, InputError
from flashpoint.lab.cli.main import app
from flashpoint.lab.cli.report import report
from flashpoint.lab.runs import names, trials
from flashpoint.lab.study import store
from flashpoint.lab.study.plan import settings_of
from flashpoint.lab.study.registry import STUDIES


def refused(study, *arguments):
    """The one line with which a command is refused."""
    with pytest.raises(FlashpointError) as caught:
        study(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_list_has_questions_and_counts(study):
    said = study("list").stdout
    assert "Do more steps help?" in said
    assert "open" in said
    (line,) = [line for line in said.splitlines() if line.startswith("tiny")]
    assert line.split()[-3:] == ["3", "7", "7"]


@pytest.mark.parametrize("columns", [80, 120])
def test_list_fits_the_terminal(columns, monkeypatch):
    """A line of name, source and counts, then the question: in one line, or two where narrow."""
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = CliRunner().invoke(app, ["study", "list"]).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    heads = [number for number, line in enumerate(lines) if line.split()[0] in STUDIES]
    assert [lines[number].split()[0] for number in heads] == list(STUDIES)
    for number, end, entry in zip(heads, [*heads[1:], -1], STUDIES.values(), strict=True):
        words = lines[number].split()
        assert words[1:-3] == entry.source.split()
        assert all(count.isdecimal() for count in words[-3:])
        asked = lines[number + 1 : end]
        assert " ".join(" ".join(asked).split()) == entry.question
        assert len(asked) <= (1 if columns == 120 else 2)


def test_show_has_claim_axes_data_and_cost(study):
    said = study("show", "tiny", "--scale", "smoke", "--seeds", "2").stdout
    for part in ("Whoever looks longer sees more.", "relu, few, add", "digits", "5 trials"):
        assert part in said
    assert "departures  Not as there: all is tiny." in said
    rows = [line.split() for line in said.splitlines()]
    assert ["relu", "2", "21.4", "M"] in rows
    assert ["few", "2", "7.14", "M"] in rows
    assert ["add", "1", "-"] in rows
    assert "57.1 MFLOPs in training" in said


def test_show_without_data_says_what_is_missing(study):
    said = " ".join(study("show", "tiny", "--scale", "paper").stdout.split())
    assert "cost unknown: this scale has no data of its own: pass --images WHERE" in said


@pytest.mark.slow
def test_run_trains_and_says_what_was_found_and_repeats_nothing(study, tmp_path):
    first = study("run", "all", "--scale", "smoke", "--jobs", "2")
    assert first.exit_code == 0, first.output
    out = Path("runs", "studies", "smoke")
    assert trials.find_studies(out) == [out / "small", out / "tiny"]
    for part in (
        "tiny/relu-seed0 running",
        "tiny/relu-seed0 finished top1 ",
        "small/add finished",
    ):
        assert part in first.stdout
    assert "tiny: 3 finished" in first.stdout
    assert "undecided  More steps help." in first.stdout
    assert f"study report {out}" in first.stdout
    before = content(out)
    again = study("run", "all", "--scale", "smoke", "--jobs", "2")
    assert content(out) == before
    assert "running" not in again.stdout
    assert first.stdout.endswith(again.stdout)
    more = study("run", "tiny", "--scale", "smoke", "--seeds", "2", "--jobs", "2")
    assert "tiny: 5 finished" in more.stdout
    assert "relu-seed0" not in more.stdout
    assert {name: content(out)[name] for name in before if "relu-seed0" in name} == {
        name: before[name] for name in before if "relu-seed0" in name
    }


def test_only_some_trials_run_and_the_others_follow(study):
    first = study("run", "tiny", "--scale", "smoke", "--only", "add", "--jobs", "1")
    assert "tiny: 1 finished" in first.stdout
    assert "relu-seed0" not in first.stdout
    whole = study("run", "tiny", "--scale", "smoke", "--jobs", "1")
    assert "tiny: 3 finished" in whole.stdout
    assert "tiny/add" not in whole.stdout


def test_only_some_trials_of_a_plan_that_is_there_run(study):
    settings = settings_of("smoke")
    plan = STUDY.plan(settings)  # all of it, as an interrupted command leaves it
    settle(Path("runs", "studies", "smoke", "tiny"), plan, settings)
    some = study("run", "tiny", "--scale", "smoke", "--only", "add", "--jobs", "1")
    assert "tiny/add finished" in some.stdout
    assert "relu-seed0" not in some.stdout
    assert "--fresh removes all trials" in refused(
        study, "run", "tiny", "--scale", "smoke", "--only", "add", "--fresh"
    )


def test_trials_with_any_of_several_texts_run(study):
    some = ("--only", "add", "--only", "relu-seed0")
    first = study("run", "tiny", "--scale", "smoke", "--jobs", "1", *some)
    assert "tiny: 2 finished" in first.stdout
    assert "softmax-seed0" not in first.stdout


def test_each_of_several_texts_must_be_in_some_name(study):
    texts = ("--only", "add", "--only", "nothing")
    said = refused(study, "run", "tiny", "--scale", "smoke", *texts)
    assert "--only 'nothing': no trial of tiny has that in its name" in said
    assert not Path("runs").exists()


def test_a_text_that_no_trial_has_is_refused_and_writes_nothing(study):
    said = refused(study, "run", "tiny", "--scale", "smoke", "--only", "nothing")
    assert "--only 'nothing': no trial of tiny has that in its name" in said
    assert "The first of 3 is 'relu-seed0'" in said
    assert not Path("runs").exists()


def test_failed_trials_end_with_a_status_of_their_own(study, monkeypatch):
    bad = replace(STUDY, plan=lambda _: (measurement("bad", "break_down"),))
    use_registry(monkeypatch, bad)
    result = study("run", "tiny", "--scale", "smoke", "--jobs", "1")
    assert result.exit_code == 1
    assert "failed bad: ZeroDivisionError: division by zero" in result.stdout
    assert "1 of 1 trials failed. Why is in their failure.json; the same" in result.stderr


@pytest.mark.slow
def test_trial_with_a_broken_record_is_done_again_as_it_says(study):
    folder = Path("runs", "studies", "smoke", "small", "add")
    study("run", "small", "--scale", "smoke")
    (folder / names.RECORD).write_text("{")
    again = study("run", "small", "--scale", "smoke")
    assert again.exit_code == 1
    assert f"Remove {folder} to do the trial again." in " ".join(again.stdout.split())
    shutil.rmtree(folder)
    assert study("run", "small", "--scale", "smoke").exit_code == 0
    assert store.read_outcome(folder).status == "finished"


def test_study_with_a_broken_file_goes_on_as_it_says(study):
    folder = Path("runs", "studies", "smoke", "small")
    study("run", "small", "--scale", "smoke")
    before = content(folder)
    (folder / names.STUDY).write_text("{")
    for command in (["run", "small", "--scale", "smoke"], ["report", folder.parent]):
        said = refused(study, *command)
        assert said.startswith(f"{folder / names.STUDY} cannot be read: ")
        assert f"Remove {folder / names.STUDY} and give the command" in said
    (folder / names.STUDY).unlink()
    assert study("run", "small", "--scale", "smoke").exit_code == 0
    assert content(folder) == before


@pytest.mark.slow
def test_trial_that_was_stopped_from_outside_is_said(study, monkeypatch):
    stops = replace(STUDY, plan=lambda _: (measurement("stops", "stop"),))
    use_registry(monkeypatch, stops)
    result = study("run", "tiny", "--scale", "smoke", "--jobs", "1")
    assert result.exit_code == 75
    assert "tiny: 1 stopped" in result.stdout
    assert "1 of 1 trials were stopped. Give the same command again to go on." in result.stderr


def test_ray_that_is_not_installed_is_said_before_anything_is_written(study, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refused(study, "run", "small", "--scale", "smoke", "--on", "ray")
    assert said.startswith("--on ray needs the package ray. Install it: pip install '.[study]'")
    assert not Path("runs").exists()


@pytest.mark.slow
def test_changed_plan_is_refused_and_fresh_removes_it(study, monkeypatch):
    study("run", "small", "--scale", "smoke", "--jobs", "1")
    other = replace(STUDY, name="small", plan=lambda _: (measurement("add", "add", x=5, y=5),))
    use_registry(monkeypatch, other)
    said = refused(study, "run", "small", "--scale", "smoke", "--jobs", "1")
    assert "add holds another plan: work.options.x was 1, is 5. Pass --fresh" in said
    assert study("run", "small", "--scale", "smoke", "--jobs", "1", "--fresh").exit_code == 0
    folder = Path("runs", "studies", "smoke", "small", "add")
    assert store.read_outcome(folder).numbers["sum"] == 10.0


def test_report_asks_which_of_several_folders(study):
    for scale in ("small", "smoke"):
        settle(Path("runs", "studies", scale, "tiny"), [measurement("add", "add", x=1, y=1)])
    said = refused(study, "report")
    assert said == (
        "which studies? In runs/studies there are: runs/studies/small, runs/studies/smoke. "
        "Name a folder."
    )


@pytest.mark.slow
def test_checkpoints_are_kept_if_asked_for(study, monkeypatch):
    use_registry(monkeypatch, replace(STUDY, plan=lambda _: (training("relu", steps=2),)))
    study("run", "tiny", "--scale", "smoke", "--jobs", "1", "--keep-checkpoints", "--out", "here")
    assert Path("here", "tiny", "relu-seed0", "checkpoints", "step_2").is_dir()


@pytest.mark.slow
def test_second_command_on_the_same_folder_is_refused(study, tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from flashpoint.lab.runs.trials import claim_study\n"
        "with claim_study(Path('out/small')): print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        said = refused(study, "run", "all", "--scale", "smoke", "--out", "out", "--fresh")
        other.stdin.close()
    assert said.startswith(f"out/small is in use by process {other.pid}, which runs this study.")
    assert not list(Path("out").glob("*/*.json"))


def test_stopped_command_has_its_own_status(study, monkeypatch):
    from flashpoint.lab.study import local

    class Pool:
        """Of processes that never end; the signal comes when they have begun."""

        is_busy = True
        has_room = False

        def __enter__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(local, "_Pool", lambda *_: Pool())
    result = study("run", "small", "--scale", "smoke", "--jobs", "1")
    assert result.exit_code == 75
    assert result.stderr.strip() == (
        "stopped by SIGTERM; what had begun is saved. Give the same command again to go on."
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["run", "tiney"],
            "study 'tiney' is unknown. Did you mean 'tiny'? Known: tiny, small, all",
        ),
        (["run", "all", "tiney"], "study 'tiney' is unknown. Did you mean 'tiny'? Known: tiny"),
        (["show", "x"], "study 'x' is unknown. Known: tiny, small."),
        (["show", "all"], "study show takes one study; 'all' is for `study run`. Known: tiny,"),
        (
            ["run", "tiny"],
            "data/cifar10 holds no prepared cifar10. Make it: flashpoint data prepare cifar10",
        ),
        (["run", "tiny", "--scale", "paper"], "this scale has no data of its own: pass --images"),
        (["run", "tiny", "--images", "nowhere"], "'nowhere' is neither a folder nor a known set."),
        (["run", "tiny", "--on", "rai"], "--on 'rai' must be local, ray or ray://HOST:PORT. Did"),
        (
            ["run", "tiny", "--on", "ray://x:1", "--jobs", "2"],
            "--jobs 2 is for this machine; on ray://x:1 the cluster's cores and GPUs decide.",
        ),
        (["run", "tiny", "--gpus-per-trial", "1"], "--gpus-per-trial is for Ray. Pass --jobs"),
        (
            ["run", "tiny", "--on", "ray", "--gpus-per-trial", "1.5"],
            "--gpus-per-trial 1.5 must be a share of a GPU, up to 1, or a whole number of them.",
        ),
        (["run", "tiny", "--on", "ray", "--gpus-per-trial", "inf"], "--gpus-per-trial inf must"),
        (["run", "tiny", "--seeds", "99999999999"], "seeds=99999999999 must lie in [1, 1000]."),
        (["show", "tiny", "--seeds", "99999999999"], "seeds=99999999999 must lie in [1, 1000]."),
        (["run", "small", "--out", "/proc/none"], "/proc/none/small cannot be written: "),
        (
            ["report"],
            "runs/studies holds no study. Run one: flashpoint study run NAME, or name DIR.",
        ),
    ],
)
def test_bad_input_is_one_line(study, arguments, said):
    assert refused(study, *arguments).startswith(said)
    assert not Path("runs").exists()


def test_missing_documents_are_said_with_what_makes_them(study, monkeypatch):
    text = training("relu", task="text", data={"train": "data/docs", "validation": "data/docs"})
    use_registry(monkeypatch, replace(STUDY, plan=lambda _: (text,)))
    assert refused(study, "run", "tiny").startswith(
        "data/docs holds no prepared documents. Make them: flashpoint data prepare en-de-docs "
        "--to data/docs."
    )


def stored_study(folder):
    """A study's folder with a run that has ended, as a report reads it."""
    relu, _ = settle(folder, [training("relu", 0, ()), training("few")])
    made = make_run(folder / "made")
    for file in made.iterdir():
        file.rename(relu / file.name)
    made.rmdir()
    return folder


def test_report_is_a_page_with_claims_and_pictures(study, tmp_path):
    pytest.importorskip("flashpoint.lab.report.study_report")
    stored_study(tmp_path / "runs" / "studies" / "smoke" / "tiny")
    said = study("report", "--pictures", "figures", "--title", "Mine & yours")
    page = Path("runs", "studies", "smoke", "report.html").read_text()
    for part in ("Mine &amp; yours", "Do more steps help?", "Whoever looks longer", "relu-seed0"):
        assert part in page
    assert "study run tiny --scale smoke --seeds 2" in page
    assert "2 pictures in figures" in said.stdout
    assert Path("figures", "tiny-accuracy.png").is_file()


def test_report_of_runs_takes_studies_too(study, tmp_path):
    pytest.importorskip("flashpoint.lab.report.study_report")
    folder = stored_study(tmp_path / "tiny")
    out, _ = call(report, folder)
    assert f"{folder / 'report.html'} (" in out
    assert "Flashpoint: studies" in (folder / "report.html").read_text()


def test_report_refuses_what_is_not_clear(study, tmp_path):
    pytest.importorskip("flashpoint.lab.report.study_report")
    one, two = (stored_study(tmp_path / name / "tiny") for name in ("one", "two"))
    with pytest.raises(InputError, match=r"study 'tiny' is in .*one/tiny and .*two/tiny. Name"):
        call(report, one, two)
    with pytest.raises(InputError, match="holds no study"):
        call(report, one, make_run(tmp_path / "run"))
    study_file = one / names.STUDY
    study_file.write_text(study_file.read_text().replace('"tiny"', '"gone"'))
    assert "holds study 'gone', unknown here. Known: tiny" in refused(study, "report", one)


def test_packed_study_is_reported_and_runs_again_once_it_is_unpacked(study):
    folder = Path("runs", "studies", "smoke", "small")
    run = ("run", "small", "--scale", "smoke")
    study(*run)
    before = content(folder)
    assert f"{folder}: 1 trials in trials.jsonl" in study("pack", folder.parent).stdout
    assert {path.name for path in folder.iterdir()} == {names.STUDY, names.TRIALS, names.LOCK}
    assert study("report", folder).exit_code == 0
    assert f"{folder} is packed. Make its folders again: flashpoint" in refused(study, *run)
    assert f"{folder}: 1 trials in folders" in study("unpack", folder).stdout
    (folder / names.PAGE).unlink()
    assert content(folder) == before
    assert study(*run).exit_code == 0
    assert "holds no study" in refused(study, "pack", folder / "add")


def test_unpack_of_many_goes_on_with_those_that_are_packed(study, tmp_path):
    """As the same command must after it was killed between two of them."""
    one, two = (stored_study(tmp_path / "kept" / name) for name in ("one", "two"))
    before = content(two)
    study("pack", two)
    assert f"{two}: 2 trials in folders" in study("unpack", tmp_path / "kept").stdout
    assert content(two) == {**before, names.LOCK: content(two)[names.LOCK]}
    assert f"{one} is not packed" in refused(study, "unpack", tmp_path / "kept")
