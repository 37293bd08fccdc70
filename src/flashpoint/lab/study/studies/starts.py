"""Which start lets relu4/sum learn documents best? (open)"""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import arm_table, levels, line, numbers, state_notes
from flashpoint.lab.study.settings import RELU4_SUM, cut_to, pointwise, text, trial
from flashpoint.lab.study.verdict import judge

PLAIN = "plain"
STARTS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"model.attention": RELU4_SUM},
    "qk-norm": {"model.attention": RELU4_SUM, "model.qk_norm": "layer"},
    # Scores are products of q and k, so that their deviation goes with the square of the start.
    "larger start": {"model.attention": RELU4_SUM, "model.qkv_init": 1.5},
    "smaller start": {"model.attention": RELU4_SUM, "model.qkv_init": 0.4},
    "floor 1e-5": {"model.attention": pointwise("relu4", normalize="sum", floor=1e-5)},
}
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
        verdicts=[_verdict(outcomes, start) for start in others],
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
            "How far seeds are apart is shown, not judged: to tell a deviation from one half as "
            "large takes some 24 seeds of both.",
            "Starts are compared on the validation documents by which the studies sentences and "
            "document-length judge relu4/sum with a norm of q and k too.",
            *state_notes(outcomes),
        ],
    )


def _verdict(outcomes: Sequence[Outcome], start: str) -> Verdict:
    return judge(
        f"{RELU4_SUM} has a lower validation loss with {start} than plain.",
        [numbers(outcomes, "loss", start=one) for one in (start, PLAIN)],
        (-float("inf"), 0.0),
        unit=f"nats of loss a token, {RELU4_SUM} with {start} minus plain",
    )


STUDY = Study(
    name="starts",
    question="Which start lets relu4/sum learn documents best?",
    source="open",
    claim="One would expect small scores at the start to halve the output, so that larger ones, a "
    "norm of q and k or a smaller floor lower the loss.",
    plan=plan,
    findings=findings,
)
