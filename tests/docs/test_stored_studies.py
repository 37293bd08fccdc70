"""All stored studies: verdicts, figures, equal curves of equal configs, no machine's folders."""

import re

import numpy as np
import pytest
from stored_results import PAGE, ROOT, STUDIES, TEXT, names_a_machine

from flashpoint.lab.report.verdicts import count_words
from flashpoint.lab.runs.run_files import read_mapping, read_runs
from flashpoint.lab.study import store
from flashpoint.lab.study.registry import STUDIES as REGISTRY
from flashpoint.lab.study.sections import read_section

VERDICTS = {
    "variance": ["supports", "supports", "contradicts"],
    "qk-norm": ["supports", "contradicts"],
    "learned-length": ["undecided", "supports", "supports", "contradicts"],
    "longer-than-trained": ["undecided", "supports"],
    "length-power": ["supports", "undecided", "supports"],
    "memory-slots": ["undecided", "undecided", "contradicts"],
    "scaling": ["undecided", "undecided", "undecided"],
    "gate": ["supports", "supports"],
    "retrieval": ["supports", "supports", "contradicts", "contradicts"],
    "speed": ["supports", "contradicts"],
}


def repeated():
    """Runs of equal configs and seeds in several studies, by the same code."""
    groups = {}
    for file in sorted(STUDIES.rglob("config.yaml")):
        commit = read_mapping(file.parent / "record.json")["environment"]["commit"]
        groups.setdefault((file.read_text("utf-8"), commit), []).append(file.parent)
    return {tuple(group): read_runs(group) for group in groups.values() if len(group) > 1}


def test_equal_configs_gave_equal_curves_but_for_softmax_over_documents():
    alike, apart = [], []
    for group in repeated().values():
        curves = [[row["loss"] for row in (*run.train, *run.validation)] for run in group]
        (alike if all(curve == curves[0] for curve in curves) else apart).append(group)
    images = [group for group in alike if group[0].config["task"] == "vision"]
    assert (len(images), len(alike) - len(images), len(apart)) == (9, 3, 3)
    assert {len(group) for group in images} == {2, 3}
    assert all("softmax" in run.name for group in apart for run in group)
    largest = {
        step: max(
            abs(
                np.subtract(
                    *(row["loss"] for run in group for row in run.train if row["step"] == step)
                )
            )
            for group in apart
        )
        for step in (100, 2000)
    }
    assert f"by up to {largest[100]:.4f} at update 100 and by up to {largest[2000]:.3f} at" in TEXT


@pytest.mark.parametrize("name", sorted(folder.name for folder in STUDIES.iterdir()))
def test_stored_trials_are_those_of_today_s_plan(name):
    stored = store.read_study(STUDIES / name)
    plan = REGISTRY[name].plan(stored.settings)
    assert [trial.name for trial in plan] == [folder.name for folder in stored.trials]
    for trial, folder in zip(plan, stored.trials, strict=True):
        assert store.plain_trial(store.read_trial(folder)) == store.plain_trial(trial), trial.name


def test_verdicts_are_those_that_the_text_gives():
    for name, words in VERDICTS.items():
        found = read_section(STUDIES / name, REGISTRY).findings.verdicts
        assert [verdict.word for verdict in found] == words, name
    closed, ratio, lemma = read_section(STUDIES / "variance", REGISTRY).findings.verdicts
    for verdict, digits in ((closed, 3), (ratio, 2), (lemma, 2)):
        value, low, high = (
            f"{number:.{digits}f}" for number in (verdict.value, verdict.low, verdict.high)
        )
        assert f"{value} ({low} to {high})" in TEXT
    alpha = read_section(STUDIES / "learned-length", REGISTRY).findings.verdicts[2]
    assert f"{alpha.value:.3f} on average ({alpha.low:.3f} to {alpha.high:.3f})" in TEXT
    longer = read_section(STUDIES / "longer-than-trained", REGISTRY).findings.verdicts[0]
    assert f"{longer.value:+.2f} ({longer.low:+.2f} to {longer.high:+.2f})" in TEXT


def test_texts_count_the_verdicts():
    sections = [read_section(folder, REGISTRY) for folder in STUDIES.iterdir()]
    found = [verdict for section in sections for verdict in section.findings.verdicts]
    assert len(sections) == len(REGISTRY)
    words = count_words(found).replace("supported", "are supported")
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"of {len(found)} claims {words}." in readme


def test_glance_counts_the_verdicts_of_every_study_and_quotes_them():
    values = {}
    for name in REGISTRY:
        verdicts = read_section(STUDIES / name, REGISTRY).findings.verdicts
        words = [verdict.word for verdict in verdicts]
        counts = [words.count(word) for word in ("supports", "contradicts", "undecided")]
        (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| [{name}]("))
        assert row.split("|")[2:5] == [f" {count} " for count in counts]
        values[name] = (row, [verdict.value for verdict in verdicts])
        (anchor,) = re.findall(r"\(#([^)]*)\)", row)
        heads = re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE)
        assert anchor in [re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads]
    quoted = {
        "scaling": (0, "at most {:.1f} points below", -1),
        "length-power": (2, "{:.1f} points are lost", 1),
        "qk-norm": (1, "squared relu {:.1f} |", -1),
        "gate": (1, "takes {:.1f}% longer", 1),
        "variance": (2, "layer, {:.0f} instead of 1 |", 1),
        "learned-length": (2, "from 0.5 to {:.2f}, not", 1),
        "longer-than-trained": (1, "training: {:.0f} points |", 1),
        "speed": (0, "step is {:.2f} to", 1),
    }
    for name, (claim, text, sign) in quoted.items():
        row, found = values[name]
        assert text.format(sign * found[claim]) in row
    row, (*_, penalty, behind, _) = values["relu-attention"]
    assert f"helps by {penalty:.1f} BLEU; ReLUFormer stays {-behind:.1f} behind" in row
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"ReLUFormer stays {-behind:.1f} BLEU behind softmax" in readme
    assert f"({-values['scaling'][1][0]:.1f} points below it at the worst of four sizes" in readme
    assert f"steps {values['speed'][1][0]:.2f} to" in readme


def test_every_figure_is_there_and_shown():
    shown = set(re.findall(r"\(figures/([^)]*)\)", PAGE))
    stored = {file.name for file in (ROOT / "docs" / "figures").glob("*.svg")}
    assert shown == stored
    for name in sorted(file.name for file in STUDIES.iterdir()):
        assert any(figure.startswith(name) for figure in shown), name


@pytest.mark.parametrize(
    "file",
    sorted(file for file in STUDIES.rglob("*") if file.is_file() and file.suffix != ".png"),
    ids=lambda file: file.parent.name,
)
def test_stored_trial_names_no_folder_of_a_machine(file):
    text = file.read_text("utf-8")
    assert not names_a_machine(text)
