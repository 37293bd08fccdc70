"""Who serves a call: the first row of a table that has no reason not to.

Whole heads, decode, Hopper, portable: from the narrowest to the kernels that take every call. A
reason is plain words. The modules of a row are imported when it is taken: those for Hopper cannot
be where Triton has another Gluon.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from flashpoint.errors import UnsupportedError
from flashpoint.ops.gpu.activations import is_builtin
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.device import HOPPER_FAMILY, gpu_of
from flashpoint.ops.gpu.reading import block_of, is_regular, room_of
from flashpoint.ops.gpu.sign_budget import count_heads
from flashpoint.ops.gpu.versions import has_supported_gluon
from flashpoint.ops.implementations import INTERPRETED, why_no_kernel

WHOLE_TOKENS, WHOLE_DIM = 64, 64  # of a head that fits one tile
DECODE_ROWS = 64  # queries times heads that share a key head
DECODE_KEYS = 512
HOPPER_ROWS = 192  # queries that fill the large tiles there; in backward keys too
HOPPER_RELU_ROWS, HOPPER_RELU_DIM = 65, 64  # the same for relu over all of as many keys
HOPPER_DIMS = (64, 128, 192, 256)  # room of D and Dv
NARROW = 128  # room over which they serve relu alone, without sums, and backward by signs
HOPPER_KEYS = 128  # the most in a block
NORMED_DIM = 64  # BLOCK_D with norms there: registers hold x, dx and what comes of them
HALF = (torch.bfloat16, torch.float16)


class Kernels(NamedTuple):
    """A row of the table.

    Attributes:
        name: as ``flashpoint doctor`` prints it.
        why_not: why they do not serve a call, in plain words, or None. With do: its backward.
        forward, backward: import the module whose ``launch`` writes o, ``launch_backward`` dq, dk
            and dv.
        takes_norms: whether they take q and k through norms themselves, if a call has any.
        adds: whether forward adds to a call's totals itself, if it has any.
    """

    name: str
    why_not: Callable[[Call, Tensor | None], str | None]
    forward: Callable[[], ModuleType]
    backward: Callable[[], ModuleType]
    takes_norms: Callable[[Call], bool]
    adds: bool = False


def choose(call: Call, do: Tensor | None = None) -> Kernels:
    """The row that serves a call, or its backward if there is a do."""
    for kernels in TABLE:
        if kernels.why_not(call, do) is None:
            return kernels
    reasons = "; ".join(f"{row.name}: {row.why_not(call, do)}" for row in TABLE)
    raise UnsupportedError(f"no kernel serves this call ({reasons}). Pass impl='reference'.")


def explain(call: Call, do: Tensor | None = None) -> dict[str, str | None]:
    """The table by names, in its order: why rows do not serve a call, down to the one that does.

    That one's reason is None.
    """
    down_to = TABLE.index(choose(call, do)) + 1
    return {kernels.name: kernels.why_not(call, do) for kernels in TABLE[:down_to]}


@functools.cache
def serves(device: torch.device) -> bool:
    """True where the device is a Hopper GPU and this Triton has the Gluon we know."""
    is_hopper = device.type == "cuda" and gpu_of(device).family == HOPPER_FAMILY
    return is_hopper and not INTERPRETED and has_supported_gluon()


def _first(*checks: tuple[bool, str]) -> str | None:
    """The reason of the first check that is true."""
    return next((reason for fails, reason in checks if fails), None)


def _why_not_plain(call: Call) -> str | None:
    """What a call has beside q, k, v, a bias, numbers and a window."""
    return _first(
        (call.mask is not None, "it has a mask"),
        (call.lengths is not None, "it has key_lengths"),
        (call.is_varlen, "its sequences follow one another (varlen)"),
    )


def _why_not_half(call: Call) -> str | None:
    name = str(call.q.dtype).removeprefix("torch.")
    return _first((call.q.dtype not in HALF, f"{name} is not bfloat16 or float16"))


def _why_not_whole(call: Call, do: Tensor | None) -> str | None:
    q, terms = call.q, call.terms
    return _why_not_plain(call) or _why_not_half(call) or _first(
        ((terms.left, terms.right) != (None, None), "it is causal or has a window"),
        (not q.shape == call.k.shape == call.v.shape, "q, k and v have different shapes"),
        (q.shape[2] > WHOLE_TOKENS, f"Lq={q.shape[2]} is over {WHOLE_TOKENS} tokens"),
        (q.shape[3] > WHOLE_DIM, f"D={q.shape[3]} is over {WHOLE_DIM}"),
        (not is_builtin(terms.activation), "its activation is not built in"),
        (not call.is_finite_beyond, "h of its bias is infinite"),
    )


def _why_not_decode(call: Call, do: Tensor | None) -> str | None:
    rows = call.group * call.num_queries
    shared = f" for each of {call.group} heads that share keys" if call.group > 1 else ""
    return _first(
        (do is not None, "it has no backward of its own"),
        (call.is_varlen, "its sequences follow one another (varlen)"),
        (rows > DECODE_ROWS, f"Lq={call.num_queries}{shared} is over {DECODE_ROWS} tokens"),
        (call.num_keys < DECODE_KEYS, f"Lk={call.num_keys} is under {DECODE_KEYS} keys"),
    )


def _why_not_hopper(call: Call, do: Tensor | None) -> str | None:
    terms = call.terms
    if not serves(call.q.device):
        return _why_no_hopper(call.q.device)
    builtin = is_builtin(terms.activation)
    # behind the last key are zeros, where a user's h may be infinite, and any but a power of relu
    # has weights that count in a sum; causal calls hide them
    counts = call.has_sums and do is None and not call.ends_in_zeros
    harmless = call.is_finite_beyond and not counts
    ends = harmless or terms.right == 0 or call.num_keys % HOPPER_KEYS == 0
    dims = {room_of(call.q.shape[3]), room_of(call.v.shape[3])}
    is_narrow = max(dims) <= NARROW
    has_signs = count_heads(call.group, call.num_queries, call.num_keys) > 0
    shortest = call.num_queries if do is None else min(call.num_queries, call.num_keys)
    which = "Lq" if shortest == call.num_queries else "Lk"
    least = HOPPER_RELU_ROWS if _is_plain_relu(call) else HOPPER_ROWS
    return _why_not_plain(call) or _why_not_half(call) or _first(
        (call.bias is not None, "it has a bias tensor"),
        (shortest < least, f"{which}={shortest} is under {least} tokens"),
        (terms.left is not None or terms.right not in (None, 0), "it has a window"),
        (not ends, f"Lk={call.num_keys} is no multiple of {HOPPER_KEYS} for this activation"),
        (not (len(dims) == 1 and dims <= {*HOPPER_DIMS}), _describe_dims(call)),
        (not (is_narrow or terms.activation == "relu"), f"it is not relu, in D over {NARROW}"),
        (call.has_sums and not is_narrow, f"it has sums, in D over {NARROW}"),
        (do is not None and not (is_narrow or has_signs), "it is too long for signs of scores"),
        (not call.is_regular, "rows of q, k or v do not lie on whole 16 bytes"),
        (do is not None and not builtin, "its activation is not built in"),
        (do is not None and not is_regular(do), "rows of do do not lie on whole 16 bytes"),
        (call.is_wide, "its weights may leave float16's range"),
        (terms.logs, "it sums logarithms"),
    )


def _is_plain_relu(call: Call) -> bool:
    """True where relu meets all of as many keys as queries, without sums, in small head dims."""
    terms, dim = call.terms, max(call.q.shape[3], call.v.shape[3])
    is_plain = terms.activation == "relu" and terms.right is None and not call.has_sums
    return is_plain and call.num_queries == call.num_keys and dim <= HOPPER_RELU_DIM


def _why_no_hopper(device: torch.device) -> str:
    if device.type != "cuda" or INTERPRETED:
        return "kernels are interpreted here"
    if gpu_of(device).family != HOPPER_FAMILY:
        return f"{gpu_of(device).name} is no Hopper GPU"
    return f"Triton {triton.__version__} has another Gluon"


def _describe_dims(call: Call) -> str:
    *most, last = HOPPER_DIMS
    rooms = f"{', '.join(map(str, most))} or {last}"
    return f"D={call.q.shape[3]}, Dv={call.v.shape[3]} do not fill blocks of {rooms}"


def _why_not_portable(call: Call, do: Tensor | None) -> str | None:
    return why_no_kernel(call.q, call.v, call.terms.activation)


def _whole() -> ModuleType:
    from flashpoint.ops.gpu.portable import whole_heads

    return whole_heads


def _decode() -> ModuleType:
    from flashpoint.ops.gpu.portable import decode

    return decode


def _hopper() -> ModuleType:
    from flashpoint.ops.gpu.hopper.forward import kernel

    return kernel


def _hopper_backward() -> ModuleType:
    from flashpoint.ops.gpu.hopper.backward import kernel

    return kernel


def _portable() -> ModuleType:
    from flashpoint.ops.gpu.portable import forward

    return forward


def _portable_backward() -> ModuleType:
    from flashpoint.ops.gpu.portable import backward

    return backward


def _fits_norms(call: Call) -> bool:
    return block_of(call.q.shape[3]) == NORMED_DIM


WHOLE_HEADS = Kernels("whole heads", _why_not_whole, _whole, _whole, lambda _: True)
DECODE = Kernels("decode", _why_not_decode, _decode, _decode, lambda _: False)
HOPPER = Kernels("Hopper", _why_not_hopper, _hopper, _hopper_backward, _fits_norms, adds=True)
PORTABLE = Kernels("portable", _why_not_portable, _portable, _portable_backward, lambda _: False)
TABLE = (WHOLE_HEADS, DECODE, HOPPER, PORTABLE)
