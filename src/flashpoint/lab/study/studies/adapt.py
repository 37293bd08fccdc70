"""What is left of a softmax model whose attention is replaced? (open)"""

from collections.abc import Mapping, Sequence

from flashpoint.lab.runs.findings import Chart, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Evaluation, Settings, Study, Trial
from flashpoint.lab.study.reading import PERCENT, arm_table, line, numbers, state_notes
from flashpoint.lab.study.settings import LOSS_OF_A_POINT, pointwise, trial, vision
from flashpoint.lab.study.verdict import Runs, judge

ATTENTIONS: Mapping[str, object] = {
    "relu": pointwise(),
    "relu4/sum": pointwise("relu4", normalize="sum"),
}
SHARES: Mapping[int, float] = {5: 0.05, 20: 0.2}
"""Of the training's updates, in percent and as they are."""
MARGIN = 1.0

_NAMES = {"relu": "relu", "relu4/sum": "relu4_sum"}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Softmax, adapted to each attention in each share of its updates; each from scratch."""
    adapted = [
        Evaluation(
            name=f"{_NAMES[word]}_{percent}",
            kind="adapt",
            options={"attention": word, "share": share},
        )
        for word in ATTENTIONS
        for percent, share in SHARES.items()
    ]
    return tuple(
        trial(
            {"attention": word, "seed": seed},
            vision(settings, seed, {"model.attention": attention}),
            adapted if word == "softmax" else [],
        )
        for seed in range(settings.seeds)
        for word, attention in {"softmax": "softmax", **ATTENTIONS}.items()
    )


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Accuracy of every stage, beside softmax's and that of training from scratch."""
    evaluations = [f"{name}_{percent}" for name in _NAMES.values() for percent in SHARES]
    stages = ("converted", "calibrated", "matched", "adapted")
    columns = [f"{name}.{stage}" for name in evaluations for stage in stages]
    return Findings(
        verdicts=[
            *(verdict for word in ATTENTIONS for verdict in _verdicts(outcomes, word)),
            *(_loss_verdict(outcomes, word) for word in ATTENTIONS),
        ],
        charts=[
            Chart(
                name="adapt",
                title="Accuracy of a softmax ViT whose attention was replaced",
                caption="Converted: the same weights with other attention. Calibrated: with a "
                "gain and a bias for each head, fitted to softmax's output. Adapted: layers "
                "matched, then fine-tuned, in 5% and 20% of the updates of training.",
                x_title="model",
                y_title="top-1",
                series=[
                    line(word, list(_stages(outcomes, word).items()), has_line=False)
                    for word in ATTENTIONS
                ],
                y_format="percent",
            )
        ],
        tables=[arm_table("adapt", outcomes, ("top1", "loss", *columns))],
        notes=[
            "Converted and adapted models have no loss here and are judged by accuracy alone.",
            *state_notes(outcomes),
        ],
    )


def _stages(outcomes: Sequence[Outcome], word: str, scale: float = 1.0) -> dict[str, Runs]:
    """Accuracies by what was done; converting and calibrating is the same for every share."""

    def softmax(number: str) -> Runs:
        return numbers(outcomes, number, scale, attention="softmax")

    name, last = _NAMES[word], max(SHARES)
    return {
        "converted": softmax(f"{name}_{last}.converted"),
        "calibrated": softmax(f"{name}_{last}.calibrated"),
        **{f"adapted {n}%": softmax(f"{name}_{n}.adapted") for n in SHARES},
        "softmax": softmax("top1"),
        "from scratch": numbers(outcomes, "top1", scale, attention=word),
    }


def name_stage(stage: str, word: str) -> str:
    """A stage in a sentence: softmax is the model before, all others are of an attention.

    Example:
        >>> name_stage("adapted 20%", "relu"), name_stage("softmax", "relu")
        ('relu adapted 20%', 'softmax')
    """
    return stage if stage == "softmax" else f"{word} {stage}"


def _verdicts(outcomes: Sequence[Outcome], word: str) -> list[Verdict]:
    stages = _stages(outcomes, word, PERCENT)
    claims = {
        f"Calibration makes converted {word} better.": ("calibrated", "converted", 0.0),
        f"{word} adapted in 20% of the updates is within {MARGIN:g} point of softmax.": (
            *("adapted 20%", "softmax"),
            -MARGIN,
        ),
        f"{word} adapted in 20% of the updates is within {MARGIN:g} point of {word} from "
        "scratch, or better.": ("adapted 20%", "from scratch", -MARGIN),
    }
    return [
        judge(
            claim,
            [stages[first], stages[second]],
            (least, float("inf")),
            unit=f"points of top-1, {name_stage(first, word)} minus {name_stage(second, word)}",
        )
        for claim, (first, second, least) in claims.items()
    ]


def _loss_verdict(outcomes: Sequence[Outcome], word: str) -> Verdict:
    margin = MARGIN * LOSS_OF_A_POINT
    return judge(
        f"{word} from scratch has a validation loss at most {margin:g} nats above softmax's.",
        [numbers(outcomes, "loss", attention=one) for one in (word, "softmax")],
        (-float("inf"), margin),
        unit=f"nats of loss, {name_stage('from scratch', word)} minus softmax",
    )


STUDY = Study(
    name="adapt",
    question="What is left of a softmax model whose attention is replaced?",
    source="open",
    claim="One would expect a converted model to lose much, calibration to bring some of it back, "
    "and a fifth of the training to bring back nearly all.",
    plan=plan,
    findings=findings,
)
