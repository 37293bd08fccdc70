"""Activations on a tile of scores, in place where PyTorch has a kernel for it.

For each activation a pair: ``weigh_`` turns scores into weights h(s); ``differentiate_`` turns
scores s and the weights' gradient dw into the pair h(s), dw * h'(s). Both may reuse their inputs.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.errors import UnsupportedError
from flashpoint.ops.activation import BUILTIN, STEEP, Activation, registered

aten = torch.ops.aten


class TileActivation(NamedTuple):
    """h and its derivative on tiles."""

    weigh_: Callable[[Tensor], Tensor]
    differentiate_: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


# Rounding a score moves it across a kink, except across one at zero; a steep h multiplies the
# error that it makes.
SMOOTH_IN_BF16 = frozenset(BUILTIN) - STEEP - {"relu6"}


def on_tiles(key: str) -> TileActivation:
    """The pair for an activation's key; a user's is made from the functions given."""
    return _BUILTIN.get(key) or _from_functions(registered(key))


def _relu_(s: Tensor) -> Tensor:
    if s.dtype != torch.bfloat16:
        return s.relu_()
    # PyTorch's bf16 relu goes through fp32 and takes thrice as long. As integers, bf16 numbers
    # keep their signs: up to -128 lie the negative ones and -inf, above it the NaNs to keep.
    torch.threshold_(s.view(torch.int16), -128, 0)
    return s


def _relu_gradient_(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    w = _relu_(s)
    if s.dtype == torch.bfloat16:
        bits, weight_bits = dw.view(torch.int16), w.view(torch.int16)
        aten.threshold_backward.grad_input(bits, weight_bits, 0, grad_input=bits)
    else:
        aten.threshold_backward.grad_input(dw, w, 0, grad_input=dw)
    return w, dw


def _relu2_(s: Tensor) -> Tensor:
    return _relu_(s).mul_(s)


def _relu2_gradient_(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    r, dw = _relu_gradient_(s, dw)  # where r is 0, an infinite dw must not make NaN of it
    ds = dw.mul_(r).mul_(2)
    return r.mul_(r), ds


def _relu3_(s: Tensor) -> Tensor:
    r = _relu_(s)
    return r.mul_(r.square())


def _relu3_gradient_(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    r, dw = _relu_gradient_(s, dw)
    square = r.square()
    return r.mul_(square), dw.mul_(square).mul_(3)


def _relu4_(s: Tensor) -> Tensor:
    return _relu_(s).square_().square_()


def _relu4_gradient_(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    r, dw = _relu_gradient_(s, dw)
    square = r.square()
    ds = dw.mul_(r).mul_(square).mul_(4)
    return torch.mul(square, square, out=r), ds


def _relu6_gradient_(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    ds = aten.hardtanh_backward.grad_input(dw, s, 0, 6, grad_input=dw)
    return s.clamp_(0, 6), ds


def _gelu_gradient_(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    ds = aten.gelu_backward.grad_input(dw, s, grad_input=dw)
    return aten.gelu_(s), ds


def _silu_gradient_(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    ds = aten.silu_backward.grad_input(dw, s, grad_input=dw)
    return F.silu(s, inplace=True), ds


def _softplus_(s: Tensor) -> Tensor:
    return aten.softplus.out(s, 1, 40, out=s)


def _softplus_gradient_(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    ds = aten.softplus_backward.grad_input(dw, s, 1, 40, grad_input=dw)
    return _softplus_(s), ds


def _sigmoid_gradient_(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    if s.dtype == torch.bfloat16:  # too coarse near 1 to take the slope w (1 - w) from w
        rest = s.neg().sigmoid_()
        w = s.sigmoid_()
        return w, dw.mul_(w).mul_(rest)
    w = s.sigmoid_()
    return w, aten.sigmoid_backward.grad_input(dw, w, grad_input=dw)


def _exp_gradient_(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    w = s.exp_()
    return w, dw.mul_(w)


_BUILTIN = {
    "relu": TileActivation(_relu_, _relu_gradient_),
    "relu2": TileActivation(_relu2_, _relu2_gradient_),
    "relu3": TileActivation(_relu3_, _relu3_gradient_),
    "relu4": TileActivation(_relu4_, _relu4_gradient_),
    "relu6": TileActivation(lambda s: s.clamp_(0, 6), _relu6_gradient_),
    "gelu": TileActivation(aten.gelu_, _gelu_gradient_),
    "silu": TileActivation(lambda s: F.silu(s, inplace=True), _silu_gradient_),
    "softplus": TileActivation(_softplus_, _softplus_gradient_),
    "sigmoid": TileActivation(lambda s: s.sigmoid_(), _sigmoid_gradient_),
    "exp": TileActivation(lambda s: s.exp_(), _exp_gradient_),
    "identity": TileActivation(lambda s: s, lambda s, dw: (s, dw)),
}


@contextmanager
def _recording() -> Generator[None]:
    """Autograd, also inside an operator's kernel, where the dispatcher has it switched off."""
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


def _from_functions(activation: Activation) -> TileActivation:
    def weigh(s: Tensor) -> Tensor:
        # A user's function may return anything of the right shape, an expanded constant too.
        w = activation.weights_of(s)
        if w.requires_grad and not s.requires_grad:
            raise UnsupportedError(
                f"activation {activation.name!r} has parameters that want gradients, which only "
                "impl='reference' gives them."
            )
        return w.to(s.dtype).contiguous()

    def differentiate(s: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
        with _recording():
            weigh(s[:1, :1, :1].clone())  # refuses parameters, which forward could not see
        # Copies of s, since a user's function may write to its argument.
        if activation.derivative is not None:
            return weigh(s.clone()), dw * activation.slopes_of(s).to(dw.dtype)
        with _recording():
            s = s.detach().requires_grad_()
            w = weigh(s.clone())
            if not w.requires_grad:  # a constant
                return w, torch.zeros_like(dw)
            (ds,) = torch.autograd.grad(w, s, dw)
        return w.detach(), ds

    return TileActivation(weigh, differentiate)
