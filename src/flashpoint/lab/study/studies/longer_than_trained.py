"""Train at one length, test at others: which rule for the length holds? (open)"""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Series, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Evaluation, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    PERCENT,
    arm_table,
    change,
    is_planned,
    levels,
    line,
    numbers,
    state_notes,
)
from flashpoint.lab.study.settings import LOSS_OF_A_POINT, RELU4_SUM, pointwise, trial, vision
from flashpoint.lab.study.verdict import judge

ATTENTIONS: Mapping[str, Any] = {
    "softmax": "softmax",
    "relu, alpha 1": pointwise(alpha=1.0),
    "relu, alpha 0.5": pointwise(alpha=0.5),
    RELU4_SUM: RELU4_SUM,
}
RELU = "relu, alpha 1"
BY_LENGTH = (RELU, "relu, alpha 0.5")
"""Those that are divided by a length, for which there are two rules."""
SEEN, FIXED = "keys seen", "training length"
MARGIN = 2.0

_SIDES: Mapping[Scale, tuple[int, tuple[int, ...]]] = {  # of training, of tests
    "smoke": (8, (4, 8, 16)),
    "small": (32, (16, 24, 32, 48, 64, 96)),
    "paper": (224, (112, 160, 224, 320, 448)),
}
_PATCHES: Mapping[Scale, int] = {"smoke": 2, "small": 4, "paper": 16}
_EXTRA: Mapping[Scale, int] = {"smoke": 0, "small": 0, "paper": 1}  # the class token
_PREFIX = {SEEN: "seen", FIXED: "fixed"}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """All attentions; at the training length both rules are the same function."""
    tokens = _tokens(settings.scale, _SIDES[settings.scale][0])
    return tuple(
        trial(
            {"attention": attention, "trained_tokens": tokens, "seed": seed},
            vision(settings, seed, {"model.attention": spec}),
            _evaluations(settings.scale, has_rules=attention in BY_LENGTH),
        )
        for seed in range(settings.seeds)
        for attention, spec in ATTENTIONS.items()
    )


def _evaluations(scale: Scale, *, has_rules: bool) -> list[Evaluation]:
    """Images in other sizes, so with other numbers of tokens, by either rule."""
    trained, sides = _SIDES[scale]
    length = float(_tokens(scale, trained))
    found: list[Evaluation] = []
    for side in sides:
        name = f"{_tokens(scale, side)}"
        size = {"data.image_size": side}
        found.append(Evaluation(name=f"seen{name}", kind="classify", options=size))
        if has_rules:
            fixed = {**size, "model.attention.length": length}
            found.append(Evaluation(name=f"fixed{name}", kind="classify", options=fixed))
    return found


