"""The memories of the feed-forward layer again, each with a learning rate of its own (paper 2).

Rates are chosen by the loss of documents that are held out of training, size by size, and judged
by that of the test documents, which no choice has seen. A plan is the same for equal settings and
cannot wait for what its first trials say, so that it has all rates with all seeds: one command.
"""

import math
from collections.abc import Mapping, Sequence

from flashpoint.lab.runs.findings import Chart, DataTable, Findings, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Evaluation, Factor, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    arm_table,
    levels,
    line,
    mean,
    numbers,
    state_notes,
)
from flashpoint.lab.study.settings import (
    SMALL_CORPUS,
    chosen_apart,
    documents_or_sentences,
    split_of,
    trial,
)
from flashpoint.lab.study.studies.memory_slots import CHANGES, MANY, MEMORIES
from flashpoint.lab.study.verdict import Distance, Extreme, Means, judge_quantity

HELD_OUT, TEST = "loss", "test.loss"
MARGIN = 0.1
"""Nats that count as level. 0.03, asked before, is less than the seeds of one memory differ by."""

_RATES: Mapping[Scale, tuple[float, ...]] = {
    "smoke": (3e-3,),
    "small": (7.5e-4, 1.5e-3, 3e-3, 6e-3),
    "paper": (2.5e-4, 5e-4, 1e-3),
}
_SLOTS: Mapping[Scale, tuple[int, ...]] = {
    "smoke": (32,),
    "small": (32, 128, 512, 2048, 4096),
    "paper": (32, 512, 2048, 3072, 4096),
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Three memories by slots and rates, trained on what is not held out."""
    judged = {} if settings.scale == "smoke" else {"data.validation": split_of(settings, "test")}
    return tuple(
        trial(
            {"memory": memory, "slots": slots, "rate": rate, "seed": seed},
            documents_or_sentences(
                settings,
                seed,
                {
                    **CHANGES[settings.scale],
                    **chosen_apart(settings),
                    **{"model.attention": "softmax", "model.mlp_dim": slots},
                    **{"optimizer.lr": rate, **changes},
                },
            ),
            [Evaluation(name="test", kind="validate", options=judged)],
        )
        for seed in range(settings.seeds)
        for slots in _SLOTS[settings.scale]
        for memory, changes in MEMORIES.items()
        for rate in _RATES[settings.scale]
    )


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """The rates that were chosen, and the loss of the test documents there."""
    chosen = _choose(outcomes)
    return Findings(
        verdicts=_verdicts(outcomes, chosen),
        charts=[_chart(outcomes, chosen)],
        tables=[
            _table(outcomes, chosen),
            arm_table("memory-rates", outcomes, (HELD_OUT, TEST, "train_loss")),
        ],
        notes=[
            "A rate is chosen by the mean loss of the held-out documents; one of which a run "
            "diverged is not chosen.",
            *_at_the_edge(outcomes, chosen),
            *state_notes(outcomes),
        ],
    )


Place = tuple[Factor, Factor]


def _choose(outcomes: Sequence[Outcome]) -> dict[Place, Factor]:
    """The best rate of every memory with every number of slots, by held-out documents."""
    rates = levels(outcomes, "rate")

    def held_out_loss(memory: Factor, slots: Factor, rate: Factor) -> float:
        found = numbers(outcomes, HELD_OUT, memory=memory, slots=slots, rate=rate)
        is_sound = bool(found) and all(map(math.isfinite, found))
        return math.fsum(found) / len(found) if is_sound else math.inf

    return {
        (memory, slots): min(rates, key=lambda rate: held_out_loss(memory, slots, rate))
        for memory in levels(outcomes, "memory")
        for slots in levels(outcomes, "slots")
    }


def _at(
    outcomes: Sequence[Outcome], chosen: Mapping[Place, Factor], number: str, *place: Factor
) -> list[float]:
    memory, slots = place
    rate = chosen[memory, slots]
    return numbers(outcomes, number, memory=memory, slots=slots, rate=rate)


def _verdicts(outcomes: Sequence[Outcome], chosen: Mapping[Place, Factor]) -> list[Verdict]:
    slots = [n for n in levels(outcomes, "slots") if not isinstance(n, str)]

    def differences(first: str, second: str, where: Sequence[Factor]) -> list[Means]:
        return [
            Means([_at(outcomes, chosen, TEST, one, n) for one in (first, second)]) for n in where
        ]

    many = [n for n in slots if n >= MANY]
    few = differences("softmax + norm", "relu", [n for n in slots if n < MANY])
    below = (-float("inf"), 0.0)
    return [
        judge_quantity(
            "Each at its own rate, a relu memory has a lower loss than a softmax memory at every "
            "number of slots.",
            Extreme("most", differences("relu", "softmax", slots)),
            below,
            unit="nats of loss a token of test documents, relu minus softmax in the worst case",
        ),
        judge_quantity(
            f"Below {MANY} slots, softmax with a norm has relu's loss, up to {MARGIN:g} nats.",
            Extreme("most", [Distance(difference) for difference in few]),
            (0.0, MARGIN),
            unit="nats of loss a token between softmax with a norm and relu, at the most",
        ),
        judge_quantity(
            f"From {MANY} slots on, relu has a lower loss than softmax with a norm.",
            Extreme("most", differences("relu", "softmax + norm", many)),
            below,
            unit="nats of loss a token, relu minus softmax with a norm in the worst case",
            lack="" if many else f"No trial of this scale has {MANY} slots or more.",
        ),
    ]


def _at_the_edge(outcomes: Sequence[Outcome], chosen: Mapping[Place, Factor]) -> list[str]:
    """Which memories may want a rate that was not tried."""
    ends = {0: "lowest", -1: "highest"}
    rates = levels(outcomes, "rate")
    notes: list[str] = []
    for end, word in ends.items():
        there = [f"{memory} {n}" for (memory, n), rate in chosen.items() if rate == rates[end]]
        if there:
            notes.append(f"The {word} rate that was tried is the best of: {', '.join(there)}.")
    return notes


def _table(outcomes: Sequence[Outcome], chosen: Mapping[Place, Factor]) -> DataTable:
    rows = [
        [*place, rate, *(mean(_at(outcomes, chosen, one, *place)) for one in (HELD_OUT, TEST))]
        for place, rate in chosen.items()
    ]
    head = ["memory", "slots", "rate", "loss, held out", "loss, test"]
    title = "Chosen rates, and mean losses there"
    return DataTable(name="memory-rates-chosen", title=title, head=head, rows=rows)


def _chart(outcomes: Sequence[Outcome], chosen: Mapping[Place, Factor]) -> Chart:
    slots = [n for n in levels(outcomes, "slots") if not isinstance(n, str)]
    return Chart(
        name="memory-rates-loss",
        title="Loss of the test documents by slots, each at its own rate",
        caption="Paper 2: relu is above softmax at every number of slots; softmax with a norm "
        "equals it until there are very many, where relu wins.",
        x_title="slots",
        y_title="cross-entropy of a token, in nats",
        series=[
            line(str(memory), [(n, _at(outcomes, chosen, TEST, memory, n)) for n in slots])
            for memory in levels(outcomes, "memory")
        ],
        x_is_log=True,
    )


STUDY = Study(
    name="memory-rates",
    question="Which feed-forward memory is best, each at a learning rate of its own?",
    source="paper 2, FFN and key-value memory",
    claim="Softmax with a norm on the output equals relu in the feed-forward layer, softmax alone "
    "is worse, and relu wins with very many slots.",
    plan=plan,
    findings=findings,
    departures=SMALL_CORPUS,
)
