"""Gradients of gradients, which no strategy gives: refused before anything is sent."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from flashpoint.errors import UnsupportedError


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward that refuses where autograd would record it, on all ranks alike."""

    @functools.wraps(backward)
    def run(*given: Any) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "attention over shards has no second derivatives. Leave create_graph=True out, or "
                "attend on one rank by impl='reference'."
            )
        return backward(*given)

    return run
