"""Backward on the GPU. With w_ij = m_ij h(s_ij), f_i = gain * n_i ** -alpha:

    dw_ij = f_i do_i . v_j                 ds_ij = m_ij dw_ij h'(s_ij)
    dq_i = scale * sum_j ds_ij k_j         dk_j = scale * sum_i ds_ij q_i
    dv_j = sum_i f_i w_ij do_i

Where rows' sums z_i have gradients or divide, f_i and an offset e_i of dw_ij come from a pass over
rows before (``backward_rows.py``). Where there is none, f_i is taken out of the sum for dq.

Two kernels, each with the scores made again: one goes over keys for a block of queries (dq), one
over queries for a block of keys (dk, dv). Sums are in registers, so nothing is added in memory.
"""

from typing import Any

import triton
from torch import Tensor

from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.portable.backward_dkdv import backward_dkdv_kernel
from flashpoint.ops.gpu.portable.backward_dq import backward_dq_kernel
from flashpoint.ops.gpu.portable.blocks import Layout
from flashpoint.ops.gpu.replay import Recorder, only
from flashpoint.ops.gpu.tiles.autotune import autotuned
from flashpoint.ops.gpu.tiles.table import dkdv_tiles, dq_tiles


def launch_backward(
    call: Call, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any], layout: Layout,
) -> None:
    """Write dq, dk and dv by the kernels that serve every call."""
    arguments = arguments | {"LAYOUT": int(layout)}
    _launch_dkdv(call, recorder, do, grads, arguments)
    _launch_dq(call, recorder, do, grads[0], arguments)


def _launch_dkdv(
    call: Call, recorder: Recorder, do: Tensor, grads: list[Tensor],
    arguments: dict[str, Any],
) -> None:
    own = {"dk": grads[1], "dv": grads[2], "ONE_RANGE": call.hides_nothing}
    if arguments["NORMALIZER"] != "constant":
        own["shrink"], own["shrink_ds"] = call.row_shrinks()

    def launch(recorder: Recorder, tiles: dict[str, Any]) -> None:
        num_blocks = triton.cdiv(call.num_keys, tiles["BLOCK_N"])
        programs = num_blocks * call.k.shape[1] * call.num_samples
        everything = call.inputs(tiles, do) | arguments | own
        kernel = backward_dkdv_kernel
        recorder.launch(kernel, programs, only(kernel, everything) | tiles, call.backward_roles())

    launch(recorder, autotuned("dkdv", call, launch) or dkdv_tiles(call))


def _launch_dq(
    call: Call, recorder: Recorder, do: Tensor, dq: Tensor, arguments: dict[str, Any]
) -> None:
    def launch(recorder: Recorder, tiles: dict[str, Any]) -> None:
        num_blocks = triton.cdiv(call.num_queries, tiles["BLOCK_M"])
        everything = call.inputs(tiles, do) | arguments
        everything |= {"dq": dq, "ONE_RANGE": call.hides_nothing}
        programs = num_blocks * call.q_heads * call.num_samples
        kernel = backward_dq_kernel
        recorder.launch(kernel, programs, only(kernel, everything) | tiles, call.backward_roles())

    launch(recorder, autotuned("dq", call, launch) or dq_tiles(call))
