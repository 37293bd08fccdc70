"""Which power of the length, and which activation? (paper 1, figure 2)"""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Series, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Factor, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    PERCENT,
    along,
    arm_table,
    levels,
    mean,
    numbers,
    select,
    state_notes,
)
from flashpoint.lab.study.settings import (
    LOSS_OF_A_POINT,
    SMALL_IMAGES,
    pointwise,
    trial,
    vision,
)
from flashpoint.lab.study.verdict import Extreme, Means, judge, judge_quantity

ACTIVATIONS = ("relu", "relu2", "gelu", "softplus", "identity", "relu6", "sigmoid")
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
NEAR_ONE = (0.75, 1.0, 1.25)
MARGIN = 1.0
DEPARTURES = (
    f"{SMALL_IMAGES} ViTs of width 128 and depth 4 on patches of 4 and 8 (64 and 16 tokens), 5 "
    "epochs, where the paper has S/32, S/16 and S/8."
)

_MODELS: Mapping[Scale, Mapping[int, Mapping[str, Any]]] = {
    "smoke": {16: {}},
    "small": {
        tokens: {
            **{"model.width": 128, "model.depth": 4, "model.num_heads": 2, "model.mlp_dim": 512},
            **{"model.patch_size": patch, "epochs": 5},
        }
        for tokens, patch in ((64, 4), (16, 8))
    },
    "paper": {
        196: {"model.name": "vit_s16"},
        49: {
            **{"model.name": "vit_s32", "data.augmentation.mixup": 0.2},
        },
        784: {"model.name": "vit_s8"},
    },
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """The whole grid with one seed; all seeds where a verdict depends on it.

    That is relu at every alpha, every activation at alpha 1, and softmax, at the first number of
    tokens.
    """
    return tuple(
        trial(
            {"tokens": tokens, "activation": activation, "alpha": alpha, "seed": seed},
            vision(
                settings,
                seed,
                {**changes, "model.attention": pointwise(activation, alpha=alpha)},
            ),
        )
        for number, (tokens, changes) in enumerate(_MODELS[settings.scale].items())
        for seed in range(settings.seeds)
        for activation, alpha in _grid(settings.scale)
        if seed == 0 or (number == 0 and (activation == "relu" or alpha == 1.0))
    ) + tuple(
        trial(
            {"tokens": tokens, "activation": "softmax", "seed": seed},
            vision(settings, seed, {**changes, "model.attention": "softmax"}),
        )
        for tokens, changes in _MODELS[settings.scale].items()
        for seed in range(settings.seeds)
        if settings.scale != "smoke"
    )


def _grid(scale: Scale) -> list[tuple[str, float]]:
    if scale == "smoke":
        return [("relu", 0.0), ("relu", 1.0), ("relu", 2.0), ("identity", 1.0), ("gelu", 1.0)]
    return [(activation, alpha) for activation in ACTIVATIONS for alpha in ALPHAS]


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Accuracy against alpha for every activation, one chart for each number of tokens."""
    tokens = levels(outcomes, "tokens")
    return Findings(
        verdicts=_verdicts(outcomes),
        charts=[_chart(outcomes, number) for number in tokens],
        tables=[arm_table("length-power", outcomes, ("top1", "loss"))],
        notes=[
            "Seeds are several where a verdict depends on them, else one.",
            *state_notes(outcomes),
        ],
    )


def _verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    judged = _judged_tokens(outcomes)
    some = [] if judged is None else select(outcomes, tokens=judged)
    alphas = levels(select(some, activation="relu"), "alpha")

    def top1(activation: str, alpha: Factor) -> list[float]:
        return numbers(some, "top1", PERCENT, activation=activation, alpha=alpha)

    others = _others(some)
    relu = top1("relu", 1.0)
    near = [top1("relu", alpha) for alpha in alphas if alpha in NEAR_ONE]
    far = [top1("relu", alpha) for alpha in alphas if alpha not in NEAR_ONE]
    # Every alpha elsewhere has one near 1 that is better.
    best_near_less_best_far = Extreme(
        "least", [Extreme("most", [Means([one, other]) for one in near]) for other in far]
    )
    return [
        judge_quantity(
            f"relu is best at an alpha from {NEAR_ONE[0]:g} to {NEAR_ONE[-1]:g} "
            f"({judged} tokens).",
            best_near_less_best_far,
            (0.0, float("inf")),
            unit="points of top-1, the best alpha near 1 minus the best elsewhere",
        ),
        judge_quantity(
            f"No activation is more than {MARGIN:g} point better than relu at alpha 1 "
            f"({judged} tokens).",
            Extreme("most", [Means([top1(activation, 1.0), relu]) for activation in others]),
            (-float("inf"), MARGIN),
            unit="points of top-1, the best other activation minus relu",
        ),
        judge(
            f"Without an activation (identity) accuracy is lost at alpha 1 ({judged} tokens).",
            [relu, top1("identity", 1.0)],
            (0.0, float("inf")),
            unit="points of top-1, relu minus identity",
        ),
        _loss_verdict(some, judged),
    ]


def _loss_verdict(some: Sequence[Outcome], judged: Factor | None) -> Verdict:
    def loss(activation: str) -> list[float]:
        return numbers(some, "loss", activation=activation, alpha=1.0)

    relu = loss("relu")
    return judge_quantity(
        f"No activation's validation loss is more than {LOSS_OF_A_POINT:g} nats below relu's "
        f"at alpha 1 ({judged} tokens).",
        Extreme("least", [Means([loss(activation), relu]) for activation in _others(some)]),
        (-LOSS_OF_A_POINT, float("inf")),
        unit="nats of loss, the best other activation minus relu",
    )


def _others(outcomes: Sequence[Outcome]) -> list[str]:
    """Activations beside relu, but for none at all."""
    return [
        str(activation)
        for activation in levels(outcomes, "activation")
        if activation not in ("relu", "identity", "softmax")
    ]


def _judged_tokens(outcomes: Sequence[Outcome]) -> Factor | None:
    """The number of tokens with the most trials: it has all seeds."""
    tokens = levels(outcomes, "tokens")
    return max(tokens, key=lambda number: len(select(outcomes, tokens=number)), default=None)


def _chart(outcomes: Sequence[Outcome], tokens: Factor) -> Chart:
    some = select(outcomes, tokens=tokens)
    series = [
        along(str(activation), some, "alpha", "top1", activation=activation)
        for activation in levels(some, "activation")
        if activation != "softmax"
    ]
    softmax = mean(numbers(some, "top1", activation="softmax"))
    ends = [alpha for alpha in levels(some, "alpha") if not isinstance(alpha, str)]
    if softmax is not None and ends:
        across = [float(min(ends)), float(max(ends))]
        series.append(Series(name="softmax", x=across, y=[softmax, softmax], is_dashed=True))
    return Chart(
        name=f"length-power-{tokens}",
        title=f"Accuracy against the power of the length, {tokens} tokens",
        caption="Paper 1, figure 2: alpha near 1 is best for every activation, and no activation "
        "is clearly best there. Here: intervals where there are several seeds.",
        x_title="alpha in L^-alpha",
        y_title="top-1",
        series=series,
        y_format="percent",
    )


STUDY = Study(
    name="length-power",
    question="Which power of the length is best, and with which activation?",
    source="paper 1, figure 2",
    claim="alpha near 1 is best; no activation is clearly best at alpha 1; the identity loses "
    "accuracy.",
    plan=plan,
    findings=findings,
    departures=DEPARTURES,
)
