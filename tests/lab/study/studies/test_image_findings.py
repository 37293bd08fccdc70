"""What findings make of runs over images: those that diverged or are missing, rows of tables."""

import math
from dataclasses import replace

import pytest
from lab.study.studies.cases import NO, OPEN, YES, qk_norm, scaling
from lab.study.studies.outcomes import SMALL, SMOKE, findings, outcomes

from flashpoint.lab.study.registry import STUDIES


def test_accuracy_of_a_run_that_diverged_counts():
    some = outcomes("qk-norm", qk_norm(0.004))
    broken = {"top1": 0.0, "loss": math.nan, "skipped": 400.0}
    diverged = [
        replace(o, numbers=broken)
        if o.factors["attention"] == "relu" and o.factors["norm"] == "without"
        else o
        for o in some
    ]
    found = STUDIES["qk-norm"].findings(diverged)
    lost = (OPEN, "3 of 6 runs diverged.")
    assert [(v.word, v.note) for v in found.verdicts] == [
        *((NO, ""), (YES, ""), (YES, "")),
        *(lost, (YES, ""), (YES, "")),
    ]
    assert found.verdicts[0].value == pytest.approx(-80.0, abs=0.1)
    assert any("3 of 24 finished trials diverged" in note for note in found.notes)
    (table,) = found.tables
    counts = [row[table.head.index("diverged")] for row in table.rows]
    assert sorted(counts) == [0] * 7 + [3]


def test_updates_that_were_left_out_are_said():
    some = outcomes("qk-norm", lambda **factors: {"top1": 0.5, "loss": 1.0, "skipped": 2.0})
    (note,) = STUDIES["qk-norm"].findings(some).notes
    assert note.startswith(f"{len(some)} of {len(some)} finished trials left out updates")
    assert note.count("-seed") == 5
    assert note.endswith(", ...")


def test_a_size_that_is_missing_leaves_a_claim_about_all_sizes_open():
    some = outcomes("scaling", scaling(0.0))
    without = [
        replace(o, status="failed", numbers={}) if o.factors["size"] == "256/4" else o
        for o in some
    ]
    assert [v.word for v in STUDIES["scaling"].findings(without).verdicts] == [OPEN] * 5


def test_a_row_of_the_table_is_a_kind_of_run_with_mean_and_deviation():
    found = findings("qk-norm", qk_norm(0.03)).tables
    (table,) = found
    numbers = ["top1", "top1 sd", "loss", "loss sd"]
    assert list(table.head) == ["attention", "norm", "runs", *numbers]
    assert len(table.rows) == 8
    means = [pytest.approx(value) for value in (0.8, 1e-4, 0.6, 3e-4)]
    assert list(table.rows[0]) == ["relu", "with", 3, *means]


def test_rows_of_the_table_count_finished_runs_and_stay_without_any():
    some = outcomes("qk-norm", qk_norm(0.03))
    waiting = [
        replace(o, status="waiting", numbers={})
        if o.factors["norm"] == "without" or o.factors["seed"]
        else o
        for o in some
    ]
    (table,) = STUDIES["qk-norm"].findings(waiting).tables
    assert list(table.head) == ["attention", "norm", "runs", "top1", "loss"]
    assert [list(row[1:4]) for row in table.rows[:2]] == [
        ["with", 1, pytest.approx(0.7999)],
        ["without", 0, None],
    ]


def test_smoke_outcomes_draw_figures_too():
    def numbers(**factors):
        return {"top1": 0.5, "flops": 1.0, "seconds": 1.0, "transfer.mean": 0.4}

    for name in ("scaling", "length-power", "qk-norm"):
        found = findings(name, numbers, SMOKE)
        assert all(series.y for chart in found.charts for series in chart.series)
        assert all(verdict.word == OPEN for verdict in found.verdicts)
    assert SMALL.seeds == 3
