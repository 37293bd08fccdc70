"""Options of the command line: every number has limits, and no path is empty."""

import math
import typing
from pathlib import Path

import pytest
from typer.models import OptionInfo, ParameterInfo

from flashpoint.lab.cli import main
from flashpoint.lab.cli.bench import bench
from flashpoint.lab.cli.data import prepare, show
from flashpoint.lab.cli.demo import demo
from flashpoint.lab.cli.doctor import doctor
from flashpoint.lab.cli.evaluate import evaluate
from flashpoint.lab.cli.inspect import inspect
from flashpoint.lab.cli.models import models
from flashpoint.lab.cli.plan import plan
from flashpoint.lab.cli.probe import probe
from flashpoint.lab.cli.report import report
from flashpoint.lab.cli.train import train
from flashpoint.lab.cli.translate import translate
from flashpoint.lab.cli.tune import tune

VERBS = (train, evaluate, translate, probe, inspect, models, bench, tune, demo, report)
VERBS += (prepare, show, doctor, plan)
WORDS = {"prepare": ("data", "prepare"), "show": ("data", "show")}
ABSURD = ("0x10", "nan", "inf", "-inf", "1e400", "9" * 30, "9" * 5000, "-" + "9" * 30, "", "x")


def members(hint):
    inner = typing.get_args(hint)
    return {one for argument in inner for one in members(argument)} if inner else {hint}


def parameters(kinds):
    """Verb, name and typer's description of every parameter of some types."""
    for verb in VERBS:
        for name, hint in typing.get_type_hints(verb, include_extras=True).items():
            infos = [x for x in getattr(hint, "__metadata__", ()) if isinstance(x, ParameterInfo)]
            if infos and members(typing.get_args(hint)[0]) & kinds:
                yield verb.__name__, name, infos[0]


NUMBERS = [pytest.param(*found, id=f"{found[0]}-{found[1]}") for found in parameters({int, float})]
PATHS = [pytest.param(*found, id=f"{found[0]}-{found[1]}") for found in parameters({Path})]


def option_of(name, info):
    words = (info.default, *(info.param_decls or ()))
    given = [word for word in words if isinstance(word, str) and word.startswith("--")]
    return given[0] if given else f"--{name.replace('_', '-')}"


def refusal(monkeypatch, capsys, *arguments):
    """What the command line says, of which there must be one line."""
    monkeypatch.setattr("sys.argv", ["flashpoint", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.count("\n") == 1
    assert len(said) < 400
    return said


@pytest.mark.parametrize(("verb", "name", "info"), NUMBERS)
def test_every_number_has_limits_and_absurd_ones_are_refused(
    verb, name, info, monkeypatch, capsys
):
    assert math.isfinite(info.min)
    assert math.isfinite(info.max)
    option = option_of(name, info)
    placeless = ("models", "bench", "tune", "demo", "report", "doctor", "plan")
    places = ["somewhere"] * (verb not in placeless)
    for text in (*ABSURD, str(info.max + 1), str(info.min - 1)):
        said = refusal(monkeypatch, capsys, *WORDS.get(verb, (verb,)), *places, option, text)
        assert f"invalid value for '{option}'" in said


@pytest.mark.parametrize(("verb", "name", "info"), PATHS)
def test_empty_path_is_refused(verb, name, info, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    has_place = verb not in ("bench", "demo", "plan") and name not in ("run", "runs")
    places = ["somewhere"] * has_place
    options = [option_of(name, info)] if isinstance(info, OptionInfo) else []
    said = refusal(monkeypatch, capsys, *WORDS.get(verb, (verb,)), *places, *options, "")
    assert "it is empty and names no file or folder" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [("data", "show"), ("train", "vit_ti16", "--data"), ("train", "reluformer_base", "--data")],
)
def test_empty_data_are_not_the_current_folder(words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("a/0.png", "b/0.png", "train.jsonl", "summary.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for empty in ("", " "):
        assert "the place of data is empty" in refusal(monkeypatch, capsys, *words, empty)


@pytest.mark.parametrize("which", ["9" * 30, "9" * 5000])
def test_step_beyond_counting_is_refused(which):
    from flashpoint.errors import InputError
    from flashpoint.lab.cli.run_arguments import parse_checkpoint

    with pytest.raises(InputError, match="must be best, last or a step") as error:
        parse_checkpoint(which)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("verb", ["bench", "tune"])
@pytest.mark.parametrize(
    "shape", ["1,8,99999999999,64", "1,8,64," + "9" * 30, "1,8,64," + "9" * 5000, "0,1,1,1"]
)
def test_shape_beyond_counting_is_refused(monkeypatch, capsys, verb, shape):
    assert "error: shape " in refusal(monkeypatch, capsys, verb, "--shape", shape)


def test_shape_beyond_memory_is_refused(monkeypatch, capsys):
    arguments = ("bench", "--device", "cpu", "--shape", "64,64,10000000,64")
    said = refusal(monkeypatch, capsys, *arguments)
    assert "shape 64, 64, 10000000, 64 in bf16 needs " in said
    assert " GB free. Take a smaller one." in said


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch's."""


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate."),
        MemoryError("Unable to allocate 8 EiB"),
    ],
)
def test_lack_of_memory_is_one_line(monkeypatch, capsys, error):
    def fail(**_):
        raise error

    monkeypatch.setattr(main, "app", fail)
    said = refusal(monkeypatch, capsys, "evaluate", "somewhere")
    assert said.startswith("error: out of memory: ")
    assert said.endswith("Take smaller batches, shapes or models.\n")


def test_other_errors_keep_their_traceback(monkeypatch):
    def fail(**_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main.main()
