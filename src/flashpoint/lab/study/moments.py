"""Moments of h(s) for s ~ N(0, 1), and the variance of attention's output that follows.

    Var o = n ** (1 - 2 alpha) E[h(s)^2]                                values apart from scores
            + n ** (2 - 2 alpha) E[h'(s)]^2 / E                         in a layer of width E

The first line is docs/mathematics.md, section 8. The second is there where keys and values come
of the same tokens x by random matrices: the mean of h(a . x) x over tokens is E[h'] a, which a
sum over n tokens does not average out. No torch: reports compute these beside what was measured.
"""

import math
from collections.abc import Callable

import numpy as np

REACH, STEPS = 12.0, 24_001
"""The integrals run from -12 to 12, where the density is 1e-32; steps of 1e-3 err by 1e-8."""


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def _cdf(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
    "gelu": lambda x: x * _cdf(x),
    "softplus": lambda x: np.logaddexp(0.0, x),
    "identity": lambda x: x,
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
}
"""h by name, the paper's seven first."""

CLOSED_SQUARES = {
    "relu": 1 / 2,
    "relu2": 3 / 2,
    "identity": 1.0,
    "gelu": 1 / 3 + 1 / (2 * math.pi * math.sqrt(3)),
}
"""E h(s)^2 where there is a closed form; of all others the integral."""


def expectation(function: Callable[[np.ndarray], np.ndarray]) -> float:
    """E f(s) for s ~ N(0, 1), by integration.

    Example:
        >>> round(expectation(ACTIVATIONS["relu"]), 4)
        0.3989
    """
    grid = np.linspace(-REACH, REACH, STEPS)
    return float(np.sum(function(grid) * _normal(grid)) * (grid[1] - grid[0]))


def mean_square(activation: str) -> float:
    """E h(s)^2, by a closed form or by integration.

    Example:
        >>> mean_square("relu"), round(mean_square("sigmoid"), 3)
        (0.5, 0.293)
    """
    closed = CLOSED_SQUARES.get(activation)
    if closed is not None:
        return closed
    return expectation(lambda x: ACTIVATIONS[activation](x) ** 2)


def mean_slope(activation: str) -> float:
    """E h'(s), which by Stein's lemma is E s h(s).

    Example:
        >>> round(mean_slope("relu"), 4)
        0.5
    """
    return expectation(lambda x: x * ACTIVATIONS[activation](x))


def output_variance(activation: str, alpha: float, keys: int, width: int | None = None) -> float:
    """Of every coordinate of the output, values of variance 1 and scores ~ N(0, 1).

    Args:
        activation: h, or "softmax", for many keys: e / n.
        alpha: exponent of the length; softmax has none.
        keys: n.
        width: E of a layer whose tokens give both keys and values. None: values of their own.

    Example:
        >>> output_variance("relu", 1.0, 64) == 1 / 128
        True
    """
    if activation == "softmax":
        return math.e / keys + (0.0 if width is None else 1.0 / width)
    apart = keys ** (1 - 2 * alpha) * mean_square(activation)
    if width is None:
        return apart
    return apart + keys ** (2 - 2 * alpha) * mean_slope(activation) ** 2 / width


def variance_name(activation: str, alpha: float, keys: int, *, is_layer: bool = False) -> str:
    """Under which a measured variance stands; softmax has no alpha.

    Example:
        >>> variance_name("relu", 0.5, 64), variance_name("softmax", 0.0, 64, is_layer=True)
        ('relu.alpha0.5.keys64', 'layer.softmax.keys64')
    """
    power = "" if activation == "softmax" else f".alpha{alpha:g}"
    return f"{'layer.' if is_layer else ''}{activation}{power}.keys{keys}"
