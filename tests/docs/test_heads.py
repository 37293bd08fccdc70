"""Heads of docs/results.md that speak of several stored studies at once."""

from itertools import pairwise

import pytest
from stored_results import STUDIES, TEXT

from flashpoint.lab.runs.run_files import read_mapping, read_runs

IMAGES = ("scaling", "length-power", "qk-norm", "gate", "learned-length", "longer-than-trained")
DOCUMENTS = ("memory-slots", "relu-attention", "document-length")
HALT_S = 30
"""Between two lines of a log that come every few seconds."""


def records(study):
    """By trial."""
    files = sorted((STUDIES / study).glob("*/record.json"))
    return {file.parent.name: read_mapping(file) for file in files}


def sizes(*studies):
    """Millions of parameters of all models that were trained, from the smallest on."""
    found = [one.get("num_parameters") for study in studies for one in records(study).values()]
    return sorted({number / 1e6 for number in found if number})


def test_glance_has_the_sizes_of_all_that_was_trained():
    images, documents, pairs = sizes(*IMAGES), sizes(*DOCUMENTS), sizes("retrieval")
    assert f"ViTs of {images[0]:.1f} to {images[-1]:.1f} M parameters on CIFAR-10" in TEXT
    assert f"translators of {documents[0]:.1f} to {documents[-1]:.1f} M on manuals" in TEXT
    (size,) = {f"{one:.2f}" for one in pairs}
    assert f"retrieval has translators of {size} M on made-up pairs" in TEXT
    assert sizes("variance", "speed") == []
    assert {*IMAGES, *DOCUMENTS, "retrieval", "variance", "speed"} == {
        folder.name for folder in STUDIES.iterdir()
    }


def test_commits_of_the_last_four_studies_are_those_of_their_records():
    commits = {"trained": set(), "timed": set(), "read": set()}
    for study in ("scaling", "gate", "retrieval", "speed"):
        for trial, record in records(study).items():
            is_trained = "num_parameters" in record
            kind = "read" if trial == "kernels" else "trained" if is_trained else "timed"
            commits[kind].add(record["environment"]["commit"])
    (trained,), (timed,), (read,) = commits.values()
    assert (
        f"commit {trained}, timed steps of gate and speed commit {timed}, speed's reading of the "
        f"stored benchmarks (`kernels`) commit {read};" in TEXT
    )


@pytest.mark.parametrize("study", ["scaling", "gate", "retrieval"])
def test_halted_trainings_are_those_of_the_text(study):
    folders = [STUDIES / study / name for name in records(study)]
    halts = {}
    for run in read_runs([one for one in folders if (one / "metrics.jsonl").exists()]):
        times = [0.0, *(row["seconds"] for row in run.train)]
        longest = max(after - before for before, after in pairwise(times))
        if longest > HALT_S:
            halts[run.name.rpartition("/")[2]] = longest
    names = ["without-alpha1.5-seed2", "with-alpha1-seed2", "with-alpha1.5-seed2"]
    assert halts.keys() == (set(names) if study == "gate" else set())
    assert all(140 < halt < 160 for halt in halts.values())
    first, *rest = names
    assert f"Three runs of gate, {first}, {' and '.join(rest)}, were halted for about two" in TEXT
