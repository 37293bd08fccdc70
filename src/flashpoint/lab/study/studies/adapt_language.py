"""What is left of a softmax language model whose attention is replaced? (open)"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flashpoint.lab.runs.findings import Chart, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Evaluation, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import arm_table, line, numbers, state_notes
from flashpoint.lab.study.settings import language, pointwise, trial
from flashpoint.lab.study.studies.adapt import name_stage
from flashpoint.lab.study.verdict import Runs, judge

ATTENTIONS: Mapping[str, object] = {
    "relu": pointwise(),
    "relu4/sum": pointwise("relu4", normalize="sum"),
}
LAYERS: Mapping[str, str] = {"all": "all layers", "every_second": "every second layer"}
SHARES: Mapping[int, float] = {5: 0.05, 20: 0.2}
"""Of the training's updates, in percent and as they are."""
NEAR, NEAR_HALF = 0.1, 0.05
"""Nats of loss by which all layers, and every second one, may be worse."""
KEPT = 0.5
"""Of softmax's lead over a guess in finding planted keys, what an adapted model is to keep."""
GUESS = 1 / 8
"""Share of planted keys that a guess finds, of as many as the evaluation offers."""

_NAMES = {"relu": "relu", "relu4/sum": "relu4_sum"}
_DISTANCES: Mapping[Scale, tuple[int, ...]] = {
    "smoke": (4, 8),
    "small": (32, 128, 384),
    "paper": (32, 128, 512, 896),
}
_COUNTS: Mapping[Scale, int] = {"smoke": 4, "small": 64, "paper": 128}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Softmax, converted and adapted to each attention; each from scratch.

    Softmax goes first: what comes after its training takes longest.
    """
    scale = settings.scale
    asked: dict[str, Any] = {"distances": list(_DISTANCES[scale]), "count": _COUNTS[scale]}
    own = Evaluation(name="test", kind="language", options=asked)
    return tuple(
        trial(
            {"attention": word, "seed": seed},
            language(settings, seed, {"model.attention": attention}),
            [own, *(_conversions(asked) if word == "softmax" else [])],
        )
        for word, attention in {"softmax": "softmax", **ATTENTIONS}.items()
        for seed in range(settings.seeds)
    )


def _conversions(asked: Mapping[str, Any]) -> list[Evaluation]:
    found: list[Evaluation] = []
    for word, name in _NAMES.items():
        for layers in LAYERS:
            to = {"attention": word, "layers": layers, **asked}
            found.append(Evaluation(name=f"{name}_{layers}", kind="convert_language", options=to))
            found += [
                Evaluation(
                    name=f"{name}_{layers}_{percent}",
                    kind="adapt_language",
                    options={**to, "share": share},
                )
                for percent, share in SHARES.items()
            ]
    return found


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Loss, likelihood and keys of every stage, beside softmax's and those from scratch."""
    columns = [f"test.{key}" for key in ("loss", "perplexity", "likelihood", "text", "keys")]
    for name in (f"{name}_{layers}" for name in _NAMES.values() for layers in LAYERS):
        keys = ("perplexity", "likelihood", "keys")
        columns += [f"{name}.{stage}_{key}" for stage in _MADE for key in keys]
        columns += [f"{name}_{percent}.{key}" for percent in SHARES for key in keys]
    return Findings(
        verdicts=[verdict for word in ATTENTIONS for verdict in _verdicts(outcomes, word)],
        charts=[_chart(outcomes, *chart) for chart in _CHARTS],
        tables=[arm_table("adapt-language", outcomes, columns)],
        notes=state_notes(outcomes),
    )


