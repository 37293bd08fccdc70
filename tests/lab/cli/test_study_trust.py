"""Study folders of strangers: nothing that they name is imported or called."""

import json
import random
import string
import sys
from itertools import product
from pathlib import Path

import pytest
from lab.cli.test_study import refused
from lab.study.tiny import read_json

from flashpoint.errors import hint
from flashpoint.lab.runs import names, writing
from flashpoint.lab.study import trial
from flashpoint.lab.study.measures.registry import MEASURES
from flashpoint.lab.study.on_ray import _work

OUT = Path("runs", "studies", "smoke")
RUN = ("run", "small", "--scale", "smoke", "--jobs", "1")
SHELL = "touch touched"
WAYS = ("os:system", "posix:system", "subprocess:getoutput", "subprocess:call", "os:popen")
OURS = (
    *("flashpoint.study.measures.variance:torch", "flashpoint.study.measures.registry:_variance"),
    *("variance:measure", "flashpoint.study.measures.variance", " variance", "VARIANCE", ""),
    *("flashpoint.study.store:tidy", "study.tiny_measures:add", "sum", "builtins:eval"),
)


def made_up(seed):
    """Names of a module that writes a file when it is imported, and when it is called."""
    letters = random.Random(seed)
    names = ["".join(letters.choices(string.ascii_lowercase, k=12)) for _ in range(2)]
    code = f"import os\nos.system({SHELL!r})\ndef {names[1]}(options): os.system({SHELL!r})\n"
    Path(f"{names[0]}.py").write_text(code)
    separator = letters.choice((":", ".", "::", ":__globals__:"))
    return separator.join(names)


@pytest.fixture
def foreign(study, monkeypatch, tmp_path):
    """A finished study, and functions with options that a stranger may put into its files."""
    assert study(*RUN).exit_code == 0
    monkeypatch.syspath_prepend(tmp_path)
    names = [*WAYS, *OURS, *map(made_up, range(10)), None, 7, ["os:system"], {"os": "system"}]
    return list(product(names, (SHELL, {"args": SHELL})))


def plant(folder, name, options):
    """Ask for a function in a trial's file, and for that trial in the study's."""
    work = {"function": name, "options": options}
    writing.write_json(folder / names.TRIAL, {"name": folder.name, "factors": {}, "work": work})
    file = folder.parent / names.STUDY
    content = read_json(file)
    planned = dict.fromkeys([*content["trials"], folder.name])
    writing.write_json(file, {**content, "trials": list(planned)})


def ends_in_one_line(said, folder, function, options):
    """A name is refused with those that are known, anything else by its type."""
    assert said.startswith(f"{folder / names.TRIAL}: work")
    is_name = isinstance(function, str) and isinstance(options, dict)
    known = f"is unknown. Known: {', '.join(MEASURES)}." if is_name else "must be "
    assert known in said.replace(hint(function, MEASURES), "")
    assert said.endswith(f" Remove {folder} to do the trial again.")
    assert "\n" not in said


@pytest.mark.parametrize("name", ["add", "evil"], ids=["planned", "added"])
def test_verbs_call_nothing_that_a_folder_names(study, foreign, name):
    folder = OUT / "small" / name
    for function, options in foreign:
        (folder / names.RECORD).unlink(missing_ok=True)
        plant(folder, function, options)
        for verb in (RUN, ("report", OUT), ("report", OUT / "small")):
            ends_in_one_line(refused(study, *verb), folder, function, options)
        for verb in (("show", "small", "--scale", "smoke"), ("list",)):
            assert study(*verb).exit_code == 0
    assert not Path("touched").exists()
    assert not (OUT / "report.html").exists()


def test_processes_and_tasks_call_nothing_that_a_folder_names(foreign):
    folder = OUT / "small" / "evil"
    for function, options in foreign:
        plant(folder, function, options)
        text = (folder / names.TRIAL).read_text()
        assert trial.main([str(folder)]) == trial.FAILED
        ends_in_one_line(read_json(folder / names.FAILURE)["reason"], folder, function, options)
        assert _work(str(folder), "", False) == ("failed", {})
        ending, files = _work(str(folder.with_name("elsewhere")), text, False)
        assert ending == "failed"
        reason = json.loads(files[names.FAILURE])["reason"]
        assert "is unknown. " in reason or "must be " in reason
    assert not Path("touched").exists()
    assert not {file.stem for file in Path().glob("*.py")} & set(sys.modules)
