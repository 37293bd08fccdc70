"""Paper 2's ablation as the paper probably had it: sentences, its recipe, a beam of 5."""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Evaluation, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    arm_table,
    is_planned,
    levels,
    line,
    numbers,
    state_notes,
)
from flashpoint.lab.study.settings import (
    NORM_CHOSEN,
    NORMED,
    RELU4_SUM,
    SHIFTED,
    SMALL_SENTENCES,
    pointwise,
    sentences,
    trial,
)
from flashpoint.lab.study.verdict import Extreme, Means, judge_quantity

VANILLA, BARE, FACTOR = "softmax", "relu, no factor", "relu, factor"
WHOLE = "relu, factor and penalty"
IN_SELF, SUM_IN_SELF = (f"{one}, softmax in cross" for one in (WHOLE, RELU4_SUM))
KINDS: Mapping[str, Mapping[str, Any]] = {
    VANILLA: {"model.attention": "softmax"},
    BARE: {"model.attention": pointwise(alpha=0.0), "penalty": 0.0},
    FACTOR: {"model.attention": "relu", "penalty": 0.0},
    WHOLE: {"model.attention": "relu", "penalty": 0.1},
    IN_SELF: {"model.attention": "relu", "model.cross_attention": "softmax", "penalty": 0.1},
    RELU4_SUM: {"model.attention": RELU4_SUM},
    SUM_IN_SELF: {"model.attention": RELU4_SUM, "model.cross_attention": "softmax"},
    SHIFTED: {"model.attention": SHIFTED},
    **{name: {"model.attention": word, "model.qk_norm": "layer"} for word, name in NORMED.items()},
}
DIRECTIONS: Mapping[str, Mapping[str, Any]] = {
    "De-En": {"data.source": "de", "data.target": "en"},
    "En-De": {"data.source": "en", "data.target": "de"},
}
JUDGED = (
    ("ReLUFormer", WHOLE, VANILLA),
    (RELU4_SUM, RELU4_SUM, VANILLA),
    *((NORMED[RELU4_SUM], NORMED[RELU4_SUM], twin) for twin in (VANILLA, NORMED[VANILLA])),
    ("ReLUFormer with softmax in cross-attention", IN_SELF, VANILLA),
    (f"{RELU4_SUM} with softmax in cross-attention", SUM_IN_SELF, VANILLA),
    (SHIFTED, SHIFTED, VANILLA),
)
"""What is held against softmax, by the name that a claim gives it, and against which."""
PAPER_BLEU = {VANILLA: 34.22, FACTOR: 33.19, WHOLE: 34.56}
BLEU = "translation.bleu"
MARGIN, LOSS_MARGIN = 0.3, 0.03
"""BLEU, and nats of a token, that still count as level."""

_BEAM: Mapping[Scale, int] = {"smoke": 2, "small": 5, "paper": 5}
_SHOWN: Mapping[Scale, tuple[tuple[str, ...], tuple[str, ...]]] = {  # directions and kinds
    "smoke": (("De-En",), (VANILLA, FACTOR, WHOLE)),
    "small": (tuple(DIRECTIONS), tuple(KINDS)),
    "paper": (tuple(DIRECTIONS), tuple(KINDS)),
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """The vanilla model, steps toward ReLUFormer, and the fourth power over its sum.

    The paper may have meant relu in self-attention alone, which is an arm of its own. What has a
    norm of q and k comes last: the paper's question can be answered without it.
    """
    options = {"beam": _BEAM[settings.scale], "batch_size": 512}
    directions, kinds = _SHOWN[settings.scale]
    places = [
        (seed, one, kind) for seed in range(settings.seeds) for one in directions for kind in kinds
    ]
    places.sort(key=lambda place: place[2] in NORMED.values())
    return tuple(
        trial(
            {"direction": direction, "attention": kind, "seed": seed},
            sentences(settings, seed, {**DIRECTIONS[direction], **KINDS[kind]}),
            [Evaluation(name="translation", kind="translate", options=options)],
        )
        for seed, direction, kind in places
    )


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """BLEU and loss of all, by direction, beside the paper's BLEU."""
    return Findings(
        verdicts=[*_bleu_verdicts(outcomes), *_loss_verdicts(outcomes)],
        charts=[
            _chart(outcomes, BLEU, "BLEU", "BLEU of the validation set, beam 5"),
            _chart(outcomes, "loss", "Validation loss", "cross-entropy of a token, in nats"),
        ],
        tables=[arm_table("sentences", outcomes, (BLEU, "loss", "token_accuracy", "train_loss"))],
        notes=[
            "The paper, on IWSLT14 De-En: "
            + ", ".join(f"{kind} {value:g}" for kind, value in PAPER_BLEU.items())
            + "; without the factor it does not converge.",
            "The paper speaks of self-attention and does not say whether cross-attention is relu "
            f"too: here it is, but for {IN_SELF!r} and {SUM_IN_SELF!r}.",
            NORM_CHOSEN,
            *state_notes(outcomes),
        ],
    )


def _judged(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str]]:
    """What is held against softmax and is in the plan of these outcomes."""
    return [one for one in JUDGED if is_planned(outcomes, "attention", one[1])]


