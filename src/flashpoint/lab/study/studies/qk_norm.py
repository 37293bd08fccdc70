"""Does relu attention need a norm of q and k? (paper 1, figure 3)"""

from collections.abc import Mapping, Sequence

from flashpoint.lab.runs.findings import Chart, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    PERCENT,
    along,
    arm_table,
    is_planned,
    levels,
    numbers,
    state_notes,
)
from flashpoint.lab.study.settings import (
    LOSS_OF_A_POINT,
    RELU4_SUM,
    SMALL_IMAGES,
    SMALL_VIT,
    trial,
    vision,
)
from flashpoint.lab.study.verdict import judge

ACTIVATIONS = ("relu", "relu2", "softmax", RELU4_SUM)
JUDGED = ("relu", "relu2", RELU4_SUM)
NORMS = {"with": "layer", "without": "none"}
MARGIN = 1.0

_SHOWN: Mapping[Scale, tuple[str, ...]] = {
    "smoke": ACTIVATIONS[:3],
    "small": ACTIVATIONS,
    "paper": ACTIVATIONS,
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Every attention with and without the norm."""
    return tuple(
        trial(
            {"attention": activation, "norm": word, "seed": seed},
            vision(settings, seed, {"model.attention": activation, "model.qk_norm": norm}),
        )
        for seed in range(settings.seeds)
        for activation in _SHOWN[settings.scale]
        for word, norm in NORMS.items()
    )


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Accuracy with and without, and how much the norm is worth to each attention."""
    return Findings(
        verdicts=[
            judged(outcomes, activation)
            for judged in (_verdict, _loss_verdict)
            for activation in JUDGED
            if is_planned(outcomes, "attention", activation)
        ],
        charts=[
            Chart(
                name="qk-norm",
                title="Accuracy with and without qk-layernorm",
                caption="Paper 1, figure 3: without the norm of q and k, relu and squared relu "
                "change little at these sizes. Here: the same comparison, and softmax's.",
                x_title="qk-layernorm",
                y_title="top-1",
                series=[
                    along(str(activation), outcomes, "norm", "top1", attention=activation)
                    for activation in levels(outcomes, "attention")
                ],
                y_format="percent",
            )
        ],
        tables=[arm_table("qk-norm", outcomes, ("top1", "loss", "train_loss"))],
        notes=state_notes(outcomes),
    )


def _verdict(outcomes: Sequence[Outcome], activation: str) -> Verdict:
    return judge(
        f"Without qk-layernorm, {activation} changes by no more than {MARGIN:g} point of top-1.",
        [
            numbers(outcomes, "top1", PERCENT, attention=activation, norm=norm)
            for norm in ("without", "with")
        ],
        (-MARGIN, MARGIN),
        unit=f"points of top-1, {activation} without qk-norm minus {activation} with it",
    )


def _loss_verdict(outcomes: Sequence[Outcome], activation: str) -> Verdict:
    return judge(
        f"Without qk-layernorm, {activation}'s validation loss changes by no more than "
        f"{LOSS_OF_A_POINT:g} nats.",
        [
            numbers(outcomes, "loss", attention=activation, norm=norm)
            for norm in ("without", "with")
        ],
        (-LOSS_OF_A_POINT, LOSS_OF_A_POINT),
        unit=f"nats of loss, {activation} without qk-norm minus {activation} with it",
    )


STUDY = Study(
    name="qk-norm",
    question="Does relu attention need a norm of q and k?",
    source="paper 1, figure 3",
    claim="Removing qk-layernorm changes little for relu and squared relu at these sizes.",
    plan=plan,
    findings=findings,
    departures=f"{SMALL_IMAGES} {SMALL_VIT}",
)
