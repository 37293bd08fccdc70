"""What findings make of chosen rates, and of studies whose plan has grown since."""

import math
from dataclasses import replace

import pytest
from lab.study.studies.cases import OPEN, YES, memory_rates, scaling
from lab.study.studies.outcomes import findings, outcomes

from flashpoint.lab.study.registry import STUDIES

SUM, SHIFTED = "relu4/sum", "relu4+2/sum"


def without(some, **factors):
    """Outcomes of a plan that had no such trials."""
    return [o for o in some if any(o.factors.get(k) != v for k, v in factors.items())]


def test_rates_are_those_of_the_held_out_documents_and_edges_are_said():
    found = findings("memory-rates", memory_rates(0.1, 0.01, 0.1))
    chosen, _ = found.tables
    rates = {row[0]: row[2] for row in chosen.rows}
    assert rates == {"relu": 7.5e-4, "softmax": 6e-3, "softmax + norm": 6e-3}
    assert [row[4] for row in chosen.rows if row[0] == "relu"] == [pytest.approx(3.0)] * 5
    edges = [note for note in found.notes if "rate that was tried" in note]
    assert len(edges) == 2
    assert edges[0].startswith("The lowest rate that was tried is the best of: relu 32, ")


def test_a_rate_at_which_a_run_diverged_is_not_chosen():
    some = outcomes("memory-rates", memory_rates(0.1, 0.01, 0.1))
    name = "relu-slots32-rate0.00075-seed1"
    broken = [
        replace(o, numbers={"loss": math.nan, "test.loss": math.nan}) if o.name == name else o
        for o in some
    ]
    chosen, _ = STUDIES["memory-rates"].findings(broken).tables
    assert {row[2] for row in chosen.rows if row[0] == "relu" and row[1] == 32} == {0.0015}


def test_short_trainings_of_sizes_are_judged_where_no_longer_ones_are_planned():
    some = outcomes("scaling", lambda epochs=15, **rest: scaling(0.004)(epochs=60, **rest))
    short = [o for o in some if "epochs" not in o.factors]
    found = STUDIES["scaling"].findings(short)
    assert [verdict.word for verdict in found.verdicts] == [YES] * 3
    assert not any("60 epochs" in note for note in found.notes)
    waiting = [replace(o, status="waiting") if "epochs" in o.factors else o for o in some]
    found = STUDIES["scaling"].findings(waiting)
    assert [verdict.word for verdict in found.verdicts] == [OPEN] * 5
    assert any("60 epochs are judged" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "number", "arm", "count"),
    [
        *(("document-length", "translation.bleu", SUM, 9), ("qk-norm", "top1", SUM, 2)),
        *(("longer-than-trained", "top1", SUM, 2), ("retrieval", "pairs128.exact", SUM, 3)),
        ("sentences", "translation.bleu", "relu, factor and penalty, softmax in cross", 2),
        ("sentences", "translation.bleu", f"{SUM}, softmax in cross", 2),
        *((name, "translation.bleu", SHIFTED, 2) for name in ("sentences", "document-length")),
        ("sharpness", "translation.bleu", SHIFTED, 6),
    ],
)
def test_claims_about_an_arm_wait_until_it_is_planned(name, number, arm, count):
    some = outcomes(name, lambda **factors: {number: 0.5, "loss": 1.0})
    whole = STUDIES[name].findings(some).verdicts
    stored = STUDIES[name].findings(without(some, attention=arm)).verdicts
    said = {verdict.claim for verdict in whole}
    assert len(whole) - len(stored) == count
    assert {verdict.claim for verdict in stored} < said
    about = arm.replace("relu, factor and penalty", "ReLUFormer")
    about = about.replace(", softmax in cross", " with softmax in cross-attention")
    assert not any(about in verdict.claim for verdict in stored)


@pytest.mark.parametrize("name", ["sentences", "document-length"])
def test_what_was_chosen_on_the_same_documents_is_said(name):
    found = STUDIES[name].findings([])
    assert any("The study starts chose the norm" in note for note in found.notes)
