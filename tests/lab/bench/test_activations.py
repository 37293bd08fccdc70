"""Every activation is measured, and a wrong one is found out."""

import pytest
import torch

import flashpoint
from flashpoint.errors import InputError
from flashpoint.lab.bench import activations, timing
from flashpoint.lab.bench.activations import measure_activations
from flashpoint.lab.bench.cases import Shape
from flashpoint.ops.activation import BUILTIN

TINY = Shape(1, 2, 33, 16)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(timing, "WARM_S", 0.001)
    monkeypatch.setattr(timing, "MIN_SAMPLE_S", 0.0005)


def test_all_activations_are_right_in_every_dtype():
    rows = list(measure_activations(TINY, ("fp32", "bf16")))
    assert [(row.activation, row.dtype) for row in rows] == [
        (name, dtype) for dtype in ("fp32", "bf16") for name in BUILTIN
    ]
    assert all(row.is_right for row in rows)
    assert all(row.ratio > 0 for row in rows)


def test_fault_in_the_gradient_of_k_is_found(monkeypatch):
    class WrongGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, k):
            return k.clone()

        @staticmethod
        def backward(ctx, dk):
            return dk * 1.001

    right = flashpoint.attention

    def wrong(q, k, v, **options):
        k = k if options.get("impl") == "reference" else WrongGradient.apply(k)
        return right(q, k, v, **options)

    monkeypatch.setattr(flashpoint, "attention", wrong)
    monkeypatch.setattr(activations, "BUILTIN", ("relu",))
    (row,) = measure_activations(TINY, ("fp32",))
    assert row.output.is_right
    assert not row.gradients.is_right
    assert not row.is_right


def test_shape_too_large_for_the_reference_is_refused():
    with pytest.raises(InputError, match=r"would need 17.2 GB for one L x L matrix"):
        next(measure_activations(Shape(1, 8, 16384, 64), ("fp32",)))
