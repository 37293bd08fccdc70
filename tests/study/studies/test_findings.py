"""What findings make of outcomes: verdicts in both directions, and of what is missing, none."""

import math
import re
from dataclasses import replace

import pytest
from study.studies.outcomes import SMALL, SMOKE, findings, noise, outcomes, planned, words

from flashpoint.study.moments import output_variance
from flashpoint.study.outcome import Outcome
from flashpoint.study.registry import STUDIES

every_study = pytest.mark.parametrize("name", STUDIES)
YES, NO, OPEN = "supports", "contradicts", "undecided"


def scaling(gap, growth=0.0):
    """relu below softmax by a gap, and by more at larger sizes."""
    sizes = {"128/8": 0, "128/4": 1, "192/4": 2, "256/4": 3}

    def numbers(size, attention, seed):
        lost = (gap + growth * sizes[size]) * (attention == "relu")
        top1 = 0.7 + 0.05 * sizes[size] - lost + noise(seed)
        seconds = 10.0 + sizes[size] + seed
        return {"top1": top1, "transfer.mean": top1, "flops": 1e15, "seconds": seconds}

    return numbers


def length_power(best, identity=0.6, relu2=0.8):
    def numbers(tokens, activation, seed, alpha=1.0):
        level = {"identity": identity, "relu2": relu2}.get(activation, 0.8)
        return {"top1": level - 0.1 * abs(alpha - best) + noise(seed)}

    return numbers


def qk_norm(lost):
    return lambda attention, norm, seed: {"top1": 0.8 - lost * (norm == "without") + noise(seed)}


def gate(lost, cost):
    def numbers(seed, gate="", alpha=1.0, measured=""):
        if measured:
            return {"without_s": 1.0 + noise(seed), "with_s": 1.0 + cost}
        return {"top1": 0.8 - lost * abs(alpha - 1.0) + noise(seed)}

    return numbers


def memory_slots(softmax, norm, norm_many):
    def numbers(memory, slots, seed):
        worse = {"relu": 0.0, "softmax": softmax, "softmax + norm": norm}[memory]
        if memory == "softmax + norm" and slots >= 3072:
            worse = norm_many
        return {"loss": 3.0 + worse + noise(seed)}

    return numbers


def relu_attention(bare, factor, whole, from_one=10.0):
    found = {
        **{"softmax": 20.0, "relu, no factor": bare, "relu, factor": factor},
        **{"relu, factor, gamma from 1": from_one, "relu, factor and penalty": whole},
    }
    return lambda attention, seed: {
        "translation.bleu": found[attention] + noise(seed),
        "loss": 3.0,
    }


def document_length(gains):
    def numbers(attention, length, seed):
        bleu = 20.0 + gains[length] * (attention == "relu") + noise(seed)
        groups = {"translation.bleu_1-128": bleu, "translation.bleu_over 2048": bleu}
        shares = {"translation.repeated_share": 0.5}
        return {"translation.bleu": bleu, "loss": 3.0, **shares, **groups}

    return numbers


def learned_length(learned, from_half, alpha):
    found = {"learned from 1": learned, "learned from 0.5": from_half, "fixed at 0.5": 0.7}

    def numbers(seed, **factors):
        rule = factors["alpha"]
        return {
            "top1": found.get(rule, 0.8) + noise(seed),
            "learned.alpha": alpha + noise(seed),
            "learned.alpha_layer0": alpha,
            "learned.alpha_layer1": alpha,
        }

    return numbers


def longer(relu_seen, relu_fixed, softmax):
    def numbers(attention, trained_tokens, seed):
        far = softmax if attention == "softmax" else relu_seen
        found = {"top1": 0.8 + noise(seed), "seen64.top1": 0.8 + noise(seed)}
        fixed = {} if attention == "softmax" else {"fixed576.top1": relu_fixed + noise(seed)}
        return {**found, "seen576.top1": far + noise(seed), **fixed}

    return numbers


def retrieval(half, one, beyond=0.1, softmax=0.99):
    def numbers(attention, trained_pairs, seed):
        level = {"relu, alpha 0.5": half, "relu, alpha 1": one}.get(attention, softmax)
        at = {4: 1.0, 32: level + noise(seed), 128: beyond}
        return {f"pairs{pairs}.exact": share for pairs, share in at.items()}

    return numbers


