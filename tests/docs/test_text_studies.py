"""docs/results.md beside the stored studies of document translation."""

import json

import numpy as np
import pytest
import torch
from stored_results import PAGE, STUDIES, TEXT, record_of, rounded

from flashpoint.lab.evaluation.translation import SOURCE_SHARE
from flashpoint.lab.runs.run_files import read_runs
from flashpoint.lab.study.reading import change
from flashpoint.lab.study.verdict import bootstrap
from flashpoint.models.registry import create_model

ABLATION = {  # as the page names it, and its trials
    "softmax": "softmax",
    "relu, no factor": "relu-no-factor",
    "relu, factor, gamma from 1": "relu-factor-gamma-from-1",
    "relu, factor": "relu-factor",
    "relu, factor and penalty": "relu-factor-and-penalty",
}


def translations(study, name):
    """BLEU, BLEU of documents and validation loss: [3, 3], by seed."""
    rows = []
    for seed in (0, 1, 2):
        trial = STUDIES / study / f"{name}-seed{seed}"
        found = json.loads((trial / "evaluations.json").read_text("utf-8"))["translation"]
        loss = json.loads((trial / "record.json").read_text("utf-8"))["validation"]["loss"]
        rows.append((found["bleu"], found["document_bleu"], loss))
    return np.array(rows)


@pytest.mark.parametrize("length", [256, 512, 1024])
def test_table_of_documents_is_that_of_the_trials(length):
    softmax, relu = (
        translations("document-length", f"{name}-length{length}") for name in ("softmax", "relu")
    )
    drawn = bootstrap([relu[:, 0], softmax[:, 0]])
    cells = [rounded(twin[:, column]) for twin in (softmax, relu) for column in (0, 1)]
    cells += [f"{drawn.value:+.2f}", f"{drawn.low:+.2f} to {drawn.high:+.2f}"]
    assert f"| {length} | {' | '.join(cells)} |" in PAGE


def by_length(key):
    """Of softmax, then of relu: the numbers of each length, by seed."""
    return [
        [
            np.array([one["translation"][key] for one in found])
            for length in (256, 512, 1024)
            for found in [
                record_of("document-length", f"{twin}-length{length}-", "evaluations.json")
            ]
        ]
        for twin in ("softmax", "relu")
    ]


def test_what_came_first_and_what_was_translated_again_is_as_the_text_says():
    shares = [[f"{group.mean():.0%}" for group in twin] for twin in by_length("repeated_share")]
    assert "{}, {} and {} of softmax's segments at 256, 512 and 1024".format(*shares[0]) in TEXT
    assert "1024 tokens, {}, {} and {} of ReLUFormer's".format(*shares[1]) in TEXT
    for key, text in (
        ("document_bleu", "the gap does shrink: {}, {} and {}, by"),
        ("chrf", "the gap grows: {}, {} and {}."),
    ):
        pairs = zip(*by_length(key), strict=True)
        gaps = [f"{softmax.mean() - relu.mean():.1f}" for softmax, relu in pairs]
        assert text.format(*gaps) in TEXT
    softmax, relu = by_length("document_bleu")
    groups = [relu[2], softmax[2], relu[0], softmax[0]]
    drawn = bootstrap(groups, change)
    assert f"by {drawn.value:.1f} ({drawn.low:+.1f} to {drawn.high:+.1f}) from 256" in TEXT
    kept = [f"{relu[n].mean() / softmax[n].mean():.0%}" for n in (0, 2)]
    assert "from {} of softmax's d-BLEU to {}".format(*kept) in TEXT


def test_parts_and_sizes_are_as_the_text_says():
    assert SOURCE_SHARE == 0.75
    assert f"at most {int(512 * SOURCE_SHARE)} source tokens, three quarters" in TEXT
    sizes = []
    for name in ("reluformer_iwslt", "reluformer_base"):
        with torch.device("meta"):
            model = create_model(name)
        sizes.append(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}")
    assert "have {} and {} M".format(*sizes) in TEXT


@pytest.mark.parametrize("kind", ABLATION)
def test_table_of_the_ablation_is_that_of_the_trials(kind):
    bleu, document_bleu, loss = translations("relu-attention", ABLATION[kind]).T
    assert f"| {kind} | {rounded(bleu)} | {rounded(document_bleu)} | {loss.mean():.2f} |" in PAGE


def test_softmax_had_the_loss_of_reluformer_by_update_1200():
    def train_loss(name, step):
        runs = read_runs([STUDIES / "relu-attention" / f"{name}-seed{seed}" for seed in range(3)])
        rows = [row for run in runs for row in run.train if row["step"] == step]
        assert len(rows) == 3
        return np.mean([row["loss"] for row in rows])

    last = train_loss("relu-factor-and-penalty", 2000)
    assert train_loss("softmax", 1200) < last < train_loss("softmax", 1100)
