"""The smallest language models, for tests of all that is done with them."""

import warnings

import pytest

from flashpoint.lab.training import config_file

TINY = {
    "task": "language",
    "model": {"name": "gpt2", "width": 16, "depth": 2, "num_heads": 2},
    "data": {
        **{"train": "words:60", "validation": "words:60", "length": 32},
        "pieces": {"vocabulary_size": 330},
    },
    "steps": 12,
    "batch_size": 128,
    "optimizer": {"lr": 1e-2},
    "precision": "fp32",
    "device": "cpu",
    "log_every": 5,
    "evaluate_every": 6,
    "checkpoint_every": 4,
}


def require_gpt2():
    """Skip where transformers is missing; deprecations inside it are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("transformers.models.gpt2.modeling_gpt2")


def language_config(*changes):
    """The smallest run, changed by ``a.b=c`` texts."""
    return config_file.parse(TINY, changes)
