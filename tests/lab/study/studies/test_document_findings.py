"""What findings make of runs over documents: losses that are missing, claims left open."""

import math
from dataclasses import replace

import pytest
from lab.study.studies.cases import OPEN, YES, document_length, memory_slots, retrieval
from lab.study.studies.outcomes import SMALL, SMOKE, findings, outcomes

from flashpoint.lab.study.registry import STUDIES


@pytest.mark.parametrize("left", [{}, {"loss": math.nan, "token_accuracy": 0.0}])
def test_one_run_of_four_without_a_loss_leaves_its_claims_open(left):
    settings = replace(SMALL, seeds=4)
    some = outcomes("memory-slots", memory_slots(0.1, 0.01, 0.1), settings)
    name = "relu-slots32-seed3"
    assert [v.word for v in STUDIES["memory-slots"].findings(some).verdicts] == [YES, YES]
    diverged = [replace(o, numbers=left) if o.name == name else o for o in some]
    found = STUDIES["memory-slots"].findings(diverged)
    assert [v.word for v in found.verdicts] == [OPEN, YES]
    assert [v.note for v in found.verdicts] == ["1 of 40 runs diverged.", ""]
    said = f"1 of {len(some)} finished trials diverged, so that numbers of theirs are not finite"
    assert (f"{said}: {name}." in found.notes) == bool(left)


def test_what_has_learned_nothing_decides_nothing():
    verdict = findings(
        "relu-attention", lambda attention, seed: {"translation.bleu": 0.0, "loss": 9.0}
    ).verdicts[0]
    assert (verdict.word, verdict.value) == (OPEN, None)
    assert "has any BLEU" in verdict.note


def test_level_with_a_softmax_that_only_guesses_says_nothing():
    guesses, lucky, learned = (
        retrieval(0.25, 0.58, softmax=level) for level in (0.211, 0.239, 0.241)
    )
    for found, right in ((guesses, "21.1%"), (lucky, "23.9%")):
        for verdict in findings("retrieval", found).verdicts[:2]:
            assert (verdict.word, verdict.value) == (OPEN, None)
            assert f"{right} right, a guess 22.0%" in verdict.note
    found = findings("retrieval", learned).verdicts[:2]
    assert [(verdict.word, verdict.note) for verdict in found] == [(YES, ""), (YES, "")]


def test_documents_say_how_much_was_translated_again():
    found = findings("document-length", document_length({256: 0.0, 512: 0.0, 1024: 0.0}))
    (table,) = found.tables
    assert {row[table.head.index("translation.repeated_share")] for row in table.rows} == {0.5}
    assert "translated again in halves" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "number", "lack"),
    [
        ("document-length", "translation.bleu", "No trial of this scale has 512 tokens or more."),
        ("memory-slots", "loss", "No trial of this scale has 3072 slots or more."),
    ],
)
def test_a_claim_that_a_scale_cannot_answer_says_what_is_lacking(name, number, lack):
    found = findings(name, lambda **factors: {number: 3.0}, SMOKE)
    assert lack in [verdict.note for verdict in found.verdicts]
    assert not any("are missing" in verdict.note for verdict in found.verdicts)


def test_one_seed_has_no_interval_anywhere():
    one = replace(SMALL, seeds=1)
    found = findings("document-length", document_length({256: 0.0, 512: 1.0, 1024: 1.0}), one)
    for verdict in found.verdicts:
        assert verdict.value is not None
        assert (verdict.low, verdict.high) == (None, None)
    for chart in found.charts:
        for series in chart.series:
            assert set(series.low) | set(series.high) <= {None}


def test_document_groups_are_ordered_by_length():
    gains = {256: -0.1, 512: 0.5, 1024: 1.2}
    chart = findings("document-length", document_length(gains)).charts[2]
    assert list(chart.series[0].x) == ["1-128", "over 2048"]
