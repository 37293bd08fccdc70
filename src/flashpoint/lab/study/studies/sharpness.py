"""Powers of relu by the length or by their sum, and a shift: what is near softmax? (open)"""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Series, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    PERCENT,
    arm_table,
    is_planned,
    levels,
    line,
    mean,
    numbers,
    select,
    state_notes,
)
from flashpoint.lab.study.settings import (
    LOSS_OF_A_POINT,
    RELU4_SUM,
    SHIFTED,
    WHOLE_TRAINING,
    Config,
    cut_to,
    pointwise,
    text,
    trial,
    vision,
)
from flashpoint.lab.study.studies.relu_attention import translation
from flashpoint.lab.study.studies.retrieval import recall, recall_tests
from flashpoint.lab.study.verdict import Extreme, Means, judge, judge_quantity

DOCUMENTS, RETRIEVAL, IMAGES = TASKS = ("documents", "retrieval", "images")
POWERS = {"relu": 1, "relu2": 2, "relu3": 3, "relu4": 4, "relu_p6": 6}
"""By activation; ``study/powers.py`` has the last, since the operator's relu6 is no power."""
RULES = ("length", "sum")
SOFTMAX_CROSS, SOFTMAX_SELF = "relu4/sum, softmax in cross", "softmax, relu4/sum in cross"
SOFTMAX, TOKENS = "softmax", 512
BLEU = "translation.bleu"
BLEU_MARGIN, LOSS_MARGIN, RECALL_MARGIN, TOP1_MARGIN = 0.5, 0.05, 5.0, 0.3
"""How far behind softmax is near enough: BLEU, nats a token, points of recall and of top-1."""

_MIXED: Mapping[str, Mapping[str, Any]] = {
    SOFTMAX_CROSS: {"model.attention": RELU4_SUM, "model.cross_attention": SOFTMAX},
    SOFTMAX_SELF: {"model.attention": SOFTMAX, "model.cross_attention": RELU4_SUM},
}
SHIFTS = (SHIFTED, "relu4+4/sum", "relu4+8/sum")
"""What is added to the scores; on documents alone more than one."""
_LENGTHS: Mapping[Scale, int] = {"smoke": 32, "small": TOKENS, "paper": TOKENS}
_IMAGES: Mapping[Scale, Config] = {"smoke": {}, "small": WHOLE_TRAINING, "paper": {}}
_FIRST_IMAGES = (SOFTMAX, "relu/length", RELU4_SUM, SHIFTED)
"""Images take longest. These arms answer the claims; other powers come behind all else."""


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Every power by either rule, softmax and a shift, on three tasks; on documents also mixed."""
    places = [
        (seed, task, attention)
        for seed in range(settings.seeds)
        for task in TASKS
        for attention in _attentions(settings.scale, task)
    ]
    places.sort(key=lambda place: place[1] == IMAGES and place[2] not in _FIRST_IMAGES)
    return tuple(_trial(settings, task, attention, seed) for seed, task, attention in places)


def _attentions(scale: Scale, task: str) -> list[str]:
    if scale == "smoke":
        return {DOCUMENTS: [SOFTMAX, RELU4_SUM], RETRIEVAL: [SOFTMAX], IMAGES: [RELU4_SUM]}[task]
    powers = [f"{activation}/{rule}" for rule in RULES for activation in POWERS]
    return [SOFTMAX, *powers, *((*_MIXED, *SHIFTS) if task == DOCUMENTS else (SHIFTED,))]


def _trial(settings: Settings, task: str, attention: str, seed: int) -> Trial:
    factors = {"task": task, "attention": attention, "seed": seed}
    changes = _MIXED.get(attention, {"model.attention": _spec(attention)})
    if task == IMAGES:
        return trial(factors, vision(settings, seed, {**_IMAGES[settings.scale], **changes}))
    changes = {**changes, "penalty": 0.0}
    if task == RETRIEVAL:
        return trial(factors, recall(settings, seed, changes), recall_tests(settings.scale))
    length = cut_to(settings, _LENGTHS[settings.scale])
    config = text(settings, seed, {**length, **changes})
    return trial(factors, config, [translation(settings.scale)])


def _spec(attention: str) -> Config | str:
    """By the length with alpha 1, as a word of text would not have it."""
    activation, _, rule = attention.partition("/")
    return pointwise(activation, alpha=1.0) if rule == "length" else attention


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Each task against the power, and what power, sum and cross-attention do on documents."""
    most = _most_pairs(outcomes)
    charts = [
        _chart(outcomes, DOCUMENTS, "loss", "Validation loss of documents", "nats a token"),
        _chart(outcomes, DOCUMENTS, BLEU, "BLEU of documents", "BLEU"),
        _chart(
            outcomes, RETRIEVAL, f"pairs{most}.exact", "Recall beyond training", "right answers"
        ),
        _chart(outcomes, IMAGES, "top1", "Accuracy on images", "top-1"),
    ]
    return Findings(
        verdicts=[
            *_near_softmax(outcomes, most, RELU4_SUM),
            *_parts(outcomes),
            *(
                _mixed_verdict(outcomes, *one)
                for one in ((SOFTMAX_CROSS, "cross"), (SOFTMAX_SELF, "self"))
            ),
            *(
                _shift_verdicts(outcomes, most)
                if is_planned(outcomes, "attention", SHIFTED)
                else ()
            ),
        ],
        charts=[chart for chart in charts if chart.series],
        tables=[
            arm_table("sharpness", outcomes, (BLEU, "loss", f"pairs{most}.exact", "top1")),
        ],
        notes=[
            "By the length: alpha 1, without a gain and without ReLUFormer's penalty.",
            f"{SHIFTED} is (1 + s / 2)^4 over its sum: near e^(2 s) while scores are small.",
            *state_notes(outcomes),
        ],
    )


