"""Commands that are killed at random moments and given again end with the same bits.

``pytest tests/lab/test_kills.py --kills 10 -rP`` kills train, study run and data prepare ten times
each and shows when; without the option the last alone is killed, once, since others kill trainings
and studies. ``--kill-seed N`` draws the moments of an earlier test again.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab.study.tiny import read_json
from lab.training.runs import assert_same_run, curve, environment, write_config
from tools.debian import make_packages

from flashpoint.lab.runs.names import EVALUATIONS
from flashpoint.lab.study.store import read_study

pytestmark = pytest.mark.slow

MAIN = "from flashpoint.lab.cli.main import main; main()"
STUDY_MAIN = f"""
import sys
from dataclasses import replace
from types import ModuleType
from lab.study.tiny import AFTERWARDS, STUDY, training
def plan(settings):
    return training("relu", 0, AFTERWARDS), training("few", 0, steps=4)
module = ModuleType("flashpoint.lab.study.registry")
module.STUDIES = {{"tiny": replace(STUDY, plan=plan)}}
sys.modules[module.__name__] = module
{MAIN}
"""
"""Two runs of the smallest study, one of them with evaluations."""
CHANGES = ("steps=60", "checkpoint_every=3", "evaluate_every=20", "log_every=7", "batch_size=8")
MEASURED = ("seconds", "samples_per_s", "utilisation", "environment")
APT = """#!/bin/sh
sleep 0.05
cp "$DEBS/$3"_*.deb .
"""


class Command:
    """A command that writes into a folder; all its files are made anew in each."""

    def __init__(self, code, arguments, sign, **variables):
        self._line = [sys.executable, "-c", code, *map(str, arguments)]
        self._sign = sign
        tests = str(Path(__file__).parents[1])
        path = os.pathsep.join((tests, environment()["PYTHONPATH"]))
        self._environment = {**environment(), "PYTHONPATH": path, **variables}

    def finish(self, folder):
        """Give it and wait for its end; gives the seconds from its first sign of work."""
        process = self._start(folder)
        self._wait_for_work(process, folder)
        begin = time.monotonic()
        _, said = process.communicate()
        assert process.returncode == 0, said.decode()
        return time.monotonic() - begin

    def kill(self, folder, seconds, whole_group):
        """Kill it so long after its first sign of work; says whether it still ran."""
        process = self._start(folder)
        self._wait_for_work(process, folder)
        time.sleep(seconds)
        still_ran = process.poll() is None
        if still_ran and whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.communicate()
        return still_ran

    def _start(self, folder):
        folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            self._line,
            cwd=folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _wait_for_work(self, process, folder):
        while process.poll() is None and not (folder / self._sign).exists():
            time.sleep(0.005)


def kill_and_repeat(command, tmp_path, request, rng, compare, at_least=0):
    """Kill a command several times at moments of its work; each time, give it again."""
    wanted = max(at_least, request.config.getoption("--kills"))
    if not wanted:
        pytest.skip("--kills N kills N times")
    whole = tmp_path / "whole"
    span = command.finish(whole)
    kills = 0
    while kills < wanted:
        folder = tmp_path / "killed"
        moment, whole_group = rng.uniform(0, span), rng.random() < 0.5
        if command.kill(folder, moment, whole_group):
            kills += 1
            what = "all processes" if whole_group else "the first process"
            print(f"{kills}: killed {what} after {moment:.2f} of {span:.2f} s")  # noqa: T201
        else:
            span = moment  # the machine is faster now
        command.finish(folder)
        compare(whole, folder)
        shutil.rmtree(folder)


def assert_same_record(one, other):
    """All but what was measured."""
    mine, theirs = (read_json(folder / "record.json") for folder in (one, other))
    for name in mine.keys() | theirs.keys():
        assert name in MEASURED or mine[name] == theirs[name], name


def test_killed_training_gives_the_same_run(tmp_path, request, kill_rng):
    config = write_config(tmp_path, *CHANGES)
    command = Command(MAIN, ["train", config, "--out", "run"], "run")

    def compare(one, other):
        assert_same_run(one / "run", other / "run")
        assert_same_record(one / "run", other / "run")

    kill_and_repeat(command, tmp_path, request, kill_rng, compare)


def test_killed_study_gives_the_same_records(tmp_path, request, kill_rng):
    arguments = ["study", "run", "tiny", "--scale", "smoke", "--seeds", "1", "--jobs", "1"]
    words = [*arguments, "--images", "digits", "--out", "out"]
    command = Command(STUDY_MAIN, words, "out/tiny/study.json")

    def compare(one, other):
        found = [read_study(folder / "out" / "tiny") for folder in (one, other)]
        names = [[trial.name for trial in study.trials] for study in found]
        assert names[0] == names[1]
        for mine, theirs in zip(found[0].trials, found[1].trials, strict=True):
            assert curve(mine) == curve(theirs)
            assert_same_record(mine, theirs)
            for name in ("trial.json", "config.yaml", EVALUATIONS, "attention/statistics.json"):
                files = [folder / name for folder in (mine, theirs)]
                assert files[0].exists() == files[1].exists(), files
                assert not files[0].exists() or files[0].read_bytes() == files[1].read_bytes()

    kill_and_repeat(command, tmp_path, request, kill_rng, compare)


def test_killed_preparation_gives_the_same_files(tmp_path, request, kill_rng):
    """Packages come from a stand-in for apt-get, one after the other."""
    debs, tools = tmp_path / "debs", tmp_path / "tools"
    for folder in (debs, tools):
        folder.mkdir()
    make_packages(debs)
    (tools / "apt-get").write_text(APT)
    (tools / "apt-get").chmod(0o755)
    path = os.pathsep.join((str(tools), os.environ["PATH"]))
    variables = {"DEBS": str(debs), "PATH": path, "FLASHPOINT_CACHE": "cache"}
    words = ["data", "prepare", "en-de-docs", "--to", "set"]
    command = Command(MAIN, words, "cache/debian/partial", **variables)

    def compare(one, other):
        for name in ("set/*", "cache/debian/*.deb"):
            mine, theirs = (
                {file.name: file.read_bytes() for file in folder.glob(name) if file.name[0] != "."}
                for folder in (one, other)
            )
            assert len(mine) >= 4
            assert mine == theirs

    kill_and_repeat(command, tmp_path, request, kill_rng, compare, at_least=1)
