"""From a provider and a case to the call that is timed."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle

import torch
from torch import Tensor

from flashpoint.bench.cases import Case
from flashpoint.bench.inputs import Inputs
from flashpoint.bench.providers.provider import Provider
from flashpoint.bench.timing import Call


def make_forward(provider: Provider, case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    """The call that gives o; whether it records a graph is up to the inputs."""
    return partial(provider.bind(case), inputs.q, inputs.k, inputs.v)


def make_call(provider: Provider, case: Case, inputs: Inputs) -> Call:
    """The call to time: gives o, or (dq, dk, dv) in backward and training."""
    forward = make_forward(provider, case, inputs)
    if case.mode == "training":
        return lambda: torch.autograd.grad(forward(), inputs.leaves, inputs.do)
    if case.mode == "backward":
        output = forward()
        return lambda: torch.autograd.grad(output, inputs.leaves, inputs.do, retain_graph=True)
    return forward


def make_rotating_call(provider: Provider, case: Case, input_sets: Sequence[Inputs]) -> Call:
    """The same on the next inputs each time, beginning with the first."""
    calls = [make_call(provider, case, inputs) for inputs in input_sets]
    if len(calls) == 1:
        return calls[0]
    turns = cycle(calls)
    return lambda: next(turns)()
