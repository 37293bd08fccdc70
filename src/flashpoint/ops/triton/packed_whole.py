"""Packed q, k and v of heads that fit one tile, norms inside: short sequences of small patches.

A program goes over heads, and what it loads of one it keeps until the end. Backward makes the
scores once for all gradients: five products. Rows behind the last are zeros, and so is what they
add.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.triton.activations import in_kernels, is_builtin
from flashpoint.ops.triton.packed_call import PackedCall
from flashpoint.ops.triton.packed_norm import normalise, normalise_gradient
from flashpoint.ops.triton.packed_tiles import load_part, store_part
from flashpoint.ops.triton.problem import prepare
from flashpoint.ops.triton.replay import Recorder, only, run_recorded
from flashpoint.ops.triton.tiles import finish_scores, gradient_of_scores
from flashpoint.ops.triton.tuning import SMALLEST_BLOCK, gpu_of

MOST_TOKENS = 64
LARGEST_DIM = 64
# heads that a program loads ahead, with its own, and programs per processor: measured on an H200
FORWARD, NORMED_FORWARD, BACKWARD = (2, 4), (1, 8), (2, 2)


@triton.jit
def load_head(
    qkv, strides, q_gain, k_gain, q_eps, k_eps, b, h, L,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """q and k as they are, q-hat, k-hat and v of a head: [ROWS, BLOCK_D] each."""
    exists = tl.arange(0, ROWS) < L
    q = load_part(qkv, strides, b, h, 0, 0, L, D, ROWS, BLOCK_D)
    k = load_part(qkv, strides, b, h, 1, 0, L, D, ROWS, BLOCK_D)
    v = load_part(qkv, strides, b, h, 2, 0, L, D, ROWS, BLOCK_D)
    q_hat = normalise(q, exists, q_gain, q_eps, Q_NORM, D)
    return q, k, q_hat, normalise(k, exists, k_gain, k_eps, K_NORM, D), v


@triton.jit
def score(
    a, b, scale, bias_number, HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr
):
    """scale * a @ b.T + bias_number."""
    s = tl.dot(a, b.T, input_precision="ieee")
    return finish_scores(
        s, 0, 0, None, (), 0, 0, 0, 0, scale, bias_number, HAS_SCALE, HAS_BIAS_NUMBER
    )


@triton.jit
def packed_whole_kernel(
    qkv, o, q_gain, k_gain,                        # pointers; the gains may be None
    qkv_strides, H, L, num_heads,                  # num_heads: of all samples
    q_eps, k_eps, scale, bias_number, gain, shrink,
    WEIGH: tl.constexpr, Q_NORM: tl.constexpr, K_NORM: tl.constexpr, D: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS_NUMBER: tl.constexpr, SHRINKS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, PREFETCH: tl.constexpr,
):
    """o_i = gain * n ** -alpha * sum_j h(scale * q-hat_i . k-hat_j + b) v_j of whole heads."""
    first, step = tl.program_id(0), tl.num_programs(0)
    for head in tl.range(first, num_heads, step, num_stages=PREFETCH):
        b, h = head // H, head % H
        _, _, q, k, v = load_head(
            qkv, qkv_strides, q_gain, k_gain, q_eps, k_eps, b, h, L,
            Q_NORM, K_NORM, D, ROWS, BLOCK_D,
        )
        w = WEIGH(score(q, k, scale, bias_number, HAS_SCALE, HAS_BIAS_NUMBER))
        if SHRINKS:
            w *= shrink
        o_tile = tl.dot(w.to(v.dtype), v, input_precision="ieee")
        o_tile *= gain / shrink if SHRINKS else gain
        store_part(o, o_tile, b, h, 0, 0, L, H, D, 1)


@triton.jit
def take_back(
    dhat, x, dqkv, gain, eps, b, h, part: tl.constexpr, L, H,
    KIND: tl.constexpr, D: tl.constexpr,
):
    """Take dq-hat (part 0) or dk-hat (part 1) through the norm to dqkv; gives dgain's share."""
    exists = tl.arange(0, x.shape[0]) < L
    dx, share = normalise_gradient(dhat, x, exists, gain, eps, KIND, D)
    store_part(dqkv, dx, b, h, part, 0, L, H, D, 3)
    return share


@triton.jit
def store_share(dgain, share, D: tl.constexpr):
    """A program's share of a gain's gradient goes to its row of dgain [programs, D]."""
    if dgain is not None:
        d = tl.arange(0, share.shape[0])
        tl.store(dgain + tl.program_id(0) * D + d, share, mask=d < D)


