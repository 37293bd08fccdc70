"""Gradients of gradients, which no strategy gives: refused before anything is sent."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from flashpoint.errors import UnsupportedError


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward that refuses where autograd would record it, on all ranks alike.

    Autocast has no say in it, as in forward.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "attention over shards has no second derivatives. Leave create_graph=True out, or "
                "attend on one rank by impl='reference'."
            )
        device = next(x.device.type for x in grads if x is not None)
        with torch.autocast(device, enabled=False):
            return backward(ctx, *grads)

    return run
