"""What forward keeps for backward, alike in all strategies."""

from typing import Any

from torch import Tensor

from flashpoint.distributed.call import ShardedCall

_SCORES = slice(4, 6)  # bias and mask among the inputs of a strategy: call, q, k, v, bias, mask


def save(ctx: Any, call: ShardedCall, *tensors: Tensor | None) -> None:
    """Keep a call and tensors; autograd sees if those of the call are changed in place, too."""
    ctx.set_materialize_grads(False)
    ctx.call = call._replace(bias=None, mask=None, key_lengths=None)
    ctx.save_for_backward(*tensors, call.bias, call.mask, call.key_lengths)


def load(ctx: Any) -> tuple[ShardedCall, list[Any]]:
    """The call, which knows now which gradients are needed, and the tensors."""
    *tensors, bias, mask, key_lengths = ctx.saved_tensors
    needs_bias, needs_mask = ctx.needs_input_grad[_SCORES]
    call = ctx.call._replace(bias=bias, mask=mask, key_lengths=key_lengths)
    return call._replace(needs=(needs_bias, needs_mask)), tensors
