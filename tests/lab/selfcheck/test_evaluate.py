"""What a division by sums takes off the gradients: the part that nearly cancels."""

from dataclasses import replace

import pytest
import torch

from flashpoint.lab.selfcheck.case import Case
from flashpoint.lab.selfcheck.evaluate import evaluate, evaluate_parts
from flashpoint.lab.selfcheck.values import draw

SIZES = {"B": 2, "Hq": 2, "Hkv": 2, "Lq": 5, "Lk": 5, "D": 4, "Dv": 4}
VARLEN = SIZES | {"sequences": ((5, 5), (3, 4))}


def make(function, **options):
    """A case of few numbers in fp64."""
    sizes = VARLEN if function == "varlen" else SIZES
    return Case(
        seed=0, index=0, impl="cpu", function=function, dtype="fp64", **sizes, **options
    )  # fmt: skip


@pytest.mark.parametrize("function", ["attention", "varlen", "qkvpacked"])
def test_gradient_of_one_key_is_all_cancelled(function):
    """A query that sees itself alone gives v: dq is 0, the difference of two that are not."""
    case = make(function, activation="relu4", normalize="sum", floor=0.0, window=(0, 0))
    values = draw(case, 0, torch.device("cpu"))
    exact = evaluate(case, values, "reference")
    parts = evaluate_parts(case, values, exact)
    name = "dqkv" if function == "qkvpacked" else "dq"
    left = exact[name][:, :, 0] if function == "qkvpacked" else exact[name]
    assert left.abs().max() < 1e-10 < 1e-2 < parts[name].abs().max()
    assert parts.keys() == exact.keys() - {"o", "sums"}
    assert not evaluate_parts(replace(case, normalize="length"), values, exact)


def test_gradient_is_what_is_left_of_two_parts():
    """The other part is the gradient of a call whose sums do not divide, row by row."""
    case = make("attention", activation="softplus", normalize="sum", floor=0.5)
    values = draw(case, 0, torch.device("cpu"))
    exact = evaluate(case, values, "reference")
    parts = evaluate_parts(case, values, exact)
    given = replace(case, return_sums=True)
    sums = evaluate(given, values | {"dsums": torch.zeros(2, 2, 5).double()}, "reference")["sums"]
    alone = replace(case, normalize="length", alpha=0.0)
    over = values | {"do": values["do"] / (sums + 0.5 * 5)[..., None]}
    other = evaluate(alone, over, "reference")
    for name in ("dq", "dk"):
        torch.testing.assert_close(exact[name], other[name] - parts[name])
