"""Does relu / L follow softmax as models grow? (paper 1, figure 1)"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flashpoint.lab.runs.findings import Chart, Findings, Series, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import (
    MOST_SEEDS,
    Evaluation,
    Factor,
    Scale,
    Settings,
    Study,
    Trial,
)
from flashpoint.lab.study.reading import (
    PERCENT,
    arm_table,
    change,
    is_planned,
    levels,
    line,
    mean,
    numbers,
    state_notes,
)
from flashpoint.lab.study.settings import (
    LOSS_OF_A_POINT,
    RELU4_SUM,
    SMALL_IMAGES,
    WHOLE_TRAINING,
    trial,
    vision,
)
from flashpoint.lab.study.verdict import Extreme, Means, judge, judge_quantity

MARGIN = 1.0
"""Points of top-1 that still count as following."""

DEPARTURES = (
    f"{SMALL_IMAGES} ViTs of width 128 to 256 and depth 4 to 8 on patches of 8 and 4 (16 and 64 "
    "tokens), 15 and 60 epochs, where the paper has S/32 to L/16; 10-shot transfer is to digits "
    "alone, and too noisy to be judged."
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


class Course(NamedTuple):
    """A length of training.

    Attributes:
        factors: what tells its trials from others.
        changes: of the config.
        attentions: that take it.
        most_seeds: so many seeds have it at most.
    """

    factors: Mapping[str, Factor]
    changes: Mapping[str, Any]
    attentions: tuple[str, ...] = ("relu", "softmax", RELU4_SUM)
    most_seeds: int = MOST_SEEDS


_COURSES: Mapping[Scale, tuple[Course, ...]] = {
    "smoke": (Course({}, {}, ("relu", "softmax")),),
    # The first came first, and cannot see a gap that opens after 30 epochs: the second judges.
    "small": (
        Course({}, {"epochs": 15}, ("relu", "softmax"), most_seeds=3),
        Course({"epochs": 60}, WHOLE_TRAINING),
    ),
    "paper": (Course({}, {}),),
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Sizes, each with all attentions, and the 10-shot probe of each."""
    return tuple(
        trial(
            {"size": size, "attention": attention, **course.factors, "seed": seed},
            vision(
                settings,
                seed,
                {
                    **course.changes,
                    **_shape(changes),
                    "model.attention": attention,
                },
            ),
            [TRANSFER],
        )
        for course in _COURSES[settings.scale]
        for size, changes in _SIZES[settings.scale].items()
        for seed in range(min(settings.seeds, course.most_seeds))
        for attention in course.attentions
    )


def _shape(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Heads of 64 and four times the width in the MLP, where a width is given."""
    width = changes.get("model.width")
    if width is None:
        return dict(changes)
    return {**changes, "model.num_heads": width // 64, "model.mlp_dim": 4 * width}


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Accuracy and transfer against cost, and whether relu / L keeps up at every size."""
    judged = [o for o in outcomes if "epochs" in o.factors] or outcomes
    return Findings(
        verdicts=_verdicts(judged),
        charts=[
            _chart(judged, "flops", "top1", "Accuracy against compute", "training FLOPs"),
            _chart(
                judged,
                "seconds",
                "top1",
                "Accuracy against time",
                "seconds of training",
                SHARED,
            ),
            _chart(
                judged,
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
            *(["The trials of 60 epochs are judged and drawn."] if judged != outcomes else []),
            *state_notes(outcomes),
        ],
    )


def _verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Of relu / L, and of the fourth power over its sum where it is planned."""
    sizes = levels(outcomes, "size")
    ends = [*_twins(outcomes, sizes[-1]), *_twins(outcomes, sizes[0])] if sizes[1:] else [[]]
    top1, loss = _worst_verdicts(outcomes, "relu/L", "relu")
    growth = judge(
        "From the smallest to the largest size relu/L loses no more than "
        f"{MARGIN:g} point on softmax.",
        ends,
        (-MARGIN, float("inf")),
        unit="points of top-1, relu/L's lead over softmax at the largest size minus that at "
        "the smallest",
        quantity=change,
    )
    has_sum = is_planned(outcomes, "attention", RELU4_SUM)
    by_sum = _worst_verdicts(outcomes, RELU4_SUM, RELU4_SUM) if has_sum else []
    return [top1, growth, loss, *by_sum]


def _worst_verdicts(outcomes: Sequence[Outcome], name: str, attention: str) -> list[Verdict]:
    """Of accuracy and of loss, where an attention is farthest behind softmax."""
    sizes = levels(outcomes, "size")
    points = [Means(_twins(outcomes, size, attention)) for size in sizes]
    nats = [Means(_twins(outcomes, size, attention, "loss", 1.0)) for size in sizes]
    return [
        judge_quantity(
            f"{name} is at most {MARGIN:g} point of top-1 below softmax at every size.",
            Extreme("least", points),
            (-MARGIN, float("inf")),
            unit=f"points of top-1, {name} minus softmax at the worst size",
        ),
        judge_quantity(
            f"{name}'s validation loss is at most {LOSS_OF_A_POINT:g} nats above softmax's at "
            "every size.",
            Extreme("most", nats),
            (-float("inf"), LOSS_OF_A_POINT),
            unit=f"nats of loss, {name} minus softmax at the worst size",
        ),
    ]


def _twins(
    outcomes: Sequence[Outcome],
    size: Factor,
    attention: str = "relu",
    number: str = "top1",
    scale: float = PERCENT,
) -> list[list[float]]:
    return [
        numbers(outcomes, number, scale, size=size, attention=one)
        for one in (attention, "softmax")
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
        series=[series(str(attention)) for attention in levels(outcomes, "attention")],
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
