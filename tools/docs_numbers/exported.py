"""Tables of models as ONNX files: accuracy and time in fp32 and int8."""

from typing import Any

import numpy as np

from docs_numbers.stored import PERCENT, Stored
from docs_numbers.tables import between, listed, numbers, spread, table

FILE = "benchmarks/results/onnx/int8.json"
FILES = {"none": "fp32", "linear": "int8", "all": "int8, attention too"}
"""Kinds of files as columns name them."""


def _accuracy(stored: Stored) -> dict[str, list[Any]]:
    """Rows of all seeds, by attention."""
    found: dict[str, list[Any]] = {}
    for row in stored.read_json(FILE)["accuracy"]:
        found.setdefault(row["attention"], []).append(row)
    return found


@numbers("onnx-accuracy")
def _top1(stored: Stored) -> str:
    rows = []
    for attention, seeds in _accuracy(stored).items():
        shares = [
            PERCENT * np.array([row[kind]["top1"] for row in seeds]) for kind in ("torch", *FILES)
        ]
        rows.append([attention, *map(spread, shares)])
    return table(
        ["top-1 on digits", "PyTorch", *(f"ONNX {name}" for name in FILES.values())], rows
    )


@numbers("onnx-times")
def _times(stored: Stored) -> str:
    found = stored.read_json(FILE)["times"]
    rows = []
    for model, attention in dict.fromkeys((row["model"], row["attention"]) for row in found):
        cells = [
            f"{1e3 * row['median_s']:.1f} ({1e3 * row['p20_s']:.1f} to {1e3 * row['p80_s']:.1f})"
            for kind in FILES
            for row in found
            if (row["model"], row["attention"], row["kind"]) == (model, attention, kind)
        ]
        tokens = next(row["tokens"] for row in found if row["model"] == model)
        rows.append([f"{model}, {tokens} tokens", attention, *cells])
    return table(["milliseconds an image", "attention", *FILES.values()], rows)


@numbers("onnx-logits")
def _logits(stored: Stored) -> str:
    rows = [
        [
            attention,
            *(f"{max(row[kind]['max_difference'] for row in seeds):.2g}" for kind in FILES),
            f"{max(row['none']['largest'] for row in seeds):.1f}",
        ]
        for attention, seeds in _accuracy(stored).items()
    ]
    head = ["largest difference of logits from PyTorch's", *FILES.values(), "largest logit"]
    return table(head, rows)


@numbers("onnx-more")
def _more(stored: Stored) -> str:
    accuracy = [row for rows in _accuracy(stored).values() for row in rows]
    smaller = [row["none"]["num_bytes"] / row["linear"]["num_bytes"] for row in accuracy]
    changed = [
        PERCENT * (row[kind]["top1"] - row["torch"]["top1"]) for row in accuracy for kind in FILES
    ]
    times = {
        (row["model"], row["attention"], row["kind"]): row["median_s"]
        for row in stored.read_json(FILE)["times"]
    }
    ratios = {
        attention: between(
            seconds / times[model, "softmax", kind]
            for (model, name, kind), seconds in times.items()
            if name == attention
        )
        for attention in ("relu", "relu4/sum")
    }
    faster = [times[model, a, "none"] / times[model, a, "linear"] for model, a, _ in times]
    return listed(
        {
            "top-1 of any file less PyTorch's, points": between(changed),
            "times as small a file by int8, of the digits' models": between(smaller, 1),
            "times as fast by int8": between(faster, 1),
            **{f"{name}'s time over softmax's": ratio for name, ratio in ratios.items()},
        }
    )