@triton.jit
def packed_whole_backward_kernel(
    qkv, do, dqkv, q_gain, k_gain, dq_gain, dk_gain,  # pointers; the last four may be None
    qkv_strides, do_strides, H, L, num_heads,         # num_heads: of all samples
    q_eps, k_eps, scale, bias_number, gain, shrink, shrink_ds,
    WEIGH: tl.constexpr, GRADIENT: tl.constexpr, IS_BUILTIN: tl.constexpr, Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr, D: tl.constexpr, HAS_SCALE: tl.constexpr,
    HAS_BIAS_NUMBER: tl.constexpr, SHRINKS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, PREFETCH: tl.constexpr,
):
    """dqkv of whole heads, by ``backward``'s formulas; a row of dq_gain and dk_gain a program."""
    q_share, k_share = tl.zeros([BLOCK_D], tl.float32), tl.zeros([BLOCK_D], tl.float32)
    first, step = tl.program_id(0), tl.num_programs(0)
    for head in tl.range(first, num_heads, step, num_stages=PREFETCH):
        b, h = head // H, head % H
        q, k, q_hat, k_hat, v = load_head(
            qkv, qkv_strides, q_gain, k_gain, q_eps, k_eps, b, h, L,
            Q_NORM, K_NORM, D, ROWS, BLOCK_D,
        )
        do_tile = load_part(do, do_strides, b, h, 0, 0, L, D, ROWS, BLOCK_D)
        s = score(k_hat, q_hat, scale, bias_number, HAS_SCALE, HAS_BIAS_NUMBER)
        dw = tl.dot(v, do_tile.T, input_precision="ieee")  # [keys, queries], as s
        w, ds = WEIGH(s), gradient_of_scores(s, dw, GRADIENT, IS_BUILTIN)
        if SHRINKS:
            w, ds = w * shrink, ds * shrink_ds
        tail = scale * gain / shrink_ds if SHRINKS else scale * gain
        dv = tl.dot(w.to(do_tile.dtype), do_tile, input_precision="ieee")
        store_part(dqkv, dv * (gain / shrink if SHRINKS else gain), b, h, 2, 0, L, H, D, 3)
        ds = ds.to(q.dtype)
        dk = tl.dot(ds, q_hat, input_precision="ieee") * tail
        dq = tl.dot(ds.T, k_hat, input_precision="ieee") * tail
        k_share += take_back(dk, k, dqkv, k_gain, k_eps, b, h, 1, L, H, K_NORM, D)
        q_share += take_back(dq, q, dqkv, q_gain, q_eps, b, h, 0, L, H, Q_NORM, D)
    store_share(dq_gain, q_share, D)
    store_share(dk_gain, k_share, D)


def suits(call: PackedCall) -> bool:
    """True where heads fit one tile and every query sees every key."""
    _, L, _, _, D = call.qkv.shape
    sees_all = call.terms.left is None and call.terms.right is None
    return (
        L <= MOST_TOKENS and D <= LARGEST_DIM and call.qkv.dtype in (torch.bfloat16, torch.float16)
        and sees_all and is_builtin(call.terms.activation) and call.qkv.numel() > 0
    )


def launch_whole(call: PackedCall) -> Tensor:
    """[B, L, H, D] from qkv [B, L, 3, H, D]."""
    inputs = prepare(qkv=call.qkv, q_gain=call.q_gain, k_gain=call.k_gain)
    B, L, _, H, D = call.qkv.shape

    def first_call(recorder: Recorder) -> list[Tensor]:
        o = recorder.empty("o", (B, L, H, D), call.qkv.dtype)
        kernel = packed_whole_kernel
        has_norm = (call.norm.q_kind, call.norm.k_kind) != ("none", "none")
        programs, tiles = _tiles(call, *(NORMED_FORWARD if has_norm else FORWARD))
        everything = call._replace(**inputs).arguments() | {"o": o}
        recorder.launch(kernel, programs, only(kernel, everything) | tiles)
        return [o]

    options = (*call.norm, *call.terms)
    return run_recorded("packed_whole", inputs, options, ("o",), first_call)[0]


def launch_whole_backward(call: PackedCall, do: Tensor) -> list[Tensor]:
    """dqkv, and the gradients of the gains there are."""
    gains = {"dq_gain": call.q_gain, "dk_gain": call.k_gain}
    gains = {name: gain for name, gain in gains.items() if gain is not None}
    inputs = prepare(qkv=call.qkv, q_gain=call.q_gain, k_gain=call.k_gain, do=do)

    def first_call(recorder: Recorder) -> list[Tensor]:
        qkv, q_gain, k_gain, do = inputs.values()
        assert do is not None
        kernel = packed_whole_backward_kernel
        programs, tiles = _tiles(call, *BACKWARD)
        dqkv = recorder.empty("dqkv", call.qkv.shape, call.qkv.dtype)
        shape = (programs, call.qkv.shape[4])
        shares = {name: recorder.empty(name, shape, torch.float32) for name in gains}
        key = call.terms.activation
        everything = call._replace(qkv=qkv, q_gain=q_gain, k_gain=k_gain).arguments() | {
            "do": do, "dqkv": dqkv, "dq_gain": None, "dk_gain": None, **shares,
            "do_strides": (do.stride(0), do.stride(1), 0, do.stride(2), do.stride(3)),
            "GRADIENT": in_kernels(key)[1], "IS_BUILTIN": is_builtin(key),
        }
        recorder.launch(kernel, programs, only(kernel, everything) | tiles)
        return [dqkv, *shares.values()]

    options = (*call.norm, *call.terms)
    outputs = ("dqkv", *gains)
    dqkv, *shares = run_recorded("packed_whole_backward", inputs, options, outputs, first_call)
    pairs = zip(shares, gains.values(), strict=True)
    return [dqkv, *(share.sum(0).to(gain.dtype) for share, gain in pairs)]


def _tiles(call: PackedCall, prefetch: int, per_processor: int) -> tuple[int, dict[str, int]]:
    """Programs, and what the compiler takes."""
    B, L, _, H, _ = call.qkv.shape
    programs = min(B * H, per_processor * gpu_of(call.qkv.device).processors)
    rows = max(SMALLEST_BLOCK, triton.next_power_of_2(L))
    own = {"ROWS": rows, "PREFETCH": prefetch, "num_stages": prefetch, "num_warps": 4}
    return programs, own
