"""Each backend serves or refuses by itself."""

from dataclasses import replace

import pytest
import torch

from flashpoint.lab.bench.calls import make_call, make_inputs
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.providers.registry import PROVIDERS

CASE = Case(shape=Shape(2, 2, 40, 16), dtype="fp32", mode="forward", causal=True)


def test_backends_compute_the_same():
    inputs = make_inputs(CASE)
    usual, *others = (
        make_call(PROVIDERS[name], CASE, inputs)() for name in ("sdpa", "sdpa_flash", "sdpa_math")
    )
    for other in others:
        torch.testing.assert_close(other, usual)


@pytest.mark.parametrize("name", ["sdpa_cudnn", "sdpa_efficient"])
def test_backends_of_the_gpu_are_left_out_on_the_cpu(name):
    assert PROVIDERS[name].refusal(CASE).endswith("needs a CUDA device")
    assert PROVIDERS[name].refusal(replace(CASE, device="cuda")) is None


def test_causal_mask_that_means_something_else_is_refused():
    decode = replace(CASE, shape=Shape(1, 2, 40, 16, queries=1))
    assert "starts at the first key" in PROVIDERS["sdpa"].refusal(decode)
    assert PROVIDERS["sdpa"].refusal(replace(decode, causal=False)) is None


def test_math_is_left_out_where_its_matrix_is_too_large():
    long = replace(CASE, shape=Shape(1, 8, 32768, 64), causal=False)
    assert "34.4 GB" in PROVIDERS["sdpa_math"].refusal(long)
    assert PROVIDERS["sdpa_flash"].refusal(long) is None
