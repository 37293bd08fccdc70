"""How the providers that need torch.compile use it."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
import torch._functorch.config as functorch_config

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """One graph for one shape, or an error; its backward may run many times."""
    functorch_config.donated_buffer = False  # else backward refuses retain_graph
    return torch.compile(function, fullgraph=True, dynamic=False)
