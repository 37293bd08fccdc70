"""Tables of translated documents: two studies, a longer pair, the penalty and speed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from docs_numbers.stored import SEEDS, Stored
from docs_numbers.tables import (
    behind,
    between,
    by_seed,
    difference,
    interval,
    listed,
    numbers,
    spread,
    table,
)
from flashpoint.lab.study.reading import change

FOLDER = "en_de_docs"
LENGTHS = (256, 512, 1024)
TWINS = ("softmax", "relu")
NAMES = {"softmax": "softmax", "relu": "ReLUFormer"}
ARMS = {
    **NAMES,
    **{"relu4-sum": "relu4/sum", "relu4-sum-qk-norm": "relu4/sum, qk-norm"},
    "softmax-qk-norm": "softmax, qk-norm",
}
PAPER_GAINS = {256: "0", 512: "better", 1024: "+1.15"}
ABLATION = {
    "softmax": ("softmax", "34.22"),
    "relu, no factor": ("relu-no-factor", "does not converge"),
    "relu, factor, gamma from 1": ("relu-factor-gamma-from-1", "33.19"),
    "relu, factor": ("relu-factor", ""),
    "relu, factor and penalty": ("relu-factor-and-penalty", "34.56"),
}
"""Arms as the page names them: their trials, and the paper's BLEU."""
PILOTS = ("penalty0.3", "penalty1.0", "penalty3.0")
STARTS = {
    **{"plain": "plain", "a LayerNorm of q and k": "qk-norm", "a larger start": "larger-start"},
    **{"a smaller start": "smaller-start", "floor 1e-5": "floor-1e-5"},
}
"""Arms of that study as the page names them: their trials."""


def _of_length(stored: Stored, twin: str, length: int, number: str) -> np.ndarray:
    """By seed."""
    return stored.values("document-length", f"{twin}-length{length}-", f"translation.{number}")


def bleu_gaps(stored: Stored) -> list[float]:
    """BLEU of softmax less that of ReLUFormer, by length."""
    return [
        float(np.subtract(*(_of_length(stored, twin, n, "bleu").mean() for twin in TWINS)))
        for n in LENGTHS
    ]


@numbers("document-length")
def _lengths(stored: Stored) -> str:
    rows = []
    for length in LENGTHS:
        found = {
            (twin, number): _of_length(stored, twin, length, number)
            for twin in TWINS
            for number in ("bleu", "document_bleu")
        }
        gain = difference(found["relu", "bleu"], found["softmax", "bleu"])
        rows.append([length, *map(spread, found.values()), *gain, PAPER_GAINS[length]])
    head = ["tokens", "softmax", "d-BLEU", "ReLUFormer", "d-BLEU", "BLEU, difference", "interval"]
    return table([*head, "the paper's"], rows)


@numbers("document-length-sums")
def _sums(stored: Stored) -> str:
    rows = []
    for length in LENGTHS:
        for arm, name in ARMS.items():
            if not stored.has("document-length", f"{arm}-length{length}-"):
                continue
            bleu, softmax = (_of_length(stored, one, length, "bleu") for one in (arm, "softmax"))
            whole = _of_length(stored, arm, length, "document_bleu")
            loss = stored.values("document-length", f"{arm}-length{length}-", "loss")
            gap = "" if arm == "softmax" else behind(bleu, softmax)
            means = [f"{one.mean():.2f}" for one in (whole, loss)]
            rows.append([length, name, by_seed(bleu, ".1f"), f"{bleu.mean():.2f}", gap, *means])
    head = ["tokens", "attention", "BLEU by seed", "mean", "less softmax", "d-BLEU"]
    return table([*head, "validation loss"], rows)


@numbers("document-length-more")
def _lengths_more(stored: Stored) -> str:
    def row(what: str, number: str, digits: int) -> list[str]:
        gaps = [
            np.subtract(*(_of_length(stored, twin, length, number).mean() for twin in TWINS))
            for length in LENGTHS
        ]
        return [what, *(f"{gap:.{digits}f}" for gap in gaps)]

    shares = [
        [
            f"segments of {name} translated again in halves",
            *(f"{_of_length(stored, twin, n, 'repeated_share').mean():.0%}" for n in LENGTHS),
        ]
        for twin, name in NAMES.items()
    ]
    rows = [
        *shares,
        row("softmax less ReLUFormer, d-BLEU", "document_bleu", 1),
        row("softmax less ReLUFormer, chrF", "chrf", 1),
    ]
    return table(["", *(f"{length} tokens" for length in LENGTHS)], rows)


