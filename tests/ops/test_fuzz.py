"""Random calls over all options, as ``flashpoint doctor --check`` makes them, within budget.

A miss prints its line; its number repeats it: ``flashpoint doctor --check --seed 0 --case N``,
with ``--impl`` where the test names one.
"""

import pytest
import torch
from implementations import HAS_GPU, HAS_TRITON, needs_gpu

from flashpoint.selfcheck.draws import Scope, draw_case
from flashpoint.selfcheck.run import run_case


def assert_exact(scope, indices):
    """No case of these misses its budget, and most are judged."""
    device = torch.device(scope.device)
    outcomes = [run_case(draw_case(0, index, scope), device) for index in indices]
    missed = [f"{outcome.line}: {outcome.detail}" for outcome in outcomes if outcome.is_miss]
    assert not missed, "\n".join(missed)
    assert sum(outcome.is_refused for outcome in outcomes) < len(outcomes)


@pytest.mark.parametrize("first", range(0, 250, 25))
def test_random_calls_on_the_cpu_stay_within_the_budget(first):
    assert_exact(Scope("cpu", ("cpu", "reference")), range(first, first + 25))


@pytest.mark.skipif(HAS_GPU or not HAS_TRITON, reason="kernels are interpreted without a GPU only")
@pytest.mark.parametrize("first", range(0, 56, 8))
def test_random_interpreted_calls_stay_within_the_budget(first):
    assert_exact(Scope("cpu", ("triton",)), range(first, first + 8))


@needs_gpu
@pytest.mark.gpu
@pytest.mark.usual_tiles
@pytest.mark.parametrize("first", range(0, 200, 40))
def test_random_calls_on_a_gpu_stay_within_the_budget(first):
    assert_exact(Scope("cuda", ("triton", "reference")), range(first, first + 40))