def _tokens(scale: Scale, side: int) -> int:
    return (side // _PATCHES[scale]) ** 2 + _EXTRA[scale]


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Accuracy against tokens at test time, by attention and rule."""
    return Findings(
        verdicts=_verdicts(outcomes),
        charts=[_chart(outcomes)],
        tables=[
            arm_table(
                "longer-than-trained",
                outcomes,
                (
                    "top1",
                    *(
                        f"{prefix}{tokens}.top1"
                        for prefix in _PREFIX.values()
                        for tokens in _measured(outcomes)
                    ),
                ),
            )
        ],
        notes=[
            "More tokens are the same images in a larger size, positions interpolated: what is "
            "lost also comes from objects that cover more patches than in training.",
            *state_notes(outcomes),
        ],
    )


def _measured(outcomes: Sequence[Outcome]) -> list[int]:
    """Numbers of tokens that models were tested at."""
    names = {name.partition(".")[0] for outcome in outcomes for name in outcome.numbers}
    prefix = _PREFIX[SEEN]
    counts = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return sorted(int(count) for count in counts if count.isdecimal())


def _trained(outcomes: Sequence[Outcome]) -> int:
    """The number of tokens of training."""
    return max((int(tokens) for tokens in levels(outcomes, "trained_tokens")), default=0)


def _verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    relu = ("relu/L divided by the keys seen", "relu/L", RELU)
    by_sum = [(RELU4_SUM,) * 3] if is_planned(outcomes, "attention", RELU4_SUM) else []
    return [
        _keeps_up(outcomes, *relu),
        *_rule_verdicts(outcomes),
        *(_keeps_up(outcomes, *one) for one in by_sum),
        *(_keeps_its_loss(outcomes, *one) for one in (relu, *by_sum)),
    ]


def _longest(outcomes: Sequence[Outcome]) -> tuple[int, str]:
    """The most tokens of a test, as a number and in words."""
    longest = max(_measured(outcomes), default=0)
    return longest, f"{longest} tokens" if longest else "the longest"


def _keeps_up(outcomes: Sequence[Outcome], name: str, short: str, attention: str) -> Verdict:
    longest, words = _longest(outcomes)
    return judge(
        f"At {words}, {name} loses no more than softmax, up to {MARGIN:g} points.",
        _there_and_trained(outcomes, longest, attention, "top1", PERCENT),
        (-MARGIN, float("inf")),
        unit=f"points of top-1, {short}'s change minus softmax's at {words}",
        quantity=change,
    )


def _keeps_its_loss(outcomes: Sequence[Outcome], name: str, short: str, attention: str) -> Verdict:
    longest, words = _longest(outcomes)
    margin = MARGIN * LOSS_OF_A_POINT
    return judge(
        f"At {words}, the loss of {name} grows by no more than softmax's, up to {margin:g} nats.",
        _there_and_trained(outcomes, longest, attention, "loss", 1.0),
        (-float("inf"), margin),
        unit=f"nats of loss, {short}'s change minus softmax's at {words}",
        quantity=change,
    )


def _there_and_trained(
    outcomes: Sequence[Outcome], longest: int, attention: str, number: str, scale: float
) -> list[list[float]]:
    """Of an attention and of softmax: at the most tokens, and at those of training."""
    return [
        numbers(outcomes, f"{_PREFIX[SEEN]}{tokens}.{number}", scale, attention=one)
        for one in (attention, "softmax")
        for tokens in (longest, _trained(outcomes))
    ]


def _rule_verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Of relu / L by the keys seen less by the training length: accuracy, and loss."""
    longest, words = _longest(outcomes)
    by_length = "relu/L by keys seen minus relu/L by training length"

    def both(number: str, scale: float) -> list[list[float]]:
        return [
            numbers(outcomes, f"{_PREFIX[rule]}{longest}.{number}", scale, attention=RELU)
            for rule in (SEEN, FIXED)
        ]

    return [
        judge(
            f"At {words}, dividing by the keys seen is better for relu/L than by the training "
            "length.",
            both("top1", PERCENT),
            (0.0, float("inf")),
            unit=f"points of top-1, {by_length} at {words}",
        ),
        judge(
            f"At {words}, relu/L's loss is lower divided by the keys seen than by the training "
            "length.",
            both("loss", 1.0),
            (-float("inf"), 0.0),
            unit=f"nats of loss, {by_length} at {words}",
        ),
    ]


def _chart(outcomes: Sequence[Outcome]) -> Chart:
    tokens = _measured(outcomes)
    series: list[Series] = []
    for attention in levels(outcomes, "attention"):
        for rule, prefix in _PREFIX.items():
            points = [
                (n, numbers(outcomes, f"{prefix}{n}.top1", attention=attention)) for n in tokens
            ]
            name = f"{attention}, {rule}" if attention in BY_LENGTH else str(attention)
            series.append(line(name, points, is_dashed=rule == FIXED))
    return Chart(
        name="longer-than-trained",
        title="Accuracy at other numbers of tokens than in training",
        caption="Open in both papers. Divided by the keys that a query sees, or by the number it "
        f"saw in training, {_trained(outcomes)}.",
        x_title="tokens of an image at test time",
        y_title="top-1",
        series=[some for some in series if some.y],
        x_is_log=True,
        y_format="percent",
    )


STUDY = Study(
    name="longer-than-trained",
    question="Which rule for the length holds at lengths that training did not see?",
    source="open",
    claim="One would expect relu/L to carry over as softmax does if it divides by the keys seen.",
    plan=plan,
    findings=findings,
)
