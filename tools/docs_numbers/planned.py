"""What plans have and no stored study has yet: the command, its trials, and their time."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from docs_numbers.documents import speeds
from docs_numbers.stored import Stored
from docs_numbers.tables import numbers, table
from flashpoint.lab.study import store
from flashpoint.lab.study.plan import Training, Trial, options_of, settings_of
from flashpoint.lab.study.registry import STUDIES

SEEDS = {
    **{"sentences": 5, "sharpness": 5, "starts": 8, "memory-rates": 8, "scaling": 8},
    **{"document-length": 5, "retrieval": 5, "longer-than-trained": 12, "qk-norm": 5},
    **{"length-power": 8},
}
"""By study, what is to be run next: the issues at hand first."""
AT_A_TIME = 4
"""Trials that shared the GPU where stored seconds are taken; the command's default."""
EPOCHS, RECALL_STEPS, SLOTS_STEPS = 15, 6000, 1500
"""Of the stored runs that seconds are taken of."""


@numbers("planned")
def _planned(stored: Stored) -> str:
    rows = []
    for study, seeds in SEEDS.items():
        settings = settings_of("small", seeds=seeds)
        place = stored.root / "results" / study
        known = {one.name for one in store.read_study(place).trials} if place.exists() else set()
        new = [trial for trial in STUDIES[study].plan(settings) if trial.name not in known]
        command = " ".join(["flashpoint study run", study, *options_of(settings)])
        minutes = sum(_seconds(stored, trial) for trial in new) / 60
        rows.append([f"`{command}`", len(known), len(new), f"{minutes:.0f}"])
    return table(["command", "trials stored", "trials to run", "minutes, at least"], rows)


def _seconds(stored: Stored, trial: Trial) -> float:
    """Of training alone on the GPU, by what the stored runs nearest to it took."""
    assert isinstance(trial.work, Training)
    config = trial.work.config
    if config["task"] == "vision":
        return _vision_seconds(stored, config)
    model = config["model"]
    if config["data"].get("samples") == "segments":
        tokens = config["epochs"] * _tokens_per_epoch(stored)
        return tokens / _speed(stored, config)["tokens_per_s"]["median"]
    if model["width"] == 64:
        return _shared(
            stored, "retrieval", "softmax-trained_pairs32", config["steps"] / RECALL_STEPS
        )
    if model["encoder_depth"] == 2:
        arm = f"softmax-slots{model['mlp_dim']}"
        return _shared(stored, "memory-slots", arm, config["steps"] / SLOTS_STEPS)
    return config["steps"] * _speed(stored, config)["ms_per_step"] / 1000


def _vision_seconds(stored: Stored, config: Mapping[str, Any]) -> float:
    model = config["model"]
    twin = "softmax" if _takes_softmax_s(model["attention"]) else "relu"
    arm = f"{model['width']}-{model['patch_size']}-{twin}"
    return _shared(stored, "scaling", arm, config["epochs"] / EPOCHS)


def _shared(stored: Stored, study: str, arm: str, share: float) -> float:
    """Of runs that shared the GPU, mean over seeds, for so much of their length."""
    return share * float(np.mean(stored.values(study, f"{arm}-", "seconds"))) / AT_A_TIME


def _speed(stored: Stored, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Training alone at the nearest length: with softmax, relu, or relu and its penalty."""
    attention = config["model"]["attention"]
    twin = "softmax" if _takes_softmax_s(attention) else "relu"
    is_plain = twin == "softmax" or config.get("penalty") == 0.0
    found = [
        line
        for line in speeds(stored)
        if line["attention"] == twin and (line["penalty"] == 0.0) == is_plain
    ]
    return min(found, key=lambda line: abs(line["length"] - config["data"]["length"]))


def _takes_softmax_s(attention: object) -> bool:
    """Softmax, and what has not been timed: powers over their sums are taken for as slow."""
    if isinstance(attention, Mapping):
        return "normalize" in attention or attention["activation"] == "relu_p6"
    return attention == "softmax" or str(attention).endswith("/sum")


def _tokens_per_epoch(stored: Stored) -> float:
    """Of the documents' targets, cut once."""
    (run,) = stored.runs_of("document-length", "softmax-length512-", (0,))
    return run.record["notes"]["target_tokens_per_epoch"] / run.config["data"]["resolutions"]