def speed(slow):
    def numbers(measured, tokens=0, seed=0):
        if measured == "kernels":
            case = "NVIDIA H200|forward|relu|full|bf16|64|4096"
            return {f"{case}|ours_s": 1.0, f"{case}|softmax_s": 1.8}
        return {"relu_s": 1.0 + noise(seed), "softmax_s": slow if tokens == 16 else 1.5}

    return numbers


def variance(off=1.0, softmax=1.0, lemma=None):
    def numbers(seed, width):
        found = {}
        for keys in (16, 1024):
            for alpha in (0.0, 0.5, 1.0):
                for h in ("relu", "relu2", "gelu", "softplus", "identity", "relu6", "sigmoid"):
                    wrong = off if (h, alpha, keys) == ("gelu", 0.5, 1024) else 1.0 + noise(seed)
                    computed = output_variance(h, alpha, keys)
                    found[f"{h}.alpha{alpha:g}.keys{keys}"] = wrong * computed
                found[f"silu.alpha{alpha:g}.keys{keys}"] = output_variance("silu", alpha, keys)
                layer = output_variance("relu", alpha, keys, width) if lemma is None else lemma
                found[f"layer.relu.alpha{alpha:g}.keys{keys}"] = layer
            found[f"softmax.keys{keys}"] = softmax * math.e / keys
        return found

    return numbers


CASES = [
    ("scaling", scaling(0.004), [YES, YES, YES]),
    ("scaling", scaling(0.05), [NO, YES, NO]),
    ("scaling", scaling(-0.03, growth=0.01), [YES, NO, YES]),
    ("scaling", scaling(0.01), [OPEN, YES, OPEN]),
    ("length-power", length_power(1.0), [YES, YES, YES]),
    ("length-power", length_power(0.0, identity=0.85, relu2=0.85), [NO, NO, NO]),
    ("length-power", length_power(2.0), [NO, YES, YES]),
    ("qk-norm", qk_norm(0.004), [YES, YES]),
    ("qk-norm", qk_norm(0.03), [NO, NO]),
    ("qk-norm", qk_norm(-0.03), [NO, NO]),
    ("gate", gate(0.1, 0.09), [YES, YES]),
    ("gate", gate(-0.1, 0.3), [NO, NO]),
    ("gate", gate(0.1, 0.01), [YES, NO]),
    ("memory-slots", memory_slots(0.1, 0.01, 0.1), [YES, YES, YES]),
    ("memory-slots", memory_slots(-0.1, 0.2, -0.1), [NO, NO, NO]),
    ("relu-attention", relu_attention(1.0, 19.0, 21.0), [YES] * 5),
    ("relu-attention", relu_attention(20.0, 21.0, 18.0, 22.0), [NO] * 5),
    ("relu-attention", relu_attention(0.0, -noise(0), 18.0), [OPEN, YES, YES, NO, NO]),
    (
        "document-length",
        document_length({256: -0.1, 512: 0.5, 1024: 1.2}),
        [YES, YES, YES],
    ),
    (
        "document-length",
        document_length({256: 0.9, 512: 0.5, 1024: -1.2}),
        [NO, NO, NO],
    ),
    ("variance", variance(), [YES, YES, NO]),
    ("variance", variance(off=1.3, softmax=1.3, lemma=0.5), [NO, NO, YES]),
    ("learned-length", learned_length(0.81, 0.8099, 0.8), [YES, YES, YES, YES]),
    ("learned-length", learned_length(0.75, 0.65, 0.5), [NO, NO, NO, NO]),
    ("longer-than-trained", longer(0.7, 0.3, 0.7), [YES, YES]),
    ("longer-than-trained", longer(0.3, 0.5, 0.7), [NO, NO]),
    ("retrieval", retrieval(0.98, 0.5), [YES, NO]),
    ("retrieval", retrieval(0.5, 0.999), [NO, YES]),
    ("speed", speed(1.1), [YES]),
    ("speed", speed(0.9), [NO]),
]


@pytest.mark.parametrize(
    ("name", "numbers", "expected"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)]
)
def test_verdicts_follow_from_the_numbers(name, numbers, expected):
    assert words(name, numbers) == expected


@every_study
def test_every_verdict_has_cases_in_both_directions(name):
    for found in zip(*(expected for case, _, expected in CASES if case == name), strict=True):
        assert {YES, NO} <= set(found)


