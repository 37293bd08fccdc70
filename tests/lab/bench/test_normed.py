"""Cases with norms of q and k: everybody computes the same function, each in its own layout."""

from dataclasses import replace

import pytest
import torch

from flashpoint.lab.bench.accuracy import error_bound, exact_parts, result_error
from flashpoint.lab.bench.calls import (
    by_heads,
    is_packed,
    make_call,
    make_inputs,
    pack,
    prepare,
    unpack,
)
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.check import broken_promises
from flashpoint.lab.bench.entry import Limits
from flashpoint.lab.bench.providers.registry import PROVIDERS
from flashpoint.lab.bench.result import Measurement, Row

CASE = Case(shape=Shape(2, 3, 20, 16), dtype="fp32", mode="training", qk_norm="layer")


def error_of(name, case, inputs):
    provider = PROVIDERS[name]
    result = by_heads(provider, case, make_call(provider, case, inputs)())
    return result_error(list(exact_parts(case, inputs, provider.function)), result)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mode", ["forward", "backward", "training"])
@pytest.mark.parametrize("name", ["flashpoint", "sdpa", "plain"])
def test_result_is_that_of_normalized_q_and_k(name, mode, causal):
    case = replace(CASE, mode=mode, causal=causal)
    assert error_of(name, case, make_inputs(case)) < 1e-5


@pytest.mark.parametrize("name", ["flashpoint", "sdpa"])
def test_a_case_without_norms_is_another_one(name):
    inputs = make_inputs(CASE)
    provider = PROVIDERS[name]
    result = by_heads(provider, CASE, make_call(provider, CASE, inputs)())
    plain = replace(CASE, qk_norm="none")
    parts = list(exact_parts(plain, replace(inputs, gains=()), provider.function))
    assert result_error(parts, result) > 0.1


def test_flashpoint_reads_packed_and_the_others_contiguous_tensors():
    inputs = make_inputs(CASE)
    ours, theirs = (prepare(PROVIDERS[name], CASE, inputs) for name in ("flashpoint", "sdpa"))
    assert is_packed(PROVIDERS["flashpoint"], CASE)
    assert not is_packed(PROVIDERS["flashpoint"], replace(CASE, qk_norm="none"))
    assert [list(leaf.shape) for leaf in ours.leaves] == [[2, 20, 3, 3, 16], [16], [16]]
    assert ours.forward().shape == ours.do.shape == (2, 20, 3, 16)
    assert [list(leaf.shape) for leaf in theirs.leaves] == 3 * [[2, 3, 20, 16]] + 2 * [[16]]
    assert all(leaf.is_contiguous() for leaf in (*ours.leaves, *theirs.leaves, ours.do))


def test_gradients_of_gains_are_computed_too():
    for name in ("flashpoint", "sdpa"):
        grads = make_call(PROVIDERS[name], CASE, make_inputs(CASE))()
        assert [list(grad.shape) for grad in grads[-2:]] == [[16], [16]]


def test_packing_and_back_changes_nothing():
    inputs = make_inputs(CASE)
    for part, whole in zip(unpack(pack(inputs)), inputs.leaves, strict=False):
        assert torch.equal(part, whole)


def test_work_says_so():
    assert CASE.work == "fp32 qk-norm training"


def is_refused(case, error):
    row = Row(
        case=case,
        limits=Limits(),
        error_bound=error_bound(case),
        is_overhead=False,
        measurements=(Measurement(provider="flashpoint", relative_error=error),),
    )
    return "error" in broken_promises(row)


@pytest.mark.parametrize("length", [49, 196])
@pytest.mark.parametrize("qk_norm", ["none", "layer"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_fault_of_two_percent_is_refused_and_rounding_is_not(dtype, qk_norm, length):
    case = Case(shape=Shape(2, 2, length, 64), dtype=dtype, mode="training", qk_norm=qk_norm)
    inputs, provider = make_inputs(case), PROVIDERS["flashpoint"]
    grads = by_heads(provider, case, make_call(provider, case, inputs)())
    parts = list(exact_parts(case, inputs, provider.function))
    assert not is_refused(case, result_error(parts, grads))
    for wrong in range(3):
        off = tuple(grad * (1.02 if at == wrong else 1) for at, grad in enumerate(grads))
        assert is_refused(case, result_error(parts, off))
    forward = replace(case, mode="forward")
    o = by_heads(provider, forward, make_call(provider, forward, make_inputs(forward))())
    assert not is_refused(forward, result_error(parts, o))
    assert is_refused(forward, result_error(parts, o * 1.02))
