"""A study of seconds: a few runs on digits, a measurement, and trials that fail or die."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from lab.study.tiny_measures import TINY_MEASURES
from lab.training.runs import TINY

from flashpoint.lab.runs.findings import Chart as Picture
from flashpoint.lab.runs.findings import DataTable, Findings, Series
from flashpoint.lab.study import store
from flashpoint.lab.study.measures.registry import MEASURES
from flashpoint.lab.study.plan import Evaluation, Measurement, Settings, Study, Training, Trial
from flashpoint.lab.study.reading import numbers
from flashpoint.lab.study.verdict import judge

SETTINGS = Settings(scale="smoke", seeds=2, images="digits", documents="")
AFTERWARDS = (
    Evaluation(name="far", kind="classify", options={"data.image_size": 16}),
    Evaluation(name="few", kind="probe", options={"data": "digits", "shots": 2, "seeds": 1}),
)


def training(name, seed=0, afterwards=(), **changes):
    """A run of the smallest config."""
    factors = {"attention": name, "seed": seed}
    work = Training(config={**TINY, "seed": seed, **changes}, afterwards=afterwards)
    return Trial(name=f"{name}-seed{seed}", factors=factors, work=work)


def measurement(name, function, **options):
    """What a function of ``tiny_measures`` gives."""
    work = Measurement(function=function, options=options)
    return Trial(name=name, factors={"attention": name}, work=work)


def alone(trial):
    """The same measurement, beside which nothing may run."""
    return replace(trial, work=replace(trial.work, is_alone=True))


def plan(settings):
    """Two kinds of runs for every seed, one of them with evaluations, and a measurement."""
    seeds = range(settings.seeds)
    data = {**TINY["data"], "train": settings.images, "validation": settings.images}
    runs = [training("relu", seed, AFTERWARDS, data=data) for seed in seeds]
    runs += [training("few", seed, data=data, steps=4) for seed in seeds]
    return (*runs, measurement("add", "add", x=1, y=2.5))


def findings(outcomes):
    """Whether more steps help."""
    groups = [numbers(outcomes, "top1", attention=name) for name in ("relu", "few")]
    verdict = judge("More steps help.", groups, (0.0, float("inf")), unit="of top-1")
    points = Series(name="relu", x=list(range(len(groups[0]))), y=groups[0])
    words = {"title": "Accuracy", "caption": "By seed.", "x_title": "seed", "y_title": "top-1"}
    picture = Picture(name="tiny-accuracy", series=[points], **words)
    table = DataTable(name="counts", title="Counts", head=["trials"], rows=[[len(outcomes)]])
    return Findings(verdicts=[verdict], charts=[picture], tables=[table])


STUDY = Study(
    name="tiny",
    question="Do more steps help?",
    source="open",
    claim="Whoever looks longer sees more.",
    plan=plan,
    findings=findings,
    departures="Not as there: all is tiny.",
)


def use_registry(monkeypatch, *studies):
    """Let the command line know these studies and no others."""
    module = ModuleType("flashpoint.lab.study.registry")
    module.STUDIES = {study.name: study for study in studies}
    monkeypatch.setitem(sys.modules, module.__name__, module)


def use_measures(monkeypatch):
    """Let trials of this process call the functions of ``tiny_measures``."""
    for name, measure in TINY_MEASURES.items():
        monkeypatch.setitem(MEASURES, name, measure)


def use_in_processes(monkeypatch, folder):
    """Let processes of trials call them too, and find this checkout's code.

    The list of measurements is closed: an empty ``folder`` gets the module that Python imports
    before anything else, which opens it.
    """
    import flashpoint

    use_measures(monkeypatch)
    (folder / "sitecustomize.py").write_text(
        "from flashpoint.lab.study.measures.registry import MEASURES\n"
        "from lab.study.tiny_measures import TINY_MEASURES\n"
        "MEASURES.update(TINY_MEASURES)\n"
    )
    places = (folder, Path(__file__).parents[2], Path(flashpoint.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def settle(folder, trials, settings=SETTINGS):
    """A study's folder with these trials; gives theirs."""
    return list(store.settle_study(folder, STUDY, settings, trials).trials)


def statuses(folders):
    """How trials stand, by name."""
    return {folder.name: store.read_outcome(folder).status for folder in folders}


def assert_alone(folders, name):
    """No other trial slept while this one did."""
    slept = {folder.name: store.read_outcome(folder).numbers for folder in folders}
    own = slept.pop(name)
    for other, span in slept.items():
        assert span["end"] < own["begin"] or span["begin"] > own["end"], other


def content(folder):
    """The bytes of all files below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def read_json(file):
    return json.loads(file.read_text())