def samples(name):
    """Good numbers of a study's whole plan at small."""
    numbers = next(numbers for case, numbers, _ in CASES if case == name)
    return outcomes(name, numbers)


@every_study
def test_findings_draw_what_there_is(name):
    found = STUDIES[name].findings(samples(name))
    assert found.charts
    assert found.tables
    for chart in found.charts:
        assert chart.name.startswith(name)
        assert any(series.y for series in chart.series), chart.name
        for series in chart.series:
            assert len(series.x) == len(series.y)
            assert len(series.low) == len(series.high)
            assert len(series.low) in (0, len(series.y))
    for table in found.tables:
        assert table.rows
        assert all(len(row) == len(table.head) for row in table.rows)
    names = [thing.name for thing in (*found.charts, *found.tables)]
    assert len({chart.name for chart in found.charts}) == len(found.charts)
    assert len({table.name for table in found.tables}) == len(found.tables)
    assert all(" " not in name for name in names)


@every_study
def test_nothing_gives_findings_without_a_verdict(name):
    found = STUDIES[name].findings([])
    assert found.verdicts
    assert all(verdict.word == OPEN for verdict in found.verdicts)
    assert any("Nothing has been run" in note for note in found.notes)


@every_study
def test_trials_that_wait_or_failed_give_no_verdict_and_are_said(name):
    waiting = [Outcome(name=t.name, factors=t.factors, status="waiting") for t in planned(name)]
    failed = replace(waiting[0], status="failed", reason="out of memory.")
    found = STUDIES[name].findings([failed, *waiting[1:]])
    assert all(verdict.word == OPEN for verdict in found.verdicts)
    assert any("out of memory." in note for note in found.notes)
    assert any(f"0 of {len(waiting)} trials" in note for note in found.notes)


@every_study
def test_verdicts_that_lack_a_failed_trial_say_so(name):
    """Trials in turn: where one changes a verdict's numbers, the note counts it."""
    whole = STUDIES[name].findings(samples(name)).verdicts
    missed = 0
    for outcome in samples(name)[::5]:
        failed = replace(outcome, status="failed", numbers={})
        some = [failed if other.name == outcome.name else other for other in samples(name)]
        for verdict, before in zip(STUDIES[name].findings(some).verdicts, whole, strict=True):
            is_said = re.search(r"\b1 of \d+ runs failed\.", verdict.note) is not None
            assert is_said or verdict == before, (outcome.name, verdict)
            missed += is_said
    assert missed


@every_study
def test_half_of_the_trials_give_findings_with_numbers(name):
    some = samples(name)
    half = [
        outcome if n % 2 else replace(outcome, status="running", numbers={})
        for n, outcome in enumerate(some)
    ]
    found = STUDIES[name].findings(half)
    assert all(verdict.word in (YES, NO, OPEN) for verdict in found.verdicts)
    for chart in found.charts:
        assert all(len(series.x) == len(series.y) for series in chart.series)


@every_study
def test_trials_that_have_not_finished_do_not_count_whatever_numbers_they_have(name):
    unfinished = [replace(outcome, status="running") for outcome in samples(name)]
    found = STUDIES[name].findings(unfinished)
    assert all(verdict.word == OPEN for verdict in found.verdicts)


@every_study
def test_one_seed_is_too_few_for_a_verdict(name):
    one = [outcome for outcome in samples(name) if outcome.factors.get("seed", 0) == 0]
    found = STUDIES[name].findings(one)
    assert all(verdict.word == OPEN for verdict in found.verdicts)


@every_study
def test_numbers_that_are_not_finite_decide_nothing_and_are_said(name):
    some = samples(name)
    broken = [
        replace(outcome, numbers=dict.fromkeys(outcome.numbers, math.nan)) for outcome in some
    ]
    found = STUDIES[name].findings(broken)
    for verdict in found.verdicts:
        assert (verdict.word, verdict.value) == (OPEN, None)
        count = re.search(r"(\d+) of (\d+) runs diverged", verdict.note)
        assert count is not None
        assert count[1] == count[2] != "0"
    assert any(f"{len(some)} of {len(some)} finished trials diverged" in n for n in found.notes)
    for chart in found.charts:
        if chart.name != "speed-kernels":  # stored times are finite
            ys = [y for series in chart.series for y in series.y]
            assert all(y is None or math.isfinite(y) for y in ys), chart.name