@numbers("document-length-gap")
def _gap(stored: Stored) -> str:
    groups = [
        _of_length(stored, twin, length, "document_bleu")
        for length in (1024, 256)
        for twin in ("relu", "softmax")
    ]
    drawn = interval(groups, change)
    relu, softmax, relu_before, softmax_before = (group.mean() for group in groups)
    return listed(
        {
            "the gap in d-BLEU shrinks from 256 to 1024 tokens by": (
                f"{drawn.value:.1f} ({drawn.low:+.1f} to {drawn.high:+.1f})"
            ),
            "ReLUFormer's share of softmax's d-BLEU, 256 and 1024 tokens": (
                f"{relu_before / softmax_before:.0%} and {relu / softmax:.0%}"
            ),
        }
    )


@numbers("relu-attention")
def _ablation(stored: Stored) -> str:
    rows = []
    for kind, (trial, paper) in ABLATION.items():
        bleu, document_bleu, loss = (
            stored.values("relu-attention", f"{trial}-", number)
            for number in ("translation.bleu", "translation.document_bleu", "loss")
        )
        rows.append([kind, spread(bleu), spread(document_bleu), f"{loss.mean():.2f}", paper])
    return table(["attention", "BLEU", "d-BLEU", "validation loss", "the paper's BLEU"], rows)


@numbers("relu-attention-training")
def _ablation_training(stored: Stored) -> str:
    def losses(trial: str, step: int) -> float:
        runs = stored.runs_of("relu-attention", f"{trial}-")
        return float(
            np.mean([row["loss"] for run in runs for row in run.train if row["step"] == step])
        )

    steps = (1100, 1200, 2000)
    rows = [
        [name, *(f"{losses(trial, step):.3f}" for step in steps)]
        for name, trial in (("softmax", "softmax"), ("ReLUFormer", "relu-factor-and-penalty"))
    ]
    return table(["training loss", *(f"update {step:,}" for step in steps)], rows)


def pair_scores(stored: Stored, twin: str) -> dict[str, Any]:
    """Of all test documents, and by their length."""
    found = stored.read_json(f"benchmarks/results/{FOLDER}/{twin}-seed0/evaluation.json")
    return {"all": found["all"], **found["by_length"]}


@numbers("documents-pair")
def _pair(stored: Stored) -> str:
    softmax, relu = (pair_scores(stored, twin) for twin in TWINS)
    keys = ("bleu", "document_bleu", "chrf")
    rows = [
        [
            *(length, one["num_documents"], f"{one['num_segments']:,}"),
            *(f"{twin[key]:.2f}" for twin in (one, relu[length]) for key in keys),
            f"{relu[length]['bleu'] - one['bleu']:+.2f}",
        ]
        for length, one in softmax.items()
    ]
    head = ["source tokens", "documents", "segments", "softmax", "d-BLEU", "chrF", "ReLUFormer"]
    return table([*head, "d-BLEU", "chrF", "BLEU, difference"], rows)


@numbers("documents-pair-more")
def _pair_more(stored: Stored) -> str:
    rows = []
    for twin, name in NAMES.items():
        run = stored.run(f"{FOLDER}/{twin}-seed0")
        place = f"benchmarks/results/{FOLDER}/{twin}-seed0/evaluation.json"
        share = stored.read_json(place)["repeated_share"]
        losses = {row["step"]: row["loss"] for row in run.validation}
        size, samples = (run.record[key] / 1e6 for key in ("num_parameters", "samples"))
        rows.append(
            [
                *(name, f"{size:.1f} M", f"{samples:.0f} M"),
                *(f"{losses[step]:.2f}" for step in (4000, 8000)),
                f"{share:.0%}",
            ]
        )
    head = ["", "parameters", "target tokens", "validation loss at update 4,000", "at 8,000"]
    return table([*head, "segments translated again in parts"], rows)


