"""docs/results.md, the results that its numbers come from, and how the page writes them."""

import json
from pathlib import Path

import numpy as np

from flashpoint.lab.runs.run_files import read_mapping
from flashpoint.lab.study.store import read_study
from flashpoint.lab.study.verdict import bootstrap

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "benchmarks" / "results"
STUDIES = ROOT / "results"
PAGE = (ROOT / "docs" / "results.md").read_text("utf-8")
TEXT = " ".join(PAGE.split())


def names_a_machine(text):
    """Whether a folder of one is named, which means nothing elsewhere."""
    return any(folder in text for folder in (":/", '"/', " /", "/tmp", "/home", "/root"))


def benchmark(name):
    """A file of ``flashpoint bench`` on an H200, as it is stored."""
    return json.loads((RUNS / f"h200_{name}.json").read_text("utf-8"))


def record_of(study, name, file="record.json", seeds=(0, 1, 2)):
    """By seed."""
    return [read_mapping(STUDIES / study / f"{name}seed{seed}" / file) for seed in seeds]


def trials_of(study):
    """Folders of its trials, which are packed, by name."""
    return sorted(read_study(STUDIES / study).trials)


def top1_in(study, name, evaluation=None, seeds=(0, 1, 2)):
    """Percent by seed: of the validation, or of an evaluation after it."""
    if evaluation is None:
        found = record_of(study, f"{name}-", seeds=seeds)
        return np.array([100 * one["validation"]["top1"] for one in found])
    found = record_of(study, f"{name}-", "evaluations.json", seeds)
    return np.array([100 * one[evaluation]["top1"] for one in found])


def rounded(values, digits=2):
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def between(values, digits=2):
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def difference(first, second, digits=2):
    """Two cells: the difference and its interval."""
    drawn = bootstrap([first, second])
    ends = f"{drawn.low:+.{digits}f} to {drawn.high:+.{digits}f}"
    return [f"{drawn.value:+.{digits}f}", ends]


def said(first, second):
    """The same in a sentence."""
    value, interval = difference(first, second)
    return f"{value} ({interval})"


def assert_row(*cells):
    assert "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells) in PAGE