def _pairs(
    outcomes: Sequence[Outcome], number: str, first: str, second: str, share: float = 1.0
) -> list[Means]:
    """In each direction, a number of one kind less that of another, or less a share of it."""
    return [
        Means(
            [
                numbers(outcomes, number, direction=direction, attention=kind)
                for kind in (first, second)
            ],
            lambda one, other: one - share * other,
        )
        for direction in levels(outcomes, "direction")
    ]


def _bleu_verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    def gained(claim: str, first: str, second: str, margin: float, unit: str) -> Verdict:
        least = Extreme("least", _pairs(outcomes, BLEU, first, second))
        return judge_quantity(claim, least, (0.0 - margin, float("inf")), unit=unit)

    converged = any(any(pair.groups[1]) for pair in _pairs(outcomes, BLEU, BARE, FACTOR))
    return [
        judge_quantity(
            "Without the factor relu attention does not converge: less than half of the BLEU that "
            "it has with it, in both directions.",
            Extreme("most", _pairs(outcomes, BLEU, BARE, FACTOR, 0.5) if converged else []),
            (-float("inf"), 0.0),
            unit="BLEU, relu without the factor minus half of relu with it, better direction",
            lack="" if converged else "No run with the factor has any BLEU yet.",
        ),
        judge_quantity(
            "The factor alone does not reach softmax, in either direction.",
            Extreme("most", _pairs(outcomes, BLEU, FACTOR, VANILLA)),
            (-float("inf"), 0.0),
            unit="BLEU, relu with the factor minus softmax in the better direction",
        ),
        gained(
            "The regularization helps, in both directions.",
            *(WHOLE, FACTOR, 0.0),
            unit="BLEU, relu with the penalty minus relu without it in the worse direction",
        ),
        *(
            gained(
                f"{name} is at most {MARGIN:g} BLEU below {twin}, in both directions.",
                *(kind, twin, MARGIN),
                unit=f"BLEU, {name} minus {twin} in the worse direction",
            )
            for name, kind, twin in _judged(outcomes)
        ),
    ]


def _loss_verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    def lower(claim: str, first: str, second: str, margin: float, unit: str) -> Verdict:
        most = Extreme("most", _pairs(outcomes, "loss", first, second))
        return judge_quantity(claim, most, (-float("inf"), margin), unit=unit)

    return [
        lower(
            "The regularization lowers the validation loss, in both directions.",
            *(WHOLE, FACTOR, 0.0),
            unit="nats of loss a token, relu with the penalty minus without, worse direction",
        ),
        *(
            lower(
                f"The validation loss of {name} is at most {LOSS_MARGIN:g} nats above that of "
                f"{twin}, in both directions.",
                *(kind, twin, LOSS_MARGIN),
                unit=f"nats of loss a token, {name} minus {twin} in the worse direction",
            )
            for name, kind, twin in _judged(outcomes)
        ),
    ]


def _chart(outcomes: Sequence[Outcome], number: str, title: str, y_title: str) -> Chart:
    def points(direction: Any) -> list[tuple[str, Sequence[float]]]:
        return [
            (str(kind), numbers(outcomes, number, direction=direction, attention=kind))
            for kind in levels(outcomes, "attention")
        ]

    return Chart(
        name=f"sentences-{number.rpartition('.')[2]}",
        title=f"{title} of sentences, step by step",
        caption="Paper 2: without the factor relu attention does not converge, with it it comes "
        "near softmax, and with the regularization it passes it.",
        x_title="attention",
        y_title=y_title,
        series=[
            line(str(direction), points(direction), has_line=False)
            for direction in levels(outcomes, "direction")
        ],
    )


STUDY = Study(
    name="sentences",
    question="Does relu attention reach softmax on sentences, as paper 2 has it?",
    source="paper 2, ablation",
    claim="Unscaled relu attention fails, the factor makes it work, and the regularization brings "
    "it past softmax: 34.56 BLEU against 34.22.",
    plan=plan,
    findings=findings,
    departures=SMALL_SENTENCES,
)
