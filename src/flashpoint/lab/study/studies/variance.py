"""Output variance against the number of keys: closed form beside measurement (both papers)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flashpoint.lab.runs.findings import Chart, DataTable, Findings, Series, Verdict
from flashpoint.lab.study.moments import ACTIVATIONS, mean_square, output_variance, variance_name
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Measurement, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import line, mean, numbers, state_notes
from flashpoint.lab.study.settings import name_of
from flashpoint.lab.study.verdict import Distance, Extreme, Means, judge, judge_quantity

ALPHAS = (0.0, 0.5, 1.0)
MARGIN = 0.1
RELUFORMER_GAIN = 2.0
"""Squared: the factor of paper 2 is alpha 0.5 and a gain of sqrt(2)."""

_OPTIONS: Mapping[Scale, Mapping[str, Any]] = {
    "smoke": {"keys": [16, 64, 256], "heads": 64, "width": 128, "draws": 2},
    "small": {
        "keys": [16, 64, 256, 1024, 4096, 16384],
        **{"heads": 512, "width": 512, "draws": 8},
    },
    "paper": {
        "keys": [16, 64, 256, 1024, 4096, 16384],
        **{"heads": 2048, "width": 512, "draws": 16},
    },
}
_LAYERS = ("relu", "softmax")
_DRAWN = ("softmax", *(activation for activation in ACTIVATIONS if activation != "relu6"))


def plan(settings: Settings) -> tuple[Trial, ...]:
    """One measurement of everything for each seed."""
    options: dict[str, Any] = {
        "activations": ["softmax", *ACTIVATIONS],
        "layer_activations": list(_LAYERS),
        "alphas": list(ALPHAS),
        **_OPTIONS[settings.scale],
    }
    return tuple(
        Trial(
            name=name_of({"seed": seed}),
            factors={"seed": seed, "width": options["width"]},
            work=Measurement(
                function="variance",
                options={**options, "seed": seed},
            ),
        )
        for seed in range(settings.seeds)
    )


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Lines of variance against n, dashed ones from the closed forms."""
    return Findings(
        verdicts=[_all_as_computed(outcomes), _relu_over_softmax(outcomes), _lemma(outcomes)],
        charts=[
            *(_chart(outcomes, alpha) for alpha in ALPHAS),
            _layer_chart(outcomes),
        ],
        tables=[_table(outcomes), _moments()],
        notes=[
            "Closed forms: n^(1 - 2 alpha) E[h(s)^2] with scores s ~ N(0, 1); softmax about e/n, "
            "which it reaches from below. Scores of 64 products have a fourth moment 1 + 2/64 "
            "times the normal's, which squared relu shows.",
            *state_notes(outcomes),
        ],
    )


def _keys(outcomes: Sequence[Outcome]) -> list[int]:
    """The numbers of keys that were measured."""
    names = {name for outcome in outcomes for name in outcome.numbers}
    return sorted({int(name.rpartition(".keys")[2]) for name in names if ".keys" in name})


def _ratios(outcomes: Sequence[Outcome], activation: str, alpha: float) -> list[list[float]]:
    """Measured over computed, by seed, a group for each number of keys."""
    return [
        numbers(
            outcomes,
            variance_name(activation, alpha, keys),
            1.0 / output_variance(activation, alpha, keys),
        )
        for keys in _keys(outcomes)
    ]


def _all_as_computed(outcomes: Sequence[Outcome]) -> Verdict:
    places = [
        Distance(Means([group], lambda ratio: ratio - 1.0))
        for activation in ACTIVATIONS
        for alpha in ALPHAS
        for group in _ratios(outcomes, activation, alpha)
    ]
    return judge_quantity(
        f"For every activation, alpha and n the variance is n^(1 - 2 alpha) E[h^2], up to "
        f"{MARGIN:.0%}.",
        Extreme("most", places),
        (0.0, MARGIN),
        unit="as the relative error of the formula, at the most",
    )


def _relu_over_softmax(outcomes: Sequence[Outcome]) -> Verdict:
    keys = max(_keys(outcomes), default=0)
    wanted = 2.0 * math.e
    return judge(
        f"softmax's variance is 2e = {wanted:.2f} times that of relu/L at the most keys, up to "
        f"{MARGIN:.0%}: both fall as 1/n.",
        [
            numbers(outcomes, variance_name("softmax", 0.0, keys)),
            numbers(outcomes, variance_name("relu", 1.0, keys)),
        ],
        (wanted * (1.0 - MARGIN), wanted * (1.0 + MARGIN)),
        unit="times relu/L's variance",
        quantity=np.divide,
    )