@numbers("documents-penalty")
def _penalty(stored: Stored) -> str:
    losses = {
        weight: stored.values("relu-attention", f"{trial}-", "loss")
        for weight, trial in (("0", "relu-factor"), ("0.1", "relu-factor-and-penalty"))
    }
    for name in PILOTS:
        run = stored.run(f"{FOLDER}/{name}-relu-seed100")
        losses[f"{run.config['penalty']:g}"] = np.array([run.record["validation"]["loss"]])
    cells = [f"{loss.mean():.2f}" for loss in losses.values()]
    seeds = [", ".join(f"{one:.2f}" for one in loss) for loss in losses.values()]
    rows = [["validation loss", *cells], ["by seed", *seeds]]
    return table(["weight", *losses], rows)


def speeds(stored: Stored) -> Sequence[dict[str, Any]]:
    """Of training alone on the GPU, by length and attention."""
    return stored.read_json(f"benchmarks/results/{FOLDER}/speed.json")["rows"]


@numbers("documents-speed")
def _speed(stored: Stored) -> str:
    rows = []
    for length in LENGTHS:
        found = [line["tokens_per_s"] for line in speeds(stored) if line["length"] == length]
        rates = [{key: rate / 1e6 for key, rate in line.items()} for line in found]
        texts = [
            f"{rate['median']:.2f} ({rate['low']:.2f} to {rate['high']:.2f})" for rate in rates
        ]
        ratios = [f"{rate['median'] / rates[0]['median']:.2f}" for rate in rates]
        rows.append([length, texts[0], texts[1], ratios[1], texts[2], ratios[2]])
    head = ["tokens", "softmax", "relu, factor", "ratio", "relu, factor and penalty", "ratio"]
    return table(head, rows)


@numbers("documents-speed-512")
def _speed_512(stored: Stored) -> str:
    return _speeds_of(stored, "speed_512.json")


@numbers("documents-speed-compiled")
def _speed_compiled(stored: Stored) -> str:
    return _speeds_of(stored, "speed_512_compiled.json")


def _speeds_of(stored: Stored, file: str) -> str:
    """Of all attentions at one length, measured in one run."""
    lines = stored.read_json(f"benchmarks/results/{FOLDER}/{file}")["rows"]
    first = lines[0]["tokens_per_s"]["median"]
    rows = []
    for line in lines:
        rate = {key: found / 1e6 for key, found in line["tokens_per_s"].items()}
        text = f"{rate['median']:.2f} ({rate['low']:.2f} to {rate['high']:.2f})"
        ratio = line["tokens_per_s"]["median"] / first
        rows.append([line["attention"], text, f"{ratio:.2f}", f"{line['peak_gib']} GiB"])
    return table(["512 tokens", "million tokens a second", "ratio", "peak memory"], rows)


@numbers("starts")
def _starts(stored: Stored) -> str:
    rows = []
    plain = stored.values("starts", "plain-", "loss")
    for name, trial in STARTS.items():
        loss = stored.values("starts", f"{trial}-", "loss")
        beside = difference(loss, plain) if name != "plain" else ("", "")
        accuracy = 100 * stored.values("starts", f"{trial}-", "token_accuracy")
        rows.append([name, by_seed(loss), spread(loss), *beside, spread(accuracy, 1)])
    head = [
        "start",
        "by seed",
        "validation loss",
        "less plain",
        "interval",
        "tokens right, percent",
    ]
    return table(head, rows)


@numbers("documents-speed-more")
def _speed_more(stored: Stored) -> str:
    lines = speeds(stored)
    rows = []
    for first, name in enumerate(("softmax", "relu, factor", "relu, factor and penalty")):
        found = lines[first :: len(SEEDS)]
        times = [line["ms_per_step"] for line in found]
        peaks = [line["peak_gib"] for line in found]
        whole = between([2 * time for time in times], 0)
        rows.append([name, f"{between(times, 1)} ms", f"{whole} s", f"{between(peaks, 1)} GiB"])
    return table(["", "one update", "2,000 updates", "peak memory"], rows)
