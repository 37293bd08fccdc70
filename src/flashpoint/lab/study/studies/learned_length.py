"""Can the length factor be learned? (open in paper 1)"""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Evaluation, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import PERCENT, arm_table, levels, line, numbers, state_notes
from flashpoint.lab.study.settings import LOSS_OF_A_POINT, pointwise, trial, vision
from flashpoint.lab.study.verdict import judge

RULES: Mapping[str, Any] = {
    "fixed at 1": pointwise(alpha=1.0),
    "fixed at 0.5": pointwise(alpha=0.5),
    "learned from 1": pointwise(alpha="learned", alpha_start=1.0),
    "learned from 0.5": pointwise(alpha="learned", alpha_start=0.5),
    "learned per head from 1": pointwise(alpha="learned_per_head", alpha_start=1.0),
    "learned per head from 0.5": pointwise(alpha="learned_per_head", alpha_start=0.5),
    "softmax": "softmax",
}
MARGIN = 0.5
MOVED = 0.05

_SHOWN: Mapping[Scale, tuple[str, ...]] = {
    "smoke": tuple(RULES)[:5],
    "small": tuple(RULES),
    "paper": tuple(RULES),
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Every rule; what was learned is read off the weights."""
    return tuple(
        trial(
            {"alpha": rule, "seed": seed},
            vision(settings, seed, {"model.attention": RULES[rule]}),
            [Evaluation(name="learned", kind="learned")] if _learns(rule) else [],
        )
        for seed in range(settings.seeds)
        for rule in _SHOWN[settings.scale]
    )


def _learns(rule: object) -> bool:
    return str(rule).startswith("learned")


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Accuracy of every rule, and where alpha went."""
    layers = sorted(
        {int(name[len(_LAYER) :]) for o in outcomes for name in o.numbers if _LAYER in name}
    )
    return Findings(
        verdicts=_verdicts(outcomes),
        charts=[_accuracy(outcomes), _alphas(outcomes, layers)],
        tables=[
            arm_table(
                "learned-length",
                outcomes,
                (
                    *("top1", "loss", "learned.alpha", "learned.alpha_lowest"),
                    *("learned.alpha_highest", *(f"{_LAYER}{layer}" for layer in layers)),
                ),
            )
        ],
        notes=[
            "All tokens see all others here, so that alpha only sets one factor n^-alpha for each "
            "layer or head: what is learned is how large attention's output is, at one length.",
            *state_notes(outcomes),
        ],
    )


_LAYER = "learned.alpha_layer"


def _verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    def top1(rule: str) -> list[float]:
        return numbers(outcomes, "top1", PERCENT, alpha=rule)

    def loss(rule: str) -> list[float]:
        return numbers(outcomes, "loss", alpha=rule)

    return [
        judge(
            f"An alpha learned from 1 is not worse than alpha 1 by more than {MARGIN:g} points.",
            [top1("learned from 1"), top1("fixed at 1")],
            (-MARGIN, float("inf")),
            unit="points of top-1, alpha learned from 1 minus alpha fixed at 1",
        ),
        judge(
            "An alpha learned from 0.5 is better than one that stays there.",
            [top1("learned from 0.5"), top1("fixed at 0.5")],
            (0.0, float("inf")),
            unit="points of top-1, alpha learned from 0.5 minus alpha fixed at 0.5",
        ),
        judge(
            f"Learned from 0.5, alpha rises by more than {MOVED:g}, toward 1.",
            [numbers(outcomes, "learned.alpha", alpha="learned from 0.5")],
            (0.5 + MOVED, float("inf")),
            unit="as the mean alpha of all layers",
        ),
        judge(
            f"Where alpha starts does not matter: {MARGIN:g} points at most.",
            [top1("learned from 1"), top1("learned from 0.5")],
            (-MARGIN, MARGIN),
            unit="points of top-1, alpha learned from 1 minus alpha learned from 0.5",
        ),
        judge(
            "The validation loss with an alpha learned from 1 is at most "
            f"{LOSS_OF_A_POINT:g} nats above that with alpha 1.",
            [loss("learned from 1"), loss("fixed at 1")],
            (-float("inf"), LOSS_OF_A_POINT),
            unit="nats of loss, alpha learned from 1 minus alpha fixed at 1",
        ),
    ]


def _accuracy(outcomes: Sequence[Outcome]) -> Chart:
    points = [
        (str(rule), numbers(outcomes, "top1", alpha=rule)) for rule in levels(outcomes, "alpha")
    ]
    return Chart(
        name="learned-length",
        title="Accuracy with the length's power fixed and learned",
        caption="Paper 1 leaves open whether the factor can be learned. Here: alpha as a "
        "parameter of every layer or head.",
        x_title="alpha",
        y_title="top-1",
        series=[line("top-1", points, has_line=False)],
        y_format="percent",
    )


def _alphas(outcomes: Sequence[Outcome], layers: Sequence[int]) -> Chart:
    return Chart(
        name="learned-length-alpha",
        title="Where alpha went, by layer",
        caption="Means over heads and seeds at the end of training.",
        x_title="layer",
        y_title="alpha",
        series=[
            line(
                str(rule),
                [(n, numbers(outcomes, f"{_LAYER}{n}", alpha=rule)) for n in layers],
            )
            for rule in levels(outcomes, "alpha")
            if _learns(rule)
        ],
    )


STUDY = Study(
    name="learned-length",
    question="Can the length factor be learned, and from which start?",
    source="open in paper 1",
    claim="One would expect a learned alpha to be as good as alpha 1, and to end near it.",
    plan=plan,
    findings=findings,
)
