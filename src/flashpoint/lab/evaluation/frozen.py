"""A model that is only looked at."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def frozen(model: nn.Module) -> Generator[None]:
    """Evaluation mode and no gradients; afterwards the model is in the mode that it was in."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
