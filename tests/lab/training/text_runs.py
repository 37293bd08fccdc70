"""A corpus of a few documents, and the smallest run that learns from it."""

import json

import numpy as np

from flashpoint.lab.training import config_file

WORDS = (
    *("time", "house", "water", "people", "number", "letter", "story", "river", "music", "paper"),
    *("garden", "winter", "summer", "bridge", "market", "window", "doctor", "mother", "stone"),
)
TINY = {
    "task": "text",
    "model": {"name": "reluformer_tiny", "width": 32, "num_heads": 2, "mlp_dim": 32},
    "data": {"length": 64, "pieces": {"vocabulary_size": 330}},
    "steps": 12,
    "batch_size": 512,
    "optimizer": {"lr": 3e-3},
    "schedule": {"warmup_steps": 2},
    "precision": "fp32",
    "device": "cpu",
    "log_every": 5,
    "evaluate_every": 6,
    "checkpoint_every": 4,
}


def write_corpus(folder, number=30):
    """Documents of some segments, as JSON lines; the translation says the same in capitals."""
    rng = np.random.default_rng(0)
    for split, count in (("train", number), ("validation", 6)):
        lines = []
        for n in range(count):
            sources = [
                " ".join(rng.choice(WORDS, rng.integers(2, 6))) for _ in range(rng.integers(1, 6))
            ]
            segments = [[source, source.upper()] for source in sources]
            lines.append(json.dumps({"name": f"{split}{n}", "segments": segments}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def text_config(corpus, *changes):
    """The smallest run on a corpus, changed by ``a.b=c`` texts."""
    where = (f"data.train=jsonl:{corpus}", f"data.validation=jsonl:{corpus}")
    return config_file.parse(TINY, (*where, *changes))
