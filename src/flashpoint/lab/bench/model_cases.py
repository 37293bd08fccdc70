"""Whole models to measure, as plain data; no torch is imported here."""

from collections.abc import Mapping
from dataclasses import dataclass

from flashpoint.lab.bench.limits import SpeedLimit

OURS, RIVAL = "relu", "softmax"
TWINS = (OURS, RIVAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCase:
    """A model and a batch; both twins have norms of q and k.

    Attributes:
        model: as ``flashpoint models`` lists it.
        batch: images of a step.
        image_size: their height and width.
    """

    model: str
    batch: int
    image_size: int = 224
    device: str = "cuda"

    def __str__(self) -> str:
        return f"{self.model}, {self.batch} images"


MODEL_LIMITS: Mapping[ModelCase, SpeedLimit] = {
    ModelCase(model="vit_s16", batch=1024): SpeedLimit(rivals=(RIVAL,), must=1.12, aim=1.22),
    ModelCase(model="vit_s8", batch=256): SpeedLimit(rivals=(RIVAL,), must=1.2, aim=1.4),
}
"""The suite vit-model."""


def stated_limit(case: ModelCase) -> SpeedLimit | None:
    """What is promised for a case, if anything."""
    return MODEL_LIMITS.get(case)
