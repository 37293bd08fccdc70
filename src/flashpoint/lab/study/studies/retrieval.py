"""Does pointwise attention find a needle? Key-value recall by the number of pairs (open)."""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.data.text.recall import NUM_PIECES, best_guess
from flashpoint.lab.runs.findings import Chart, Findings, Series, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Evaluation, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    PERCENT,
    arm_table,
    is_planned,
    levels,
    line,
    mean,
    numbers,
    state_notes,
)
from flashpoint.lab.study.settings import RELU4_SUM, Config, pointwise, text, trial
from flashpoint.lab.study.verdict import judge

ATTENTIONS: Mapping[str, Mapping[str, Any]] = {
    "softmax": {"model.attention": "softmax"},
    "relu, alpha 0.5": {"model.attention": "relu", "penalty": 0.0},
    "relu, alpha 1": {"model.attention": pointwise(alpha=1.0), "penalty": 0.0},
    "relu2, alpha 1": {"model.attention": pointwise("relu2", alpha=1.0)},
    "relu, alpha 0.5, learned bias": {
        "model.attention": pointwise(
            alpha=0.5, gain="learned", gain_start=2.0**0.5, bias="learned_per_head"
        ),
        "penalty": 0.0,
    },
    RELU4_SUM: {"model.attention": RELU4_SUM},
}
MARGIN = 2.0
FAR_MARGIN = 5.0
"""Points that the fourth power over its sum may lose beyond training."""
LOSS_OF_A_POINT = 0.003
"""Nats of validation loss that go with about a point of recall in the stored runs."""

_PAIRS: Mapping[Scale, tuple[str, tuple[int, ...]]] = {  # of training, of tests
    "smoke": ("recall:2-8,10000", (4, 16)),
    "small": ("recall:2-32,400000", (4, 8, 16, 32, 64, 128)),
    "paper": ("recall:2-64,500000", (4, 16, 32, 64, 128)),
}
_LONGEST = 256
"""Room for the sources of all tests: a token a pair, 3 more, and a third more for a translator."""

