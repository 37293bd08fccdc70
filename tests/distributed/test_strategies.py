"""Every strategy equals one process: forward, gradients, and the elements that are sent."""

import pytest
import torch
from distributed.cases import draw_case, join, run_cases, run_whole, serves
from numerics import assert_judged

from flashpoint.distributed.strategy import STRATEGIES
from flashpoint.lab.selfcheck.judge import Sums

pytestmark = pytest.mark.distributed


def compare(case, results):
    got = join(case, results)
    exact = run_whole(case, torch.float64)
    plain = exact if case.dtype == torch.float64 else run_whole(case, case.dtype)
    longest = 2 * max(sum(case.queries), sum(case.keys), 64)
    if case.options["return_sums"] == "logs":  # log w of weights near 0: a tenth of its digits
        longest *= 100
    sums = Sums(case.sizes[1] / case.sizes[2], longest, {"sums": longest})
    assert_judged(got, exact, plain, sums)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("part", range(3))
def test_strategies_equal_one_process(workers, size, part):
    drawn = [draw_case(1000 * size + 100 * part + i, size) for i in range(25)]
    cases = [(case, name) for case in drawn for name in STRATEGIES if serves(case, name, size)]
    found = workers.run(run_cases, cases, size)
    failed = []
    for i, (case, name) in enumerate(cases):
        try:
            compare(case, [of_rank[i][0] for of_rank in found[:size]])
        except AssertionError as error:
            failed.append(f"{name} {case}: {str(error).splitlines()[0]}")
    assert not failed, f"{len(failed)} of {len(cases)}:\n" + "\n".join(failed[:10])
