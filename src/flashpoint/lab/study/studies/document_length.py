"""Does ReLUFormer gain on softmax as documents grow? (paper 2)"""

from collections.abc import Mapping, Sequence

from flashpoint.lab.runs.findings import Chart, Findings, Series, Verdict
from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Factor, Scale, Settings, Study, Trial
from flashpoint.lab.study.reading import (
    along,
    arm_table,
    change,
    finite,
    levels,
    mean,
    numbers,
    select,
    state_notes,
)
from flashpoint.lab.study.settings import (
    SMALL_CORPUS,
    SMALL_GAMMA,
    cut_to,
    relu_of_text,
    text,
    trial,
)
from flashpoint.lab.study.studies.relu_attention import translation
from flashpoint.lab.study.verdict import Distance, Extreme, Means, bootstrap, judge, judge_quantity

ATTENTIONS = ("relu", "softmax")
BLEU = "translation.bleu"
DOCUMENT_BLEU, REPEATED = "translation.document_bleu", "translation.repeated_share"
SHORT, LONG = 256, 512
"""Tokens up to which the paper finds no difference, and from which a gain."""
MARGIN = 0.5
PAPER_GAIN = 1.15
DEPARTURES = f"{SMALL_CORPUS} {SMALL_GAMMA}"

_LENGTHS: Mapping[Scale, tuple[int, ...]] = {
    "smoke": (16, 32),
    "small": (256, 512, 1024),
    "paper": (128, 256, 512, 1024, 2048),
}


def plan(settings: Settings) -> tuple[Trial, ...]:
    """Twins for every length that documents are cut to; the longest take longest and begin."""
    specs = {"relu": relu_of_text(settings), "softmax": "softmax"}
    return tuple(
        trial(
            {"attention": attention, "length": length, "seed": seed},
            text(
                settings, seed, {"model.attention": specs[attention], **cut_to(settings, length)}
            ),
            [translation(settings.scale)],
        )
        for seed in range(settings.seeds)
        for length in reversed(_LENGTHS[settings.scale])
        for attention in ATTENTIONS
    )


def findings(outcomes: Sequence[Outcome]) -> Findings:
    """BLEU by length, the gain by length, and BLEU by the documents' own length."""
    return Findings(
        verdicts=_verdicts(outcomes),
        charts=[_by_cut(outcomes), _gains(outcomes), _by_document(outcomes)],
        tables=[
            arm_table(
                "document-length",
                outcomes,
                (BLEU, DOCUMENT_BLEU, REPEATED, "loss", "token_accuracy", "seconds"),
            )
        ],
        notes=[
            "BLEU is of segments. A part whose translation has another number of them is "
            "translated again in halves (repeated_share); document_bleu is of what came first.",
            *state_notes(outcomes),
        ],
    )


def _groups(outcomes: Sequence[Outcome], length: Factor) -> list[list[float]]:
    return [numbers(outcomes, BLEU, attention=a, length=length) for a in ATTENTIONS]


def _lengths(outcomes: Sequence[Outcome]) -> list[int]:
    return [int(length) for length in levels(outcomes, "length")]


def _verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    lengths = _lengths(outcomes)
    short = [length for length in lengths if length <= SHORT]
    long = [length for length in lengths if length >= LONG]
    no_long = "" if long else f"No trial of this scale has {LONG} tokens or more."

    return [
        judge_quantity(
            f"Up to {SHORT} tokens ReLUFormer and softmax differ by no more than {MARGIN:g} BLEU.",
            Extreme("most", [Distance(Means(_groups(outcomes, length))) for length in short]),
            (0.0, MARGIN),
            unit="BLEU between ReLUFormer and softmax, where it is largest",
        ),
        judge(
            f"At the longest documents ReLUFormer is better (the paper: {PAPER_GAIN:+g} at 1024).",
            _groups(outcomes, long[-1]) if long else [[]],
            (0.0, float("inf")),
            unit="BLEU, ReLUFormer less softmax",
            lack=no_long,
        ),
        judge(
            "The gain at the longest documents is larger than at the shortest.",
            [*_groups(outcomes, long[-1]), *_groups(outcomes, short[0])]
            if short and long
            else [[]],
            (0.0, float("inf")),
            unit="BLEU, gain at the longest less gain at the shortest",
            quantity=change,
            lack=no_long,
        ),
    ]


def _by_cut(outcomes: Sequence[Outcome]) -> Chart:
    return Chart(
        name="document-length-bleu",
        title="BLEU by the length that documents are cut to",
        caption="Paper 2, Europarl7 En-De: equal at 128 and 256 tokens, ReLUFormer better from "
        "512 on.",
        x_title="tokens of a document at most",
        y_title="BLEU",
        series=[along(a, outcomes, "length", BLEU, attention=a) for a in ATTENTIONS],
        x_is_log=True,
    )


def _gains(outcomes: Sequence[Outcome]) -> Chart:
    pairs = {n: [finite(group) for group in _groups(outcomes, n)] for n in _lengths(outcomes)}
    there = {length: groups for length, groups in pairs.items() if all(groups)}
    found = [bootstrap(groups) for groups in there.values()]
    return Chart(
        name="document-length-gain",
        title="Gain of ReLUFormer over softmax",
        caption=f"Paper 2: {PAPER_GAIN:+g} BLEU at 1024 tokens, none at 128 and 256.",
        x_title="tokens of a document at most",
        y_title="BLEU, ReLUFormer less softmax",
        series=[
            Series(
                name="gain",
                x=list(there),
                y=[interval.value for interval in found],
                low=[interval.low for interval in found],
                high=[interval.high for interval in found],
            )
        ],
        x_is_log=True,
    )


def _by_document(outcomes: Sequence[Outcome]) -> Chart:
    """Of the models with the longest cut: documents in groups by their own length."""
    longest = max(_lengths(outcomes), default=0)
    some = select(outcomes, length=longest)
    prefix = f"{BLEU}_"
    names = sorted(
        {name for o in some for name in o.numbers if name.startswith(prefix)}, key=_low_end
    )
    return Chart(
        name="document-length-groups",
        title=f"BLEU by the documents' own length, cut to {longest} tokens",
        caption="Documents of the validation set in groups by the tokens of their source.",
        x_title="tokens of the source",
        y_title="BLEU",
        series=[
            Series(
                name=a,
                x=[name.removeprefix(prefix) for name in names],
                y=[mean(numbers(some, name, attention=a)) for name in names],
            )
            for a in ATTENTIONS
        ],
    )


def _low_end(name: str) -> int:
    """Where a group begins: "bleu_129-256" at 129, "bleu_over 2048" at 2048."""
    return int(name.rpartition("_")[2].removeprefix("over ").partition("-")[0])


STUDY = Study(
    name="document-length",
    question="Does ReLUFormer gain on softmax as documents grow?",
    source="paper 2, document translation",
    claim="ReLUFormer equals softmax at 128 and 256 tokens and gains from 512 on: +1.15 BLEU at "
    "1024.",
    plan=plan,
    findings=findings,
    departures=DEPARTURES,
)