@pytest.mark.parametrize("left", [{}, {"loss": math.nan, "token_accuracy": 0.0}])
def test_one_run_of_four_without_a_loss_leaves_its_claims_open(left):
    settings = replace(SMALL, seeds=4)
    some = outcomes("memory-slots", memory_slots(0.1, 0.01, 0.1), settings)
    name = "relu-slots32-seed3"
    assert [v.word for v in STUDIES["memory-slots"].findings(some).verdicts] == [YES, YES, YES]
    diverged = [replace(o, numbers=left) if o.name == name else o for o in some]
    found = STUDIES["memory-slots"].findings(diverged)
    assert [v.word for v in found.verdicts] == [OPEN, OPEN, YES]
    assert [v.note for v in found.verdicts] == [
        *("1 of 40 runs diverged.", "1 of 32 runs diverged.", "")
    ]
    said = f"1 of {len(some)} finished trials diverged, so that numbers of theirs are not finite"
    assert (f"{said}: {name}." in found.notes) == bool(left)


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
    assert [(v.word, v.note) for v in found.verdicts] == [(NO, ""), (YES, "")]
    assert found.verdicts[0].value == pytest.approx(-80.0, abs=0.1)
    assert any("3 of 18 finished trials diverged" in note for note in found.notes)
    (table,) = found.tables
    counts = [row[table.head.index("diverged")] for row in table.rows]
    assert sorted(counts) == [0, 0, 0, 0, 0, 3]


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
    assert [v.word for v in STUDIES["scaling"].findings(without).verdicts] == [OPEN, OPEN, OPEN]


def test_a_verdict_says_its_quantity_in_its_unit():
    verdict = findings("scaling", scaling(0.004)).verdicts[0]
    assert verdict.value == pytest.approx(-0.4)
    assert verdict.region == (-1.0, math.inf)
    verdict = findings("gate", gate(0.1, 0.09)).verdicts[1]
    assert verdict.value == pytest.approx(9.0, abs=0.02)
    verdict = findings("variance", variance(off=1.3)).verdicts[0]
    assert verdict.value == pytest.approx(0.3)


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
        for verdict in findings("retrieval", found).verdicts:
            assert (verdict.word, verdict.value) == (OPEN, None)
            assert f"{right} right, a guess 22.0%" in verdict.note
    found = findings("retrieval", learned).verdicts
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


def test_a_row_of_the_table_is_a_kind_of_run_with_mean_and_deviation():
    found = findings("qk-norm", qk_norm(0.03)).tables
    (table,) = found
    assert list(table.head) == ["attention", "norm", "runs", "top1", "top1 sd"]
    assert len(table.rows) == 6
    assert list(table.rows[0]) == ["relu", "with", 3, pytest.approx(0.8), pytest.approx(1e-4)]


def test_rows_of_the_table_count_finished_runs_and_stay_without_any():
    some = outcomes("qk-norm", qk_norm(0.03))
    waiting = [
        replace(o, status="waiting", numbers={})
        if o.factors["norm"] == "without" or o.factors["seed"]
        else o
        for o in some
    ]
    (table,) = STUDIES["qk-norm"].findings(waiting).tables
    assert list(table.head) == ["attention", "norm", "runs", "top1"]
    assert [list(row[1:]) for row in table.rows[:2]] == [
        ["with", 1, pytest.approx(0.7999)],
        ["without", 0, None],
    ]


def test_document_groups_are_ordered_by_length():
    gains = {256: -0.1, 512: 0.5, 1024: 1.2}
    chart = findings("document-length", document_length(gains)).charts[2]
    assert list(chart.series[0].x) == ["1-128", "over 2048"]


def test_smoke_outcomes_draw_figures_too():
    def numbers(**factors):
        return {"top1": 0.5, "flops": 1.0, "seconds": 1.0, "transfer.mean": 0.4}

    for name in ("scaling", "length-power", "qk-norm"):
        found = findings(name, numbers, SMOKE)
        assert all(series.y for chart in found.charts for series in chart.series)
        assert all(verdict.word == OPEN for verdict in found.verdicts)
    assert SMALL.seeds == 3
