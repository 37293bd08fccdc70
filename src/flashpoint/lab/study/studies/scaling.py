"""Does relu / L follow softmax as models grow? (paper 1, figure 1)"""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Series, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Evaluation, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    PERCENT,
    arm_table,
    change,
    levels,
    line,
    mean,
    numbers,
    state_notes,
)
from flashpoint.lab.study.settings import SMALL_IMAGES, trial, vision
from flashpoint.lab.study.verdict import Extreme, Means, judge, judge_quantity

MARGIN = 1.0
"""Points of top-1 that still count as following."""

DEPARTURES = (
    f"{SMALL_IMAGES} ViTs of width 128 to 256 and depth 4 to 8 on patches of 8 and 4 (16 and 64 "
    "tokens), 15 epochs, where the paper has S/32 to L/16; 10-shot transfer is to digits alone."
)
SHARED = (
    "Seconds are of runs that may have shared a GPU, and at small of uncompiled ones, with "
    "softmax's norms in PyTorch's own kernels: to compare times is for the study speed."
)
TRANSFER = Evaluation(
    name="transfer", kind="probe", options={"data": "digits", "shots": 10, "seeds": 3}
)

_SIZES: Mapping[Scale, Mapping[str, Mapping[str, Any]]] = {
    "smoke": {
        "32/4": {"model.patch_size": 4},
        "32/2": {"model.patch_size": 2},
    },
    "small": {
        "128/8": {**{"model.width": 128, "model.depth": 4}, "model.patch_size": 8},
        "128/4": {"model.width": 128, "model.depth": 4},
        "192/4": {},
        "256/4": {"model.width": 256, "model.depth": 8},
    },
    "paper": {
        "S/32": {
            **{"model.name": "vit_s32", "data.augmentation.mixup": 0.2},
            "data.augmentation.randaug_magnitude": 15.0,
        },
        "S/16": {"model.name": "vit_s16"},
        "B/32": {"model.name": "vit_b32"},
        "B/16": {"model.name": "vit_b16"},
        "L/16": {"model.name": "vit_l16"},
    },
}
_EPOCHS: Mapping[Scale, Mapping[str, Any]] = {"smoke": {}, "small": {"epochs": 15}, "paper": {}}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Sizes, each with both attentions, and the 10-shot probe of each."""
    return tuple(
        trial(
            {"size": size, "attention": attention, "seed": seed},
            vision(
                settings,
                seed,
                {
                    **_EPOCHS[settings.scale],
                    **_shape(changes),
                    "model.attention": attention,
                },
            ),
            [TRANSFER],
        )
        for size, changes in _SIZES[settings.scale].items()
        for seed in range(settings.seeds)
        for attention in ("relu", "softmax")
    )


def _shape(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Heads of 64 and four times the width in the MLP, where a width is given."""
    width = changes.get("model.width")
    if width is None:
        return dict(changes)
    return {**changes, "model.num_heads": width // 64, "model.mlp_dim": 4 * width}


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Accuracy and transfer against cost, and whether relu / L keeps up at every size."""
    return Findings(
        verdicts=_verdicts(outcomes),
        charts=[
            _chart(outcomes, "flops", "top1", "Accuracy against compute", "training FLOPs"),
            _chart(
                outcomes,
                "seconds",
                "top1",
                "Accuracy against time",
                "seconds of training",
                SHARED,
            ),
            _chart(
                outcomes,
                "flops",
                "transfer.mean",
                "10-shot transfer against compute",
                "training FLOPs",
            ),
        ],
        tables=[
            arm_table(
                "scaling",
                outcomes,
                ("top1", "loss", "transfer.mean", "flops", "seconds", "samples_per_s"),
            )
        ],
        notes=[
            SHARED,
            *state_notes(outcomes),
        ],
    )


def _verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    sizes = levels(outcomes, "size")

    def both(number: str, size: Any) -> list[list[float]]:
        return [
            numbers(outcomes, number, PERCENT, size=size, attention=attention)
            for attention in ("relu", "softmax")
        ]

    def worst(number: str) -> Extreme:
        return Extreme("least", [Means(both(number, size)) for size in sizes])

    ends = [*both("top1", sizes[-1]), *both("top1", sizes[0])] if len(sizes) > 1 else [[]]
    return [
        judge_quantity(
            f"relu/L is at most {MARGIN:g} point of top-1 below softmax at every size.",
            worst("top1"),
            (-MARGIN, float("inf")),
            unit="points of top-1, the worst size",
        ),
        judge(
            "From the smallest to the largest size relu/L loses no more than "
            f"{MARGIN:g} point on softmax.",
            ends,
            (-MARGIN, float("inf")),
            unit="points of top-1, gap at the largest size less that at the smallest",
            quantity=change,
        ),
        judge_quantity(
            f"relu/L is at most {MARGIN:g} point below softmax in 10-shot transfer at every size.",
            worst("transfer.mean"),
            (-MARGIN, float("inf")),
            unit="points of 10-shot accuracy, the worst size",
        ),
    ]


def _chart(
    outcomes: Sequence[Outcome], x: str, number: str, title: str, x_title: str, *remarks: str
) -> Chart:
    def series(attention: str) -> Series:
        places = [
            (
                mean(numbers(outcomes, x, size=size, attention=attention)),
                numbers(outcomes, number, size=size, attention=attention),
            )
            for size in levels(outcomes, "size")
        ]
        name = "relu / L" if attention == "relu" else attention
        return line(name, [(place, values) for place, values in places if place is not None])

    sizes = ", ".join(map(str, levels(outcomes, "size")))
    claim = "Paper 1, figure 1: relu/L lies on or near softmax's line from S/32 to L/16."
    return Chart(
        name=f"scaling-{number.partition('.')[0]}-{x}",
        title=title,
        caption=" ".join(
            (claim, f"Here: sizes {sizes} (width/patch), from left to right.", *remarks)
        ),
        x_title=x_title,
        y_title="top-1" if number == "top1" else "10-shot accuracy on digits",
        series=[series(attention) for attention in ("relu", "softmax")],
        x_is_log=True,
        y_format="percent",
    )


STUDY = Study(
    name="scaling",
    question="Does relu/L follow softmax as models grow?",
    source="paper 1, figure 1",
    claim="relu/L approaches or matches softmax in accuracy against compute, from S/32 to L/16.",
    plan=plan,
    findings=findings,
    departures=DEPARTURES,
)
