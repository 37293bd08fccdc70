"""The few-shot probe: how well a linear reader learns from a few images a class.

Frozen features of ``shots`` images a class, standardized by their own mean and deviation, one
large constant feature for the bias, targets of -1 and +1, ridge regression, the largest answer.
Systems are solved in fp64, so that the two ways to write them agree.
"""

import statistics
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.data.image_source import Integers
from flashpoint.shapes import Float, Int

L2 = 1024.0
BIAS_FEATURE = 100.0
"""So large that the penalty hardly touches the weight it gets."""
MIN_DEVIATION = 1e-5


class NotFinite(InputError):
    """Features that nothing can be learned from, as a model has that diverged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """What a frozen model makes of a set of images: values [N, E] and labels [N]."""

    values: Float[Tensor, "N E"]
    labels: Int[Tensor, " N"]

    def take(self, index: Integers) -> "Features":
        """Some of the images, in the order of ``index``."""
        chosen = torch.from_numpy(index)
        return Features(values=self.values[chosen], labels=self.labels[chosen])


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResult:
    """Accuracies of one probe, by seed.

    Attributes:
        shots: training images a class.
        seeds: each chooses its own images.
        accuracies: share of right answers on all test images, one for each seed.
        broken: test images and shards of both splits that could not be read, and why.
    """

    shots: int
    num_classes: int
    num_test: int
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    broken: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Of the seeds' accuracies."""
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds, or None for a single one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


def choose_shots(labels: Integers, num_classes: int, shots: int, seed: int) -> Integers:
    """Places of ``shots`` images of every class: the first of a permutation by the seed.

    Args:
        labels: of all training images, [N], below ``num_classes``.
        shots: at most as many as the smallest class has images.
    """
    counts = np.bincount(labels, minlength=num_classes)
    if not 1 <= shots <= counts.min():
        raise InputError(
            f"shots={shots} must lie between 1 and {counts.min()}, the training images of the "
            f"smallest class (number {counts.argmin()})."
        )
    random = np.random.default_rng(seed)
    chosen = [random.permutation(np.flatnonzero(labels == c))[:shots] for c in range(num_classes)]
    return np.concatenate(chosen)


def fit_ridge(
    x: Float[Tensor, "N D"], y: Float[Tensor, "N C"], l2: float = L2
) -> Float[Tensor, "D C"]:
    """w that minimizes ``|x w - y|^2 + l2 |w|^2``, from the smaller of the two systems."""
    return fit_primal(x, y, l2) if x.shape[0] >= x.shape[1] else fit_dual(x, y, l2)


def fit_primal(
    x: Float[Tensor, "N D"], y: Float[Tensor, "N C"], l2: float
) -> Float[Tensor, "D C"]:
    """``(x'x + l2)^-1 x'y``: D equations."""
    return _solve(x.mT @ x, x.mT @ y, l2)


def fit_dual(x: Float[Tensor, "N D"], y: Float[Tensor, "N C"], l2: float) -> Float[Tensor, "D C"]:
    """``x' (xx' + l2)^-1 y``: N equations."""
    return x.mT @ _solve(x @ x.mT, y, l2)


def _solve(gram: Tensor, target: Tensor, l2: float) -> Tensor:
    """Cholesky: with l2 > 0 the system is positive definite."""
    system = gram + l2 * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.cholesky_solve(target, torch.linalg.cholesky(system))


def few_shot_accuracy(few: Features, test: Features, num_classes: int) -> float:
    """The share of test images for whose class the linear reader answers most."""
    answers = few_shot_answers(few, test, num_classes)
    return (answers.argmax(1) == test.labels).double().mean().item()


def few_shot_answers(
    few: Features, test: Features, num_classes: int
) -> Float[Tensor, "N classes"]:
    """What a linear reader that learned from a few images says of others, about -1 to +1."""
    for features in (few, test):
        _require_finite(features)
    values = few.values.double()
    mean = values.mean(0)
    deviation = values.std(0, correction=0) + MIN_DEVIATION
    targets = 2.0 * torch.nn.functional.one_hot(few.labels, num_classes).double() - 1.0
    weights = fit_ridge(_prepare(values, mean, deviation), targets)
    return _prepare(test.values.double(), mean, deviation) @ weights


def _prepare(values: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Standardized, with the constant feature behind."""
    return torch.nn.functional.pad((values - mean) / deviation, (0, 1), value=BIAS_FEATURE)


def _require_finite(features: Features) -> None:
    """Refuse what nothing can be learned from."""
    bad = (~features.values.isfinite().all(1)).sum().item()
    if bad:
        raise NotFinite(
            f"the features of {bad} of {len(features.labels)} images are not finite. "
            "Probe another checkpoint."
        )
