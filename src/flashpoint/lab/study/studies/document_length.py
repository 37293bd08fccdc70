"""Does ReLUFormer gain on softmax as documents grow? (paper 2)"""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Series, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Factor, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    along,
    arm_table,
    finite,
    is_planned,
    levels,
    mean,
    numbers,
    select,
    state_notes,
)
from flashpoint.lab.study.settings import (
    NORM_CHOSEN,
    NORMED,
    RELU4_SUM,
    SHIFTED,
    SMALL_CORPUS,
    SMALL_GAMMA,
    cut_to,
    relu_of_text,
    text,
    trial,
)
from flashpoint.lab.study.studies.relu_attention import translation
from flashpoint.lab.study.verdict import Distance, Extreme, Means, bootstrap, judge, judge_quantity

ATTENTIONS = ("relu", "softmax")
BLEU = "translation.bleu"
DOCUMENT_BLEU, REPEATED = "translation.document_bleu", "translation.repeated_share"
SHORT, LONG = 256, 512
"""Tokens up to which the paper finds no difference, and from which a gain."""
MARGIN, LOSS_MARGIN = 0.5, 0.05
"""BLEU, and nats of a token, that still count as level."""
PAPER_GAIN = 1.15
DEPARTURES = f"{SMALL_CORPUS} {SMALL_GAMMA}"