def _most_pairs(outcomes: Sequence[Outcome]) -> int:
    """The most pairs that recall was asked with."""
    names = {name.partition(".")[0] for o in outcomes for name in o.numbers}
    counts = (name.removeprefix("pairs") for name in names if name.startswith("pairs"))
    return max((int(count) for count in counts if count.isdecimal()), default=0)


def _twins(
    outcomes: Sequence[Outcome],
    task: str,
    number: str,
    *attentions: str,
    scale: float = 1.0,
) -> list[list[float]]:
    return [numbers(outcomes, number, scale, task=task, attention=one) for one in attentions]


def _near_softmax(outcomes: Sequence[Outcome], most: int, attention: str) -> list[Verdict]:
    """One attention beside softmax, on every task."""
    twins, no_end = (attention, SOFTMAX), float("inf")
    rows = (
        (DOCUMENTS, BLEU, 1.0, BLEU_MARGIN, "BLEU", f"documents of {TOKENS} tokens"),
        (RETRIEVAL, f"pairs{most}.exact", PERCENT, RECALL_MARGIN, "points of recall", "recall"),
        (IMAGES, "top1", PERCENT, TOP1_MARGIN, "points of top-1", "images"),
    )
    scores = [
        judge(
            f"On {where}, {attention} is at most {margin:g} {unit} below softmax.",
            _twins(outcomes, task, number, *twins, scale=scale),
            (-margin, no_end),
            unit=f"{unit}, {attention} minus softmax",
        )
        for task, number, scale, margin, unit, where in rows
    ]
    losses = [
        judge(
            f"On {task}, {attention}'s validation loss is at most {margin:g} nats above "
            "softmax's.",
            _twins(outcomes, task, "loss", *twins),
            (-no_end, margin),
            unit=f"nats of loss, {attention} minus softmax",
        )
        for task, margin in ((DOCUMENTS, LOSS_MARGIN), (IMAGES, LOSS_OF_A_POINT))
    ]
    return [*scores, *losses]


def _parts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """What the power does alone, the sum alone, and both, in the loss of documents."""

    def differences(first: str, *others: str) -> list[Means]:
        return [Means(_twins(outcomes, DOCUMENTS, "loss", first, other)) for other in others]

    below = (-float("inf"), 0.0)
    lesser = [f"{activation}/sum" for activation, power in POWERS.items() if power < 4]
    rows = (
        ("The power alone helps on documents", "relu4/length", ["relu/length"]),
        ("The sum alone helps on documents", "relu/sum", ["relu/length"]),
        ("Both together help more than either", RELU4_SUM, ["relu4/length", "relu/sum"]),
        ("By the sum, the fourth power is better than those below", RELU4_SUM, lesser),
    )
    return [
        judge_quantity(
            f"{claim}: {first} has a lower validation loss than {', '.join(others)}.",
            Extreme("most", differences(first, *others)),
            below,
            unit=f"nats of loss a token, {first} minus "
            f"{'the best of these' if others[1:] else others[0]}",
        )
        for claim, first, others in rows
    ]


def _shift_verdicts(outcomes: Sequence[Outcome], most: int) -> list[Verdict]:
    """What raised scores do for the fourth power over its sum."""
    return [
        *_near_softmax(outcomes, most, SHIFTED),
        judge(
            f"Raising the scores helps on documents: {SHIFTED} has a lower validation loss than "
            f"{RELU4_SUM}.",
            _twins(outcomes, DOCUMENTS, "loss", SHIFTED, RELU4_SUM),
            (-float("inf"), 0.0),
            unit=f"nats of loss a token, {SHIFTED} minus {RELU4_SUM}",
        ),
    ]


def _mixed_verdict(outcomes: Sequence[Outcome], attention: str, softmax_in: str) -> Verdict:
    return judge(
        f"Softmax in {softmax_in}-attention alone is enough on documents: {attention} has a "
        f"validation loss at most {LOSS_MARGIN:g} nats above softmax's.",
        _twins(outcomes, DOCUMENTS, "loss", attention, SOFTMAX),
        (-float("inf"), LOSS_MARGIN),
        unit=f"nats of loss a token, {attention} minus softmax",
    )


def _chart(outcomes: Sequence[Outcome], task: str, number: str, title: str, y_title: str) -> Chart:
    some = select(outcomes, task=task)
    there = levels(some, "attention")
    series = [
        line(
            f"relu^p / {rule}",
            [
                (power, numbers(some, number, attention=f"{activation}/{rule}"))
                for activation, power in POWERS.items()
            ],
        )
        for rule in RULES
    ]
    series = [one for one in series if one.y]
    softmax = mean(numbers(some, number, attention=SOFTMAX)) if SOFTMAX in there else None
    if softmax is not None:
        ends = [min(POWERS.values()), max(POWERS.values())]
        series.append(Series(name=SOFTMAX, x=ends, y=[softmax, softmax], is_dashed=True))
    is_share = number not in ("loss", BLEU)
    return Chart(
        name=f"sharpness-{task}-{number.rpartition('.')[2]}",
        title=f"{title} against the power of relu",
        caption="Open in both papers. relu to the power p, divided by the length or by its row's "
        "own sum.",
        x_title="p",
        y_title=y_title,
        series=series,
        y_format="percent" if is_share else "",
    )


STUDY = Study(
    name="sharpness",
    question="What does relu lack beside softmax: sharpness, competition, or keys below zero?",
    source="open",
    claim="One would expect a power of relu to sharpen a row, its sum to make keys compete, and "
    "both together to come near softmax; what is still missing may be the keys whose scores are "
    "below zero, which have neither a weight nor a gradient unless scores are raised.",
    plan=plan,
    findings=findings,
)
