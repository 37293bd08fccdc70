"""Does the kernels' gain arrive in whole models? (open)"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flashpoint.lab.runs.findings import Chart, DataTable, Findings, Series, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Measurement, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    arm_table,
    levels,
    line,
    numbers,
    select,
    state_notes,
)
from flashpoint.lab.study.settings import name_of, step_times
from flashpoint.lab.study.verdict import Extreme, Means, judge, judge_quantity

_STEPS: Mapping[Scale, Mapping[int, Mapping[str, Any]]] = {
    "smoke": {16: {}},
    "small": {
        16: {"model.patch_size": 8, "batch_size": 1024},
        64: {"model.patch_size": 4, "batch_size": 512},
        256: {"model.patch_size": 2, "batch_size": 128},
        1024: {"model.patch_size": 1, "batch_size": 32},
    },
    "paper": {
        50: {"model.name": "vit_s32", "batch_size": 512},
        197: {"model.name": "vit_s16", "batch_size": 256},
        785: {"model.name": "vit_s8", "batch_size": 64},
    },
}
_TURNS: Mapping[Scale, Mapping[str, int]] = {
    "smoke": {"steps": 3, "rounds": 3},
    "small": {"steps": 30, "rounds": 7},
    "paper": {"steps": 10, "rounds": 7},
}


class Case(NamedTuple):
    """What a stored time is of, as ``measures/stored_benchmarks.py`` names it."""

    device: str
    mode: str
    activation: str
    sight: str
    qk_norm: str
    dtype: str
    head_dim: int
    length: int

    @classmethod
    def parse(cls, text: str) -> "Case":
        """From its name."""
        device, mode, activation, sight, qk_norm, dtype, dim, length = text.split("|")
        return cls(device, mode, activation, sight, qk_norm, dtype, int(dim), int(length))


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Stored times of kernels; and training steps of twins, in turns, once for each seed."""
    stored = Trial(
        name="kernels",
        factors={"measured": "kernels"},
        work=Measurement(function="stored_benchmarks"),
    )
    return stored, *(
        _step(settings, tokens, changes, seed)
        for seed in range(settings.seeds)
        for tokens, changes in _STEPS[settings.scale].items()
    )


def _step(settings: Settings, tokens: int, changes: Mapping[str, Any], seed: int) -> Trial:
    twins = {name: {**changes, "model.attention": name} for name in ("relu", "softmax")}
    factors = {"measured": "step", "tokens": tokens}
    return step_times(settings, factors, seed, twins, _TURNS[settings.scale])


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Times softmax's over ours, by length: of kernels and of whole training steps."""
    stored = _stored(outcomes)
    return Findings(
        verdicts=_verdicts(outcomes),
        charts=[*_kernel_charts(stored), _step_chart(outcomes)],
        tables=[
            _kernel_table(stored),
            arm_table(
                "speed-steps",
                select(outcomes, measured="step"),
                ("relu_s", "softmax_s"),
            ),
        ],
        notes=[
            "Kernels: medians of stored benchmarks, each on its own device. Steps: twins in turns "
            "in one process on the device of this study, which runs alone: after all others here, "
            "on a GPU of its own on Ray.",
            *state_notes(outcomes),
        ],
    )


def _stored(outcomes: Sequence[Outcome]) -> dict[Case, float]:
    """How many times as fast as softmax, by case."""
    found: dict[Case, float] = {}
    for outcome in outcomes:
        for name, softmax in outcome.numbers.items():
            case, _, what = name.rpartition("|")
            ours = outcome.numbers.get(f"{case}|ours_s")
            if what == "softmax_s" and ours and case.count("|") == len(Case._fields) - 1:
                found[Case.parse(case)] = softmax / ours
    return found


def _verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    tokens = sorted(levels(outcomes, "tokens"))
    pairs = [
        [numbers(outcomes, name, tokens=number) for name in ("softmax_s", "relu_s")]
        for number in tokens
    ]
    ends = [*pairs[-1], *pairs[0]] if len(pairs) > 1 else [[]]
    return [
        judge_quantity(
            "A training step with relu is faster than one with softmax at every number of tokens.",
            Extreme("least", [Means(pair, np.divide) for pair in pairs]),
            (1.0, float("inf")),
            unit="times as fast as softmax, at the least",
        ),
        judge(
            "A training step with relu gains more at the most tokens than at the fewest.",
            ends,
            (1.0, float("inf")),
            unit="times the fewest tokens' speed-up, at the most tokens",
            quantity=lambda s_most, r_most, s_few, r_few: (s_most / r_most) / (s_few / r_few),
        ),
    ]


def _kernel_charts(stored: Mapping[Case, float]) -> list[Chart]:
    """One for each device, relu in bf16 over all keys."""
    lines: dict[str, dict[str, dict[int, float]]] = {}
    for case, speedup in sorted(stored.items()):
        if case.activation == "relu" and case.sight == "full" and case.dtype == "bf16":
            norms = "" if case.qk_norm == "none" else ", qk-norm"
            names = lines.setdefault(case.device, {})
            points = names.setdefault(f"{case.mode}, head dim {case.head_dim}{norms}", {})
            points[case.length] = speedup
    return [_kernel_chart(device, lines[device]) for device in sorted(lines, reverse=True)]


def _kernel_chart(device: str, lines: Mapping[str, Mapping[int, float]]) -> Chart:
    return Chart(
        name=f"speed-kernels-{name_of({'device': device})}".lower(),
        title=f"Attention alone on {device}: times as fast as softmax's best kernel",
        caption="From the stored benchmarks: relu in bf16, every key visible. 1 is as fast. Files "
        "may be of different commits: neighbors on a line need not be of the same code.",
        x_title="keys",
        y_title="time of softmax over ours",
        series=[
            Series(name=name, x=list(points), y=list(points.values()))
            for name, points in lines.items()
        ],
        x_is_log=True,
    )


def _step_chart(outcomes: Sequence[Outcome]) -> Chart:
    points: list[tuple[float | str, list[float]]] = []
    for tokens in levels(outcomes, "tokens"):
        relu = numbers(outcomes, "relu_s", tokens=tokens)
        softmax = numbers(outcomes, "softmax_s", tokens=tokens)
        ratios = [other / ours for ours, other in zip(relu, softmax, strict=False)]
        points.append((tokens, ratios))
    return Chart(
        name="speed-steps",
        title="Whole training steps: times as fast as with softmax",
        caption="The same ViT with relu/L and with softmax, forward to optimizer, by tokens.",
        x_title="tokens of an image",
        y_title="time with softmax over time with relu",
        series=[line("training step", points)],
        x_is_log=True,
    )


def _kernel_table(stored: Mapping[Case, float]) -> DataTable:
    return DataTable(
        name="speed-kernels",
        title="Stored benchmarks",
        head=[*Case._fields, "times as fast"],
        rows=[[*case, speedup] for case, speedup in sorted(stored.items())],
    )


STUDY = Study(
    name="speed",
    question="Does the kernels' gain arrive in whole models?",
    source="open",
    claim="One would expect a part of the kernels' gain in a training step, more at more tokens.",
    plan=plan,
    findings=findings,
)
