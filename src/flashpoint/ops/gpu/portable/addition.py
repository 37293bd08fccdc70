"""totals += o, or totals = o, both [B, H, L, D]: what a kernel does not add or round by itself."""

from collections.abc import Mapping

import triton
import triton.language as tl
from torch import Tensor

from flashpoint.ops.gpu.reading import block_of
from flashpoint.ops.gpu.replay import Recorder, Role

_NUMBERS = 4096  # of a program


@triton.jit
def addition_kernel(
    o, totals, total_batch, total_head, total_row,  # rows of both are dense, and all of o
    H, L, D: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr, ADDS: tl.constexpr,
):
    """Of one head's rows, in fp32, rounded to what totals are."""
    num_blocks = tl.cdiv(L, BLOCK_L)
    head, block = tl.program_id(0) // num_blocks, tl.program_id(0) % num_blocks
    rows = block * BLOCK_L + tl.arange(0, BLOCK_L)[:, None]
    columns = tl.arange(0, BLOCK_D)[None, :]
    exists = (rows < L) & (columns < D)
    own = o + head.to(tl.int64) * L * D + rows.to(tl.int64) * D + columns
    at = (head // H).to(tl.int64) * total_batch + (head % H).to(tl.int64) * total_head
    places = totals + at + rows.to(tl.int64) * total_row + columns
    part = tl.load(own, mask=exists).to(tl.float32)
    if ADDS:
        part += tl.load(places, mask=exists)
    tl.store(places, part, mask=exists)


def launch_addition(
    recorder: Recorder,
    o: Tensor,
    totals: Tensor,
    roles: Mapping[str, Role],
    *,
    overwrites: bool = False,
) -> None:
    """Add o, which is dense, to totals of its shape, or overwrite them with it; roles: of both.

    What adds must be a call's last launch: where one fails in a replay, which has done nothing
    then, all are repeated, and what was added before it would be added twice.
    """
    B, H, L, D = o.shape
    block_d = block_of(D)
    block_l = max(1, _NUMBERS // block_d)
    batch, head, row, _ = totals.stride()
    arguments = {
        "o": o, "totals": totals, "total_batch": batch, "total_head": head, "total_row": row,
        "H": H, "L": L, "D": D, "BLOCK_L": block_l, "BLOCK_D": block_d,
        "ADDS": not overwrites,
    }
    programs = B * H * triton.cdiv(L, block_l)
    recorder.launch(addition_kernel, programs, arguments, roles)
