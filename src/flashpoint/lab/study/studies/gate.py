"""Does a gate make the length factor superfluous, and what does it cost? (paper 1, figure 4)"""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Factor, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    PERCENT,
    along,
    arm_table,
    levels,
    numbers,
    select,
    state_notes,
)
from flashpoint.lab.study.settings import (
    SMALL_IMAGES,
    SMALL_VIT,
    pointwise,
    step_times,
    trial,
    vision,
)
from flashpoint.lab.study.verdict import Extreme, Means, judge, judge_quantity

GATES = {"without": "none", "with": "sigmoid"}
PAPER_COST = 9.3
"""Percent more core hours on S/8, the only timing in the paper."""
DEPARTURES = f"{SMALL_IMAGES} {SMALL_VIT} Steps are timed compiled, on patches of 2 (256 tokens)."

_ALPHAS: Mapping[Scale, tuple[float, ...]] = {
    "smoke": (0.0, 1.0),
    "small": (0.0, 0.5, 1.0, 1.5),
    "paper": (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0),
}
_TIMED: Mapping[Scale, Mapping[str, Any]] = {  # many tokens, as S/8 has
    "smoke": {},
    "small": {"model.patch_size": 2},
    "paper": {"model.name": "vit_s8", "batch_size": 64},
}
_TURNS: Mapping[Scale, Mapping[str, int]] = {
    "smoke": {"steps": 3, "rounds": 3},
    "small": {"steps": 50, "rounds": 7},
    "paper": {"steps": 10, "rounds": 7},
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Both at every alpha; and their steps timed in turns, once for each seed."""
    return tuple(
        trial(
            {"gate": word, "alpha": alpha, "seed": seed},
            vision(
                settings,
                seed,
                {
                    **_size(settings),
                    "model.gate": gate,
                    "model.attention": pointwise(alpha=alpha),
                },
            ),
        )
        for seed in range(settings.seeds)
        for alpha in _ALPHAS[settings.scale]
        for word, gate in GATES.items()
    ) + tuple(_timing(settings, seed) for seed in range(settings.seeds))


def _size(settings: Settings) -> Mapping[str, str]:
    """The paper times S/8."""
    return {"model.name": "vit_s8"} if settings.scale == "paper" else {}


def _timing(settings: Settings, seed: int) -> Trial:
    changes = {
        word: {**_TIMED[settings.scale], "model.gate": gate} for word, gate in GATES.items()
    }
    return step_times(settings, {"measured": "time"}, seed, changes, _TURNS[settings.scale])


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Accuracy against alpha with and without a gate, and the ratio of their times."""
    return Findings(
        verdicts=[_needs_length(outcomes), _cost(outcomes), _needs_length_by_loss(outcomes)],
        charts=[
            Chart(
                name="gate",
                title="Accuracy against the power of the length, with and without a gate",
                caption="Paper 1, figure 4: a gated unit still needs the length factor. "
                "Here: a sigmoid gate without bias, which the paper does not specify.",
                x_title="alpha in L^-alpha",
                y_title="top-1",
                series=[
                    along(f"{word} gate", outcomes, "alpha", "top1", gate=word) for word in GATES
                ],
                y_format="percent",
            )
        ],
        tables=[arm_table("gate", outcomes, ("top1", "loss", "without_s", "with_s"))],
        notes=[
            "Time is that of single training steps, with and without in turns in one process "
            "that runs alone: after all others here, on a GPU of its own on Ray. The runs' own "
            "images per second are not compared.",
            *state_notes(outcomes),
        ],
    )


def _needs_length(outcomes: Sequence[Outcome]) -> Verdict:
    return judge_quantity(
        "With a gate, alpha 1 is still better than every alpha up to 0.5.",
        Extreme("least", _one_less_low(outcomes, "top1", PERCENT)),
        (0.0, float("inf")),
        unit="points of top-1, alpha 1 minus the best of the others",
    )


def _needs_length_by_loss(outcomes: Sequence[Outcome]) -> Verdict:
    return judge_quantity(
        "With a gate, alpha 1 still has a lower validation loss than every alpha up to 0.5.",
        Extreme("most", _one_less_low(outcomes, "loss", 1.0)),
        (-float("inf"), 0.0),
        unit="nats of loss, alpha 1 minus the best of the others",
    )


def _one_less_low(outcomes: Sequence[Outcome], number: str, scale: float) -> list[Means]:
    """With a gate, a number at alpha 1 less that at each alpha up to 0.5."""
    alphas = levels(select(outcomes, gate="with"), "alpha")
    low = [alpha for alpha in alphas if not isinstance(alpha, str) and alpha <= 0.5]

    def at(alpha: Factor) -> list[float]:
        return numbers(outcomes, number, scale, gate="with", alpha=alpha)

    one = at(1.0)
    return [Means([one, at(alpha)]) for alpha in low]


def _cost(outcomes: Sequence[Outcome]) -> Verdict:
    half = PAPER_COST / 2
    return judge(
        f"A gate makes a training step {PAPER_COST - half:.1f}% to {PAPER_COST + half:.1f}% "
        f"longer (the paper: {PAPER_COST}% on S/8).",
        [numbers(outcomes, name, measured="time") for name in ("with_s", "without_s")],
        (PAPER_COST - half, PAPER_COST + half),
        unit="% more time a step",
        quantity=lambda gated, plain: PERCENT * (gated / plain - 1.0),
    )


STUDY = Study(
    name="gate",
    question="Does a gate make the length factor superfluous, and what does it cost?",
    source="paper 1, figure 4",
    claim="A gated attention unit does not remove the need for the length factor, and costs about "
    "9.3% more core hours on S/8.",
    plan=plan,
    findings=findings,
    departures=DEPARTURES,
)
