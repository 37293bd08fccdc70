"""Random calls over all options, as ``flashpoint doctor --check`` makes them, within budget.

A miss prints its line, which begins with number N and implementation I of the case. On the test's
device D ``flashpoint doctor --check --seed 0 --device D --impl I --case N`` repeats it.
"""

import pytest
import torch
from implementations import HAS_GPU, HAS_TRITON, needs_gpu

from flashpoint.lab.selfcheck.draws import Scope, draw_case
from flashpoint.lab.selfcheck.run import run_case


def has_no_kernel(case):
    """Whether its activation is one that users make without functions for Triton."""
    return case.impl == "triton" and case.activation in ("tanh", "leaky", "square")


def assert_exact(scope, indices):
    """No case of these misses its budget, and those without a kernel alone are refused."""
    device = torch.device(scope.device)
    cases = [draw_case(0, index, scope) for index in indices]
    outcomes = [run_case(case, device) for case in cases]
    missed = [f"{outcome.line}: {outcome.detail}" for outcome in outcomes if outcome.is_miss]
    assert not missed, "\n".join(missed)
    refused = {outcome.line: outcome.detail for outcome in outcomes if outcome.is_refused}
    assert list(refused) == [str(case) for case in cases if has_no_kernel(case)], refused


@pytest.mark.parametrize("first", range(0, 250, 25))
def test_random_calls_on_the_cpu_stay_within_the_budget(first):
    assert_exact(Scope("cpu", ("cpu", "reference")), range(first, first + 25))


@pytest.mark.skipif(HAS_GPU or not HAS_TRITON, reason="kernels are interpreted without a GPU only")
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 56, 8))]
)
def test_random_interpreted_calls_stay_within_the_budget(first):
    assert_exact(Scope("cpu", ("triton",)), range(first, first + 8))


@needs_gpu
@pytest.mark.gpu
@pytest.mark.usual_tiles
@pytest.mark.parametrize("first", range(0, 200, 40))
def test_random_calls_on_a_gpu_stay_within_the_budget(first):
    assert_exact(Scope("cuda", ("triton", "reference")), range(first, first + 40))
