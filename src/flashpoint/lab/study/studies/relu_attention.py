"""What relu attention needs: the factor, and the regularization (paper 2's ablation)."""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Evaluation, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import arm_table, levels, line, numbers, state_notes
from flashpoint.lab.study.settings import (
    SMALL_CORPUS,
    SMALL_GAMMA,
    documents_or_sentences,
    pointwise,
    relu_of_text,
    trial,
)
from flashpoint.lab.study.verdict import judge

VANILLA = "softmax"
BARE = "relu, no factor"
FROM_ONE = "relu, factor, gamma from 1"
FACTOR = "relu, factor"
WHOLE = "relu, factor and penalty"
PAPER_BLEU = {VANILLA: 34.22, FACTOR: 33.19, WHOLE: 34.56}
MARGIN, LOSS_MARGIN = 0.5, 0.05
DEPARTURES = f"{SMALL_CORPUS} {SMALL_GAMMA} There, a row of its own has gamma from 1."


def translation(scale: Scale) -> Evaluation:
    """The validation set through the model: greedy, and with the paper's beam at its scale."""
    options = {"beam": 5, "batch_size": 64} if scale == "paper" else {"beam": 1}
    return Evaluation(name="translation", kind="translate", options=options)


def plan(settings: Settings) -> tuple[Trial, ...]:
    """The vanilla model and the steps toward ReLUFormer."""
    return tuple(
        trial(
            {"attention": kind, "seed": seed},
            documents_or_sentences(settings, seed, changes),
            [translation(settings.scale)],
        )
        for seed in range(settings.seeds)
        for kind, changes in _kinds(settings).items()
    )


def _kinds(settings: Settings) -> Mapping[str, Mapping[str, Any]]:
    """What differs; the paper's own start of gamma is a step of its own where ours is another."""
    ours, paper = relu_of_text(settings), "relu"
    from_one = {FROM_ONE: {"model.attention": paper, "penalty": 0.0}}
    return {
        VANILLA: {"model.attention": "softmax"},
        BARE: {"model.attention": pointwise(alpha=0.0), "penalty": 0.0},
        **({} if ours == paper else from_one),
        FACTOR: {"model.attention": ours, "penalty": 0.0},
        WHOLE: {"model.attention": ours, "penalty": 0.1},
    }


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """BLEU and loss of all, beside the paper's BLEU."""
    bleu, loss = "translation.bleu", "loss"
    return Findings(
        verdicts=[*_verdicts(outcomes), *_loss_verdicts(outcomes)],
        charts=[
            _chart(outcomes, bleu, "BLEU", "BLEU of the validation set"),
            _chart(outcomes, loss, "Validation loss", "cross-entropy of a token, in nats"),
        ],
        tables=[
            arm_table(
                "relu-attention",
                outcomes,
                (bleu, "translation.document_bleu", loss, "token_accuracy", "train_loss"),
            )
        ],
        notes=[
            "The paper, on IWSLT14 De-En: "
            + ", ".join(f"{kind} {value:g}" for kind, value in PAPER_BLEU.items())
            + "; without the factor it does not converge.",
            *state_notes(outcomes),
        ],
    )


def _verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    def bleu(kind: str) -> list[float]:
        return numbers(outcomes, "translation.bleu", attention=kind)

    verdicts = [
        judge(
            "Without the factor relu attention does not converge: less than half of the BLEU that "
            "it has with it.",
            [bleu(BARE), bleu(FACTOR)] if any(bleu(FACTOR)) else [[]],
            (-float("inf"), 0.0),
            unit="BLEU, relu without the factor minus half of relu with it",
            quantity=lambda bare, factor: bare - 0.5 * factor,
            lack="" if any(bleu(FACTOR)) else "No run with the factor has any BLEU yet.",
        ),
        judge(
            "The factor alone does not reach softmax.",
            [bleu(FACTOR), bleu(VANILLA)],
            (-float("inf"), 0.0),
            unit="BLEU, relu with the factor minus softmax",
        ),
        judge(
            "The regularization helps.",
            [bleu(WHOLE), bleu(FACTOR)],
            (0.0, float("inf")),
            unit="BLEU, relu with the penalty minus relu without it",
        ),
        judge(
            f"ReLUFormer is not worse than softmax by more than {MARGIN:g} BLEU.",
            [bleu(WHOLE), bleu(VANILLA)],
            (-MARGIN, float("inf")),
            unit="BLEU, ReLUFormer minus softmax",
        ),
    ]
    if FROM_ONE not in levels(outcomes, "attention"):
        return verdicts
    start = judge(
        "Ours, not the paper's: the factor alone is better with a gamma that starts at 8 than at "
        "1.",
        [bleu(FACTOR), bleu(FROM_ONE)],
        (0.0, float("inf")),
        unit="BLEU, gamma from 8 minus gamma from 1",
    )
    return [*verdicts, start]


def _loss_verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    def losses(*kinds: str) -> list[list[float]]:
        return [numbers(outcomes, "loss", attention=kind) for kind in kinds]

    return [
        judge(
            "The regularization lowers the validation loss.",
            losses(WHOLE, FACTOR),
            (-float("inf"), 0.0),
            unit="nats of loss a token, relu with the penalty minus relu without it",
        ),
        judge(
            f"ReLUFormer's validation loss is at most {LOSS_MARGIN:g} nats above softmax's.",
            losses(WHOLE, VANILLA),
            (-float("inf"), LOSS_MARGIN),
            unit="nats of loss a token, ReLUFormer minus softmax",
        ),
    ]


def _chart(outcomes: Sequence[Outcome], number: str, title: str, y_title: str) -> Chart:
    points = [
        (str(kind), numbers(outcomes, number, attention=kind))
        for kind in levels(outcomes, "attention")
    ]
    return Chart(
        name=f"relu-attention-{number.rpartition('.')[2]}",
        title=f"{title} of relu attention, step by step",
        caption="Paper 2: without the factor relu attention does not converge, with it it comes "
        "near softmax, and with the regularization it passes it.",
        x_title="attention",
        y_title=y_title,
        series=[line(title, points, has_line=False)],
    )


STUDY = Study(
    name="relu-attention",
    question="What does relu attention need in a translation model?",
    source="paper 2, ablation",
    claim="Unscaled relu attention fails, the factor makes it work, and the regularization brings "
    "it past softmax.",
    plan=plan,
    findings=findings,
    departures=DEPARTURES,
)
