"""What is over the error budget of results over ranks, beside the reference's."""

from dataclasses import replace

import torch
from distributed.cases import join, run_cases, run_parts, run_whole

from flashpoint.lab.selfcheck.judge import Sample, Sums, share_of

SMALLEST = 1e-25  # of w log w nothing is known beside weights that are 0
FINER = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
DRAWS, MOST_AGAIN = 16, 8


def sample_of(case, results):
    """All ranks' results together, beside the reference's; in fp64 its error is fp32's, scaled."""
    exact = run_whole(case, torch.float64)
    if case.dtype == torch.float64:
        rounded = run_whole(case, torch.float32)
        plain = {name: x + FINER * (rounded[name].double() - x) for name, x in exact.items()}
    else:
        plain = run_whole(case, case.dtype)
    got = join(case, results)
    assert all(x.dtype == plain[name].dtype for name, x in got.items())
    return Sample(got, exact, plain, run_parts(case, exact))


def judge(case, samples):
    """What is over the project's budget, or None."""
    longest = 2 * max(sum(case.queries), sum(case.keys), 64)
    many = case.sizes[0] * case.sizes[1] * longest
    on_top = {"sums": longest, "dbias": many, "dmask": many}
    sums = Sums(case.sizes[1] / case.sizes[2], longest, on_top, case.dtype)
    shares = [share_of(name, samples, sums) for name in samples[0].got]
    over = [share for share in shares if share.ratio > 1 and share.error > SMALLEST]
    return str(over[0]) if over else None


def misses(workers, cases, size):
    """(case, strategy, what is over) of those that are; a miss is asked again of more draws."""
    found = workers.run(run_cases, cases, size)
    again = []
    for i, (case, name) in enumerate(cases):
        sample = sample_of(case, [of_rank[i][0] for of_rank in found[:size]])
        over = judge(case, [sample])
        if over:
            again.append((case, name, over))
    if len(again) > MOST_AGAIN:
        return again
    missed = []
    for case, name, _ in again:
        drawn = [replace(case, seed=case.seed + 10_000 * i) for i in range(DRAWS)]
        found = workers.run(run_cases, [(x, name) for x in drawn], size)
        parts = [[of_rank[i][0] for of_rank in found[:size]] for i in range(DRAWS)]
        samples = list(map(sample_of, drawn, parts))
        over = judge(case, samples)
        alone = [
            x._replace(plain=run_whole(y, case.dtype, "cpu"))
            for x, y in zip(samples, drawn, strict=True)
        ]
        if over and judge(case, alone):  # the operator alone may be over, where little is left
            missed.append((case, name, over))
    return missed
