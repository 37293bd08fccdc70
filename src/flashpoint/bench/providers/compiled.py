"""How the providers that need torch.compile use it."""

import torch
import torch._functorch.config as functorch_config

from flashpoint.bench.providers.provider import Attend


def compiled(attend: Attend) -> Attend:
    """One graph for one shape, or an error; its backward may run many times."""
    functorch_config.donated_buffer = False  # else backward refuses retain_graph
    return torch.compile(attend, fullgraph=True, dynamic=False)