_LENGTHS: Mapping[Scale, tuple[int, ...]] = {
    "smoke": (16, 32),
    "small": (256, 512, 1024),
    "paper": (128, 256, 512, 1024, 2048),
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Twins for every length that documents are cut to; the longest take longest and begin.

    Arms with sums and norms come behind them, those of the length of most claims first.
    """
    lengths, seeds = _LENGTHS[settings.scale], range(settings.seeds)
    twins = {
        "relu": {"model.attention": relu_of_text(settings)},
        "softmax": {"model.attention": "softmax"},
    }
    others: dict[str, dict[str, Any]] = {
        one: {"model.attention": one} for one in (RELU4_SUM, SHIFTED)
    }
    for word, name in NORMED.items():
        others[name] = {"model.attention": word, "model.qk_norm": "layer"}
    places = [(seed, n, arm) for seed in seeds for n in reversed(lengths) for arm in twins]
    if settings.scale != "smoke":
        judged_first = sorted(lengths, key=lambda n: (n != LONG, -n))
        places += [(seed, n, arm) for n in judged_first for seed in seeds for arm in others]
    return tuple(
        trial(
            {"attention": arm, "length": length, "seed": seed},
            text(settings, seed, {**(twins | others)[arm], **cut_to(settings, length)}),
            [translation(settings.scale)],
        )
        for seed, length, arm in places
    )


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """BLEU by length, the gain by length, and BLEU by the documents' own length."""
    return Findings(
        verdicts=_verdicts(outcomes),
        charts=[_by_cut(outcomes), _gains(outcomes), _by_document(outcomes)],
        tables=[
            arm_table(
                "document-length",
                outcomes,
                (BLEU, DOCUMENT_BLEU, REPEATED, "loss", "token_accuracy", "seconds"),
            )
        ],
        notes=[
            "BLEU is of segments. A part whose translation has another number of them is "
            "translated again in halves (repeated_share); document_bleu is of what came first.",
            NORM_CHOSEN,
            *state_notes(outcomes),
        ],
    )


def _groups(
    outcomes: Sequence[Outcome],
    length: Factor,
    number: str = BLEU,
    attentions: Sequence[str] = ATTENTIONS,
) -> list[list[float]]:
    return [numbers(outcomes, number, attention=a, length=length) for a in attentions]


def _lengths(outcomes: Sequence[Outcome]) -> list[int]:
    return [int(length) for length in levels(outcomes, "length")]


def _verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    lengths = _lengths(outcomes)
    short = [length for length in lengths if length <= SHORT]
    long = [length for length in lengths if length >= LONG]
    no_long = "" if long else f"No trial of this scale has {LONG} tokens or more."

    return [
        judge_quantity(
            f"Up to {SHORT} tokens ReLUFormer and softmax differ by no more than {MARGIN:g} BLEU.",
            Extreme("most", [Distance(Means(_groups(outcomes, length))) for length in short]),
            (0.0, MARGIN),
            unit="BLEU between ReLUFormer and softmax, at the most",
        ),
        judge(
            f"At the longest documents ReLUFormer is better (the paper: {PAPER_GAIN:+g} at 1024).",
            _groups(outcomes, long[-1]) if long else [[]],
            (0.0, float("inf")),
            unit="BLEU, ReLUFormer minus softmax at the longest documents",
            lack=no_long,
        ),
        _loss_verdict(outcomes, "ReLUFormer", "relu"),
        *(_sum_verdicts(outcomes) if is_planned(outcomes, "attention", RELU4_SUM) else ()),
    ]


def _loss_verdict(outcomes: Sequence[Outcome], name: str, attention: str) -> Verdict:
    twins = (attention, "softmax")
    places = [Means(_groups(outcomes, n, "loss", twins)) for n in _lengths(outcomes)]
    return judge_quantity(
        f"{name}'s validation loss is at most {LOSS_MARGIN:g} nats above softmax's at every "
        "length.",
        Extreme("most", places),
        (-float("inf"), LOSS_MARGIN),
        unit=f"nats of loss a token, {name} minus softmax in the worst case",
    )


def _sum_verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """What the fourth power over its sum should reach, and whether it helps at all."""
    lengths = _lengths(outcomes)
    below = [Means(_groups(outcomes, n, "loss", (RELU4_SUM, "relu"))) for n in lengths]
    normed = [(NORMED[RELU4_SUM], twin) for twin in ("softmax", NORMED["softmax"])]
    normed = [
        twins for twins in normed if all(is_planned(outcomes, "attention", one) for one in twins)
    ]
    return [
        *(_bleu_beside(outcomes, *twins) for twins in [(RELU4_SUM, "softmax"), *normed]),
        _loss_verdict(outcomes, RELU4_SUM, RELU4_SUM),
        judge_quantity(
            f"{RELU4_SUM}'s validation loss is below ReLUFormer's at every length.",
            Extreme("most", below),
            (-float("inf"), 0.0),
            unit=f"nats of loss a token, {RELU4_SUM} minus ReLUFormer in the worst case",
        ),
        *(_loss_beside(outcomes, *twins) for twins in normed),
        *(
            beside(outcomes, SHIFTED, "softmax")
            for beside in (_bleu_beside, _loss_beside)
            if is_planned(outcomes, "attention", SHIFTED)
        ),
    ]


def _bleu_beside(outcomes: Sequence[Outcome], first: str, second: str) -> Verdict:
    return judge(
        f"At {LONG} tokens {first} is at most {MARGIN:g} BLEU below {second}.",
        _groups(outcomes, LONG, attentions=(first, second)),
        (-MARGIN, float("inf")),
        unit=f"BLEU, {first} minus {second} at {LONG} tokens",
        lack=_why_not_long(outcomes),
    )


def _loss_beside(outcomes: Sequence[Outcome], first: str, second: str) -> Verdict:
    return judge(
        f"At {LONG} tokens the validation loss of {first} is at most {LOSS_MARGIN:g} nats above "
        f"that of {second}.",
        _groups(outcomes, LONG, "loss", (first, second)),
        (-float("inf"), LOSS_MARGIN),
        unit=f"nats of loss a token, {first} minus {second} at {LONG} tokens",
        lack=_why_not_long(outcomes),
    )


def _why_not_long(outcomes: Sequence[Outcome]) -> str:
    return "" if LONG in _lengths(outcomes) else f"No trial of this scale has {LONG} tokens."


def _by_cut(outcomes: Sequence[Outcome]) -> Chart:
    return Chart(
        name="document-length-bleu",
        title="BLEU by the length that documents are cut to",
        caption="Paper 2, Europarl7 En-De: equal at 128 and 256 tokens, ReLUFormer better from "
        "512 on.",
        x_title="tokens of a document at most",
        y_title="BLEU",
        series=[
            along(str(a), outcomes, "length", BLEU, attention=a)
            for a in levels(outcomes, "attention")
        ],
        x_is_log=True,
    )


def _gains(outcomes: Sequence[Outcome]) -> Chart:
    pairs = {n: [finite(group) for group in _groups(outcomes, n)] for n in _lengths(outcomes)}
    there = {length: groups for length, groups in pairs.items() if all(groups)}
    found = [bootstrap(groups) for groups in there.values()]
    return Chart(
        name="document-length-gain",
        title="Gain of ReLUFormer over softmax",
        caption=f"Paper 2: {PAPER_GAIN:+g} BLEU at 1024 tokens, none at 128 and 256.",
        x_title="tokens of a document at most",
        y_title="BLEU, ReLUFormer less softmax",
        series=[
            Series(
                name="gain",
                x=list(there),
                y=[interval.value for interval in found],
                low=[interval.low for interval in found],
                high=[interval.high for interval in found],
            )
        ],
        x_is_log=True,
    )


def _by_document(outcomes: Sequence[Outcome]) -> Chart:
    """Of the models with the longest cut: documents in groups by their own length."""
    longest = max(_lengths(outcomes), default=0)
    some = select(outcomes, length=longest)
    prefix = f"{BLEU}_"
    names = sorted(
        {name for o in some for name in o.numbers if name.startswith(prefix)}, key=_low_end
    )
    return Chart(
        name="document-length-groups",
        title=f"BLEU by the documents' own length, cut to {longest} tokens",
        caption="Documents of the validation set in groups by the tokens of their source.",
        x_title="tokens of the source",
        y_title="BLEU",
        series=[
            Series(
                name=str(a),
                x=[name.removeprefix(prefix) for name in names],
                y=[mean(numbers(some, name, attention=a)) for name in names],
            )
            for a in levels(some, "attention")
        ],
    )


def _low_end(name: str) -> int:
    """Where a group begins: "bleu_129-256" at 129, "bleu_over 2048" at 2048."""
    return int(name.rpartition("_")[2].removeprefix("over ").partition("-")[0])


STUDY = Study(
    name="document-length",
    question="Does ReLUFormer gain on softmax as documents grow?",
    source="paper 2, document translation",
    claim="ReLUFormer equals softmax at 128 and 256 tokens and gains from 512 on: +1.15 BLEU at "
    "1024.",
    plan=plan,
    findings=findings,
    departures=DEPARTURES,
)