_CHANGES: Mapping[Scale, Mapping[str, Any]] = {
    "smoke": {},
    "small": {
        **{"model.width": 64, "model.num_heads": 2, "model.mlp_dim": 128, "model.dropout": 0.0},
        **{"model.encoder_depth": 2, "model.decoder_depth": 2, "data.length": 64},
        **{"data.resolutions": 1, "data.pieces.vocabulary_size": NUM_PIECES},
        **{"steps": 6000, "batch_size": 8192, "label_smoothing": 0.0},
    },
    "paper": {
        **{"model.name": "reluformer_base", "model.dropout": 0.0, "data.length": 128},
        **{"data.join": False, "label_smoothing": 0.0, "steps": 20_000},
        "data.pieces.vocabulary_size": NUM_PIECES,
    },
}
_SHOWN: Mapping[Scale, tuple[str, ...]] = {
    "smoke": tuple(ATTENTIONS)[:3],
    "small": tuple(ATTENTIONS),
    "paper": tuple(ATTENTIONS),
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Every attention learns recall; then it is asked by numbers of pairs, also larger ones."""
    most = trained_pairs(settings.scale)
    return tuple(
        trial(
            {"attention": attention, "trained_pairs": most, "seed": seed},
            recall(settings, seed, ATTENTIONS[attention]),
            recall_tests(settings.scale),
        )
        for seed in range(settings.seeds)
        for attention in _SHOWN[settings.scale]
    )


def recall(settings: Settings, seed: int, changes: Mapping[str, Any]) -> Config:
    """The config of a translator that learns recall, with some dotted names changed."""
    place, _ = _PAIRS[settings.scale]
    places = {"data.train": place, "data.validation": place.partition(",")[0]}
    return text(settings, seed, {**places, **_CHANGES[settings.scale], **changes})


def recall_tests(scale: Scale) -> list[Evaluation]:
    """Questions by the number of pairs in the source."""
    return [
        Evaluation(
            name=f"pairs{pairs}",
            kind="translate",
            options={"data": f"recall:{pairs}", "data.length": _LONGEST, "batch_size": 128},
        )
        for pairs in _PAIRS[scale][1]
    ]


def trained_pairs(scale: Scale) -> int:
    """The most pairs that training has."""
    return int(_PAIRS[scale][0].partition("-")[2].partition(",")[0])


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Accuracy of recall by the number of pairs."""
    by_length = ("relu, alpha 0.5", "relu, alpha 1")
    by_sum = [RELU4_SUM] if is_planned(outcomes, "attention", RELU4_SUM) else []
    places = [(attention, beyond, MARGIN) for beyond in (False, True) for attention in by_length]
    margins = ((False, MARGIN), (True, FAR_MARGIN))
    places += [(attention, *margin) for attention in by_sum for margin in margins]
    return Findings(
        verdicts=[
            *(_verdict(outcomes, *place) for place in places),
            *(_loss_verdict(outcomes, attention) for attention in (*by_length, *by_sum)),
        ],
        charts=[_chart(outcomes)],
        tables=[
            arm_table(
                "retrieval",
                outcomes,
                ("loss", *(f"pairs{pairs}.exact" for pairs in _measured(outcomes))),
            )
        ],
        notes=[
            "A pair is one token: which value stands beside which key need not be learned.",
            "A guess is the value that a source has most often, the best answer without a look at "
            "the key.",
            *state_notes(outcomes),
        ],
    )


def _measured(outcomes: Sequence[Outcome]) -> list[int]:
    names = {name.partition(".")[0] for o in outcomes for name in o.numbers}
    counts = (name.removeprefix("pairs") for name in names if name.startswith("pairs"))
    return sorted(int(count) for count in counts if count.isdecimal())


def _trained(outcomes: Sequence[Outcome]) -> int:
    """The most pairs of training."""
    return max((int(most) for most in levels(outcomes, "trained_pairs")), default=0)


def _verdict(
    outcomes: Sequence[Outcome], attention: str, is_beyond: bool, margin: float
) -> Verdict:
    """Where a source has the most pairs of training, or the most of all."""
    pairs = _most_pairs(outcomes, is_beyond)
    where = "pairs, beyond training" if is_beyond else "pairs of training"
    names = (attention, "softmax")
    twins = [numbers(outcomes, f"pairs{pairs}.exact", PERCENT, attention=one) for one in names]
    lack = _why_nothing_is_said(outcomes, pairs)
    return judge(
        f"{attention} recalls as well as softmax at {pairs or 'the most'} {where}, up to "
        f"{margin:g} points.",
        [[]] if lack else twins,
        (-margin, float("inf")),
        unit=f"points of recall, {attention} minus softmax at {pairs or 'the most'} pairs",
        lack=lack,
    )


def _loss_verdict(outcomes: Sequence[Outcome], attention: str) -> Verdict:
    """Of the validation set, which has the pairs of training."""
    margin = MARGIN * LOSS_OF_A_POINT
    lack = _why_nothing_is_said(outcomes, _most_pairs(outcomes, is_beyond=False))
    twins = [numbers(outcomes, "loss", attention=one) for one in (attention, "softmax")]
    return judge(
        f"{attention} has a validation loss at most {margin:g} nats above softmax's, with the "
        "pairs of training.",
        [[]] if lack else twins,
        (-float("inf"), margin),
        unit=f"nats of loss a token, {attention} minus softmax",
        lack=lack,
    )


def _most_pairs(outcomes: Sequence[Outcome], is_beyond: bool) -> int:
    """The most pairs of a test, of those in training or of those beyond."""
    trained = _trained(outcomes)
    there = [pairs for pairs in _measured(outcomes) if (pairs > trained) == is_beyond]
    return max(there, default=0)


def _why_nothing_is_said(outcomes: Sequence[Outcome], pairs: int) -> str:
    """Why it says nothing to be level with softmax at so many pairs; empty where it does."""
    guess = PERCENT * best_guess(pairs) if pairs else 0.0
    right = mean(numbers(outcomes, f"pairs{pairs}.exact", PERCENT, attention="softmax"))
    if right is None or right > guess + MARGIN:
        return ""
    return (
        f"softmax has not learned to recall: {right:.1f}% right, a guess {guess:.1f}%, and more "
        f"than {MARGIN:g} points above it are asked. To be level with it says nothing."
    )


def _chart(outcomes: Sequence[Outcome]) -> Chart:
    measured = _measured(outcomes)
    series: list[Series] = [
        line(
            str(attention),
            [(n, numbers(outcomes, f"pairs{n}.exact", attention=attention)) for n in measured],
        )
        for attention in levels(outcomes, "attention")
    ]
    if measured:
        guesses = [best_guess(pairs) for pairs in measured]
        series.append(Series(name="a guess", x=measured, y=guesses, is_dashed=True))
    return Chart(
        name="retrieval",
        title="Recall of a value by its key",
        caption="Open in both papers. Pairs of keys and values, then one key: the share of right "
        f"answers. Trained on up to {_trained(outcomes)} pairs; more is farther than trained.",
        x_title="pairs in the source",
        y_title="right answers",
        series=series,
        x_is_log=True,
        y_format="percent",
    )


STUDY = Study(
    name="retrieval",
    question="Does pointwise attention find one key among many?",
    source="open",
    claim="One would fear that attention without softmax's competition finds less among many.",
    plan=plan,
    findings=findings,
)
