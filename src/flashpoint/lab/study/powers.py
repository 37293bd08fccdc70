"""relu's sixth power, which the operator has not built in, as a word that configs may use.

Its relu6 is relu up to 6, no power. On a GPU the definition in plain PyTorch serves this one: at
the few hundred tokens of a study its memory for all weights is small, and nobody times it there.
"""

import torch
import torch.nn.functional as F

from flashpoint.ops.activation import Activation, register_activation


def _sixth(scores: torch.Tensor) -> torch.Tensor:
    square = F.relu(scores).square()
    return square * square * square


def _sixth_slope(scores: torch.Tensor) -> torch.Tensor:
    r = F.relu(scores)
    return 6.0 * r.square().square() * r


SIXTH = Activation("relu_p6", _sixth, _sixth_slope, degree=6, is_nonnegative=True)


def register_powers() -> None:
    """Make the word known in this process: before a config that has it is read."""
    register_activation(SIXTH)