_MADE = ("converted", "calibrated")
_CAPTION = (
    "Converted: the same weights with other attention. Calibrated: with a gain, a bias and a "
    "scale for each head, fitted to softmax's output. Adapted: layers matched, then fine-tuned, "
    "in 5% and 20% of the updates of training."
)
_CHARTS = (
    ("loss", "Loss of a softmax GPT-2 whose attention was replaced", "nats a token", _CAPTION),
    (
        "likelihood",
        "What the models write, judged by the softmax model",
        "log-likelihood a token",
        "Continuations of test prompts, each token drawn by the model's own probabilities. "
        "At softmax, the softmax model's own by the same rule.",
    ),
    (
        "keys",
        "Planted keys that are found",
        "share",
        "A sentence with a random number stands in a real passage and is asked for at its end. "
        "The right number must be the likeliest of eight; the mean over distances.",
    ),
)


def _chart(outcomes: Sequence[Outcome], key: str, title: str, y_title: str, caption: str) -> Chart:
    return Chart(
        name=f"adapt-language-{key}",
        title=title,
        caption=caption,
        x_title="model",
        y_title=y_title,
        series=[
            line(
                f"{word}, {shown}",
                list(_stages(outcomes, word, layers, key).items()),
                has_line=False,
            )
            for word in ATTENTIONS
            for layers, shown in LAYERS.items()
        ],
        y_format="percent" if key == "keys" else "",
    )


def _stages(outcomes: Sequence[Outcome], word: str, layers: str, key: str) -> dict[str, Runs]:
    """A number by what was done; models from scratch are judged by nobody but themselves."""

    def softmax(number: str) -> Runs:
        return numbers(outcomes, number, attention="softmax")

    name = f"{_NAMES[word]}_{layers}"
    found = {stage: softmax(f"{name}.{stage}_{key}") for stage in _MADE}
    found |= {f"adapted {n}%": softmax(f"{name}_{n}.{key}") for n in SHARES}
    found["softmax"] = softmax(f"test.{key}")
    if key != "likelihood":
        found["from scratch"] = numbers(outcomes, f"test.{key}", attention=word)
    return found


def _verdicts(outcomes: Sequence[Outcome], word: str) -> list[Verdict]:
    losses = {layers: _stages(outcomes, word, layers, "loss") for layers in LAYERS}
    every, half = losses["all"], losses["every_second"]
    last = f"adapted {max(SHARES)}%"
    told = f"{word} adapted in {max(SHARES)}% of the updates"
    claims = (
        (f"Calibration makes converted {word} better.", every, "converted", "calibrated", 0.0),
        (f"{told} is within {NEAR:g} nats of softmax.", every, "softmax", last, -NEAR),
        (
            f"{told} in every second layer is within {NEAR_HALF:g} nats of softmax.",
            *(half, "softmax", last, -NEAR_HALF),
        ),
        (
            f"{told} is within {NEAR:g} nats of {word} from scratch, or better.",
            *(every, "from scratch", last, -NEAR),
        ),
    )
    keys = _stages(outcomes, word, "all", "keys")
    return [
        *(
            judge(
                claim,
                [stages[first], stages[second]],
                (least, float("inf")),
                unit=f"nats of loss, {name_stage(first, word)} minus {name_stage(second, word)}"
                f"{' in every second layer' if stages is half else ''}",
            )
            for claim, stages, first, second, least in claims
        ),
        judge(
            f"{told} keeps half of softmax's lead over a guess in finding planted keys.",
            [keys[last], keys["softmax"]],
            (KEPT, float("inf")),
            unit="of softmax's lead over a guess",
            quantity=_share_of_lead,
        ),
    ]


def _share_of_lead(found: np.ndarray, softmax: np.ndarray) -> np.ndarray:
    """Shares of keys less that of a guess; where softmax guesses too, nothing can be said."""
    return (found - GUESS) / (softmax - GUESS)


STUDY = Study(
    name="adapt-language",
    question="What is left of a softmax language model whose attention is replaced?",
    source="open",
    claim="One would expect a converted model to lose much, calibration to bring some of it back, "
    "a fifth of the training to bring back nearly all, and less to be lost where every second "
    "layer keeps softmax.",
    plan=plan,
    findings=findings,
)
