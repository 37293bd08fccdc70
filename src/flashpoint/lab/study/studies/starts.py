"""Why do seeds of relu4/sum differ so much on documents: is it how it starts? (open)"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flashpoint.lab.runs.findings import Chart, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import arm_table, finite, levels, line, numbers, state_notes
from flashpoint.lab.study.settings import RELU4_SUM, cut_to, pointwise, text, trial
from flashpoint.lab.study.verdict import LEAST_SEEDS, Runs, judge

PLAIN = "plain"
STARTS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"model.attention": RELU4_SUM},
    "qk-norm": {"model.attention": RELU4_SUM, "model.qk_norm": "layer"},
    # Scores are products of q and k, so that their deviation goes with the square of the start.
    "larger start": {"model.attention": RELU4_SUM, "model.qkv_init": 1.5},
    "smaller start": {"model.attention": RELU4_SUM, "model.qkv_init": 0.4},
    "floor 1e-5": {"model.attention": pointwise("relu4", normalize="sum", floor=1e-5)},
}
SMALLEST = 1e-9
"""A deviation in nats under which losses are the same."""

_LENGTHS: Mapping[Scale, int] = {"smoke": 32, "small": 512, "paper": 512}
_COUNTS: Mapping[Scale, int] = {"smoke": 2, "small": len(STARTS), "paper": len(STARTS)}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Documents with relu4/sum everywhere, by ways to start."""
    length = cut_to(settings, _LENGTHS[settings.scale])
    return tuple(
        trial({"start": start, "seed": seed}, text(settings, seed, {**length, **changes}))
        for seed in range(settings.seeds)
        for start, changes in list(STARTS.items())[: _COUNTS[settings.scale]]
    )


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Loss and its spread over seeds, by the start."""
    others = [start for start in STARTS if start != PLAIN]
    return Findings(
        verdicts=[judged(outcomes, start) for judged in (_loss, _spread) for start in others],
        charts=[
            Chart(
                name="starts-loss",
                title="Validation loss by the start",
                caption="relu4's mean weight is 1.5 with scores of deviation 1, and as small as "
                "the floor, 0.001, at 0.16: there the output is halved. A smaller start begins at "
                "0.16, a larger one at 2.25.",
                x_title="start",
                y_title="cross-entropy of a token, in nats",
                series=[
                    line(
                        RELU4_SUM,
                        [
                            (str(start), numbers(outcomes, "loss", start=start))
                            for start in levels(outcomes, "start")
                        ],
                        has_line=False,
                    )
                ],
            )
        ],
        tables=[arm_table("starts", outcomes, ("loss", "token_accuracy", "train_loss"))],
        notes=[
            "Spreads take seeds: with eight, deviations within a factor of two of each other are "
            "hardly told apart.",
            *state_notes(outcomes),
        ],
    )


def _loss(outcomes: Sequence[Outcome], start: str) -> Verdict:
    return judge(
        f"{RELU4_SUM} has a lower validation loss with {start} than plain.",
        [numbers(outcomes, "loss", start=one) for one in (start, PLAIN)],
        (-float("inf"), 0.0),
        unit=f"nats of loss a token, {RELU4_SUM} with {start} minus plain",
    )


def _spread(outcomes: Sequence[Outcome], start: str) -> Verdict:
    return judge(
        f"Seeds of {RELU4_SUM} differ less with {start} than plain.",
        [_log_spreads(numbers(outcomes, "loss", start=one)) for one in (start, PLAIN)],
        (-float("inf"), 0.0),
        unit=f"log units of spread over seeds, {RELU4_SUM} with {start} minus plain",
        lack=f"A deviation to compare takes {LEAST_SEEDS} seeds of both.",
    )


def _log_spreads(runs: Runs) -> Runs:
    """Pseudo-values of the logarithm of the deviation, one for each run (Miller's jackknife).

    Their mean is that logarithm, less most of its bias, and they scatter as it does when seeds are
    drawn again: so two deviations are compared as two means are.
    """
    if len(runs) < LEAST_SEEDS:
        return Runs((), (), runs.failed)
    sound = np.array(finite(runs))
    whole = _log_deviation(sound)
    parts = iter([_log_deviation(np.delete(sound, n)) for n in range(len(sound))])
    values = (
        len(sound) * whole - (len(sound) - 1) * next(parts) if math.isfinite(loss) else math.nan
        for loss in runs
    )
    return Runs(values, runs.finished, runs.failed)


def _log_deviation(losses: np.ndarray) -> float:
    deviation = float(losses.std(ddof=1)) if len(losses) > 1 else 0.0
    return math.log(max(deviation, SMALLEST))


STUDY = Study(
    name="starts",
    question="Do seeds of relu4/sum differ because of how it starts?",
    source="open",
    claim="One would expect small scores at the start to halve the output, so that larger ones, a "
    "norm of q and k or a smaller floor bring seeds together.",
    plan=plan,
    findings=findings,
)
