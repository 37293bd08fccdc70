"""relu, softmax and softmax with a norm as the feed-forward layer, by slots (paper 2)."""

from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.runs.findings import Chart, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Evaluation, Factor, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import along, arm_table, levels, numbers, state_notes
from flashpoint.lab.study.settings import SMALL_CORPUS, documents_or_sentences, trial
from flashpoint.lab.study.verdict import Extreme, Means, judge_quantity

MEMORIES: Mapping[str, Mapping[str, Any]] = {
    "relu": {"model.memory_activation": "relu", "model.memory_norm": False},
    "softmax": {"model.memory_activation": "softmax", "model.memory_norm": False},
    "softmax + norm": {"model.memory_activation": "softmax", "model.memory_norm": True},
}
MANY = 3072
"""Slots from which the paper finds relu better than softmax with a norm."""

_SLOTS: Mapping[Scale, tuple[int, ...]] = {
    "smoke": (32, 64),
    "small": (32, 128, 512, 2048, 4096),
    "paper": (32, 64, 128, 256, 512, 1024, 2048, 3072, 4096),
}
CHANGES: Mapping[Scale, Mapping[str, Any]] = {
    "smoke": {},
    "small": {
        **{"model.encoder_depth": 2, "model.decoder_depth": 2, "steps": 1500},
        **{"data.length": 256, "data.resolutions": 4},
    },
    "paper": {},
}
_AFTERWARDS: Mapping[Scale, tuple[Evaluation, ...]] = {
    "smoke": (),
    "small": (),
    "paper": (Evaluation(name="translation", kind="translate", options={"beam": 5}),),
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Three memories by slots in the vanilla model, whose attention is softmax."""
    return tuple(
        trial(
            {"memory": memory, "slots": slots, "seed": seed},
            documents_or_sentences(
                settings,
                seed,
                {
                    **CHANGES[settings.scale],
                    **{"model.attention": "softmax", "model.mlp_dim": slots},
                    **changes,
                },
            ),
            _AFTERWARDS[settings.scale],
        )
        for seed in range(settings.seeds)
        for slots in _SLOTS[settings.scale]
        for memory, changes in MEMORIES.items()
    )


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """Loss, and BLEU where it was asked for, by the number of slots."""
    charts = [_chart(outcomes, "loss", "Validation loss", "cross-entropy of a token, in nats")]
    if any("translation.bleu" in outcome.numbers for outcome in outcomes):
        charts.append(_chart(outcomes, "translation.bleu", "BLEU", "BLEU"))
    return Findings(
        verdicts=_verdicts(outcomes),
        charts=charts,
        tables=[
            arm_table(
                "memory-slots",
                outcomes,
                ("loss", "token_accuracy", "translation.bleu", "num_parameters"),
            )
        ],
        notes=[
            "Judged by the loss of the validation set, which is less noisy than BLEU and needs no "
            "search; the paper gives BLEU (relu 34.22, softmax 33.08, softmax with a norm 34.21).",
            "All have one learning rate; the study memory-rates chooses one for each.",
            *state_notes(outcomes),
        ],
    )


def _verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    slots = [n for n in levels(outcomes, "slots") if not isinstance(n, str)]
    many = [n for n in slots if n >= MANY]

    def differences(first: str, second: str, where: Sequence[Factor]) -> list[Means]:
        return [
            Means([numbers(outcomes, "loss", memory=one, slots=n) for one in (first, second)])
            for n in where
        ]

    return [
        judge_quantity(
            "A relu memory has a lower loss than a softmax memory at every number of slots.",
            Extreme("most", differences("relu", "softmax", slots)),
            (-float("inf"), 0.0),
            unit="nats of loss a token, relu minus softmax in the worst case",
        ),
        judge_quantity(
            f"From {MANY} slots on, relu has a lower loss than softmax with a norm.",
            Extreme("most", differences("relu", "softmax + norm", many)),
            (-float("inf"), 0.0),
            unit="nats of loss a token, relu minus softmax with a norm in the worst case",
            lack="" if many else f"No trial of this scale has {MANY} slots or more.",
        ),
    ]


def _chart(outcomes: Sequence[Outcome], number: str, title: str, y_title: str) -> Chart:
    return Chart(
        name=f"memory-slots-{number.rpartition('.')[2]}",
        title=f"{title} by slots of the memory",
        caption="Paper 2: relu is above softmax at every number of slots; softmax with a norm "
        "equals it until there are very many, where relu wins.",
        x_title="slots",
        y_title=y_title,
        series=[
            along(str(memory), outcomes, "slots", number, memory=memory)
            for memory in levels(outcomes, "memory")
        ],
        x_is_log=True,
    )


STUDY = Study(
    name="memory-slots",
    question="Is a feed-forward layer a memory, and which activation does it need?",
    source="paper 2, FFN and key-value memory",
    claim="Softmax with a norm on the output equals relu in the feed-forward layer, softmax alone "
    "is worse, and relu wins with very many slots.",
    plan=plan,
    findings=findings,
    departures=SMALL_CORPUS,
)
