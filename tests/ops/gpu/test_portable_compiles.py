"""The portable kernels compile for every GPU that is served, and fit its shared memory.

This file is its own worker: as a program, it compiles the kernels of some cases.
"""

import sys
from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from ahead_of_time import (
    GPUS,
    compile_in_processes,
    compiling_for,
    machine_code,
    require_compiler,
    unwritten_registers,
)

from flashpoint.ops.spec import NormTerms, Terms

pytestmark = pytest.mark.slow

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
PACKED = "normalize_heads forward normalize_heads dkdv dq denormalize_heads"
DIVIDED = Terms("relu4", -1.0, normalize="sum", floor=1e-3)
# dtype, D, Dv, Lq, Lk, terms, tensors beside q, k and v; which kernels the call takes
CASES = {
    "64": (BF16, 64, 64, 2048, 2048, Terms(), (), "forward dkdv dq"),
    "128-causal": (BF16, 128, 128, 300, 300, Terms(right=0), (), "forward dkdv dq"),
    "256": (FP16, 256, 256, 300, 300, Terms(), (), "forward dkdv dq"),
    "narrow": (FP16, 72, 8, 64, 128, Terms("silu", 0.7, right=0), (), "forward dkdv dq"),
    "odd-rows": (BF16, 65, 7, 64, 128, Terms(), (), "forward dkdv dq"),
    "bias": (BF16, 64, 64, 300, 300, Terms("gelu"), ("bias",), "forward dkdv dq scored"),
    "mask": (BF16, 64, 128, 300, 300, Terms(), ("mask",), "mask forward mask dkdv dq"),
    "lengths": (FP16, 64, 64, 300, 300, Terms(left=9), ("lengths",), "forward dkdv dq"),
    "fp32": (FP32, 64, 64, 300, 300, Terms("sigmoid"), (), "forward dkdv dq"),
    "decode": (BF16, 128, 128, 1, 4096, Terms(), (), "decode combine dkdv dq"),
    "whole": (BF16, 64, 64, 49, 49, Terms(), (), "whole whole_backward"),
    "packed": (BF16, 64, 64, 300, 300, Terms(), ("norms",), PACKED),
    "sums": (BF16, 64, 64, 2048, 2048, DIVIDED, ("sums",), "forward rows dkdv dq"),
    "sums-wide": (FP16, 128, 128, 4096, 4096, DIVIDED, ("sums",), "forward rows dkdv dq"),
    "sums-wide-256": (FP16, 256, 256, 300, 300, DIVIDED, ("sums",), "forward rows dkdv dq"),
    "sums-decode": (BF16, 128, 128, 1, 4096, DIVIDED, ("sums",), "decode combine rows dkdv dq"),
    "added": (BF16, 64, 64, 300, 300, Terms(), ("totals",), "forward addition"),
    "sums-whole": (FP16, 64, 64, 49, 49, DIVIDED, ("sums",), "whole rows whole_backward"),
}
EVERY = ("bias", "mask", "decode", "whole", "packed", "sums", "added")  # kernel
MAIN = ("bias", "sums")


def test_kernels_compile_for_every_gpu(request):
    require_compiler(request)
    if request.config.getoption("--every-case"):
        chosen = dict.fromkeys(GPUS, tuple(CASES))
    elif which := request.config.getoption("--each-gpu"):
        chosen = dict.fromkeys(GPUS, EVERY if which == "all" else MAIN)
        chosen |= {80: (*EVERY, "fp32"), 90: (*EVERY, "fp32")}  # without the copy engine, and with
    else:
        chosen = {90: MAIN}
    cases = [f"{arch}:{case}" for arch, names in chosen.items() for case in names]
    lines = compile_in_processes(__file__, cases)
    assert sorted(line for line in lines if line.endswith(" compiled")) == sorted(
        f"{case} compiled" for case in cases
    )


def call_plain(dtype, D, Dv, Lq, Lk, terms, extras):
    """Forward and backward on tensors without values."""
    from flashpoint.ops.gpu import attend

    q, do = (torch.empty(2, 4, Lq, d, dtype=dtype) for d in (D, Dv))
    k, v = (torch.empty(2, 2 if "lengths" in extras else 4, Lk, d, dtype=dtype) for d in (D, Dv))
    bias = torch.empty(1, 4, Lq, Lk, dtype=dtype) if "bias" in extras else None
    mask = torch.empty(2, 1, Lq, Lk, dtype=torch.bool) if "mask" in extras else None
    lengths = torch.empty(2, dtype=torch.int64) if "lengths" in extras else None
    inputs = (q, k, v, bias, mask, lengths, terms)
    if "totals" in extras:
        attend.launch_forward(False, *inputs, totals=torch.empty(2, 4, Lq, Dv))
        return
    if "sums" in extras:
        o, sums = attend.launch_forward(True, *inputs)
        attend.launch_backward((sums, o, sums), do, *inputs, bias is not None, False)
        return
    attend.launch_forward(False, *inputs)
    attend.launch_backward((), do, *inputs, bias is not None, False)


def call_packed(dtype, D, Dv, Lq, Lk, terms, extras):
    """The same of a packed call with norms."""
    from flashpoint.ops.gpu.packed import launch_packed_backward, launch_packed_forward

    qkv, gain = torch.empty(2, Lq, 3, 4, D, dtype=dtype), torch.empty(D)
    rest = (gain, None, None, None, None, NormTerms("layer", 1e-6, "rms", 1e-6), terms)
    (o,) = launch_packed_forward(False, qkv, *rest)
    launch_packed_backward((), o, qkv, *rest, False, False)


def main():
    """Compile; a kernel must fit the shared memory that its GPU has for one program."""
    for name in sys.argv[1:]:
        arch, case = name.split(":")
        *arguments, expected = CASES[case]
        call = call_packed if "norms" in arguments[-1] else call_plain
        with compiling_for(int(arch)) as kernels:
            call(*arguments)
        found = " ".join(kernel.name for kernel in kernels)
        assert found == expected, (name, found)
        for kernel in kernels:
            most = GPUS[int(arch)].shared_bytes
            assert kernel.shared_bytes <= most, (name, kernel.name, kernel.shared_bytes, most)
            unwritten = unwritten_registers(machine_code(kernel)) if arch == "90" else []
            assert not unwritten, (name, kernel.name, unwritten)
        print(f"{name} compiled")  # noqa: T201 - the parent process reads it


if __name__ == "__main__":
    main()