def _lemma(outcomes: Sequence[Outcome]) -> Verdict:
    keys = max(_keys(outcomes), default=0)
    number = variance_name("relu", 0.5, keys, is_layer=True)
    return judge(
        "Paper 2's lemma, variance 1 with its factor, holds up to "
        f"{MARGIN:.0%} in a layer at the most keys.",
        [numbers(outcomes, number, RELUFORMER_GAIN)],
        (1.0 - MARGIN, 1.0 + MARGIN),
        unit="as the variance of a head's output",
        note="In a layer keys and values come of the same tokens, which adds n / (2 width): the "
        "lemma takes them for independent.",
    )


def _chart(outcomes: Sequence[Outcome], alpha: float) -> Chart:
    drawn = {activation: (activation, alpha) for activation in _DRAWN}
    return Chart(
        name=f"variance-alpha{alpha:g}",
        title=f"Variance of the output at initialization, alpha {alpha:g}",
        caption="Paper 1 asks for weights of O(1/n), which alpha 1 gives as softmax does; paper 2 "
        "for variance 1, which is alpha 0.5. softmax has no alpha and is in every chart. Dashed: "
        "computed. relu6 lies on relu and is left out.",
        x_title="keys",
        y_title="variance",
        series=_series(outcomes, drawn),
        x_is_log=True,
        y_is_log=True,
    )


def _layer_chart(outcomes: Sequence[Outcome]) -> Chart:
    width = next((int(o.factors["width"]) for o in outcomes if "width" in o.factors), 1)
    relu = {f"relu, alpha {alpha:g}": ("relu", alpha) for alpha in (0.5, 1.0)}
    return Chart(
        name="variance-layer",
        title=f"The same in a layer of width {width}",
        caption="Tokens that give both keys and values add a term that no sum averages out: "
        "n^(2 - 2 alpha) E[h']^2 / width. Neither paper has it. Dashed: computed.",
        x_title="keys",
        y_title="variance",
        series=_series(outcomes, {"softmax": ("softmax", 0.0), **relu}, width),
        x_is_log=True,
        y_is_log=True,
    )


def _series(
    outcomes: Sequence[Outcome],
    drawn: Mapping[str, tuple[str, float]],
    width: int | None = None,
) -> list[Series]:
    """Measured and computed lines by name, of activations and alphas; in a layer of a width."""
    keys, is_layer = _keys(outcomes), width is not None
    series: list[Series] = []
    for name, what in drawn.items():
        names = [variance_name(*what, n, is_layer=is_layer) for n in keys]
        points = [(n, numbers(outcomes, one)) for n, one in zip(keys, names, strict=True)]
        computed = [output_variance(*what, n, width) for n in keys]
        series.append(line(name, points))
        series.append(Series(name=f"{name}, computed", x=keys, y=computed, is_dashed=True))
    return series


def _table(outcomes: Sequence[Outcome]) -> DataTable:
    rows: list[list[str | float | int | None]] = []
    for activation in ("softmax", *ACTIVATIONS):
        for alpha in (0.0,) if activation == "softmax" else ALPHAS:
            for keys in _keys(outcomes):
                measured = mean(numbers(outcomes, variance_name(activation, alpha, keys)))
                computed = output_variance(activation, alpha, keys)
                shown = None if activation == "softmax" else alpha
                ratio = None if measured is None else measured / computed
                rows.append([activation, shown, keys, measured, computed, ratio])
    head = ["activation", "alpha", "keys", "measured", "computed", "ratio"]
    return DataTable(name="variance", title="Measured and computed", head=head, rows=rows)


def _moments() -> DataTable:
    rows = [[activation, mean_square(activation)] for activation in ACTIVATIONS]
    return DataTable(
        name="variance-moments",
        title="E[h(s)^2] for s ~ N(0, 1)",
        head=["activation", "E[h^2]"],
        rows=rows,
    )


STUDY = Study(
    name="variance",
    question="How does the output's variance at initialization depend on the number of keys?",
    source="both papers, theory",
    claim="With alpha 1 relu's variance falls as softmax's does, as 1/n; with paper 2's factor it "
    "is 1 at every n.",
    plan=plan,
    findings=findings,
)
