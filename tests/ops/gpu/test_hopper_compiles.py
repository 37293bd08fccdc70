"""The kernels for Hopper compile without one, from the arguments that their launchers give them.

Triton's interpreter cannot run Gluon, so that nothing else looks at these kernels where there is
no such GPU. This file is its own worker: as a program, it compiles the kernels of some cases.
"""

import re
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
from ahead_of_time import (
    GPUS,
    compile_in_processes,
    compiling_for,
    machine_code,
    require_compiler,
    spills_in_product_loops,
    unwritten_registers,
)

from flashpoint.ops.gpu import versions

pytestmark = pytest.mark.slow

# head dim, right end of the window, alpha, activation, and of which kernels
CASES = {
    "64": (64, None, 1.0, "relu", "both"),
    "64-long": (64, None, 1.0, "relu", "all"),
    "64-causal": (64, 0, 1.0, "relu", "all"),
    "128": (128, None, 1.0, "relu", "all"),
    "128-causal": (128, 0, 1.0, "relu", "all"),
    "128-signed": (128, None, 1.0, "relu", "signed"),
    "128-causal-signed": (128, 0, 1.0, "relu", "signed"),
    "128-causal-root-signed": (128, 0, 0.5, "relu", "signed"),
    "128-causal-power": (128, 0, 0.7, "relu", "all"),
    "192": (192, None, 1.0, "relu", "split"),
    "192-causal": (192, 0, 1.0, "relu", "split"),
    "192-causal-power": (192, 0, 0.7, "relu", "split"),
    "256": (256, None, 1.0, "relu", "split"),
    "256-causal": (256, 0, 1.0, "relu", "split"),
    "256-causal-power": (256, 0, 0.7, "relu", "split"),
    "64-silu": (64, None, 1.0, "silu", "forward"),
    "64-causal-silu": (64, 0, 1.0, "silu", "forward"),
    "128-silu": (128, None, 1.0, "silu", "forward"),
    "128-causal-silu": (128, 0, 1.0, "silu", "forward"),
    "64-gelu": (64, None, 1.0, "gelu", "all"),
    "64-causal-gelu": (64, 0, 1.0, "gelu", "all"),
    "64-causal-power": (64, 0, 0.7, "silu", "all"),
    "64-softplus": (64, None, 1.0, "softplus", "all"),
    "64-causal-softplus": (64, 0, 1.0, "softplus", "all"),
    "128-softplus": (128, None, 1.0, "softplus", "all"),
}
# tokens and norms of q and k in a packed call, whether these have gains, kernels with one inside
NORMED_CASES = {
    "64-layer": (300, "layer", "layer", True, ["forward", "both"]),
    "64-rms-q-only": (784, "rms", "none", False, ["forward", "both"]),
    "64-rms-k-only": (784, "none", "rms", False, ["both"]),
    "64-short-layer": (200, "layer", "layer", True, ["forward", "both"]),
    "64-short-rms-k-only": (200, "none", "rms", False, ["forward", "both"]),
    "64-long-layer": (1100, "layer", "layer", True, ["forward", "keys", "queries"]),
}
# head dim, right end of the window, activation, tokens, bias: rows divided by their sums
SUMMED_CASES = {
    "64-sum-relu4": (64, None, "relu4", 1100, 0.0),
    "64-sum-relu4-raised": (64, None, "relu4", 1152, 2.0),
    "64-sum-relu4-short": (64, None, "relu4", 300, 0.0),
    "64-sum-relu4-causal": (64, 0, "relu4", 1100, 0.0),
    "128-sum-relu4": (128, None, "relu4", 1100, 0.0),
    "128-sum-relu4-causal": (128, 0, "relu4", 1100, 0.0),
    "64-sum-relu-short": (64, None, "relu", 300, 0.0),
}
# head dim, right end of the window, activation, whether with sums, where totals begin and whether
# they are overwritten: added to totals, off 16 bytes from registers
ADDED_CASES = {
    "64-added": (64, None, "relu", False, 0, False),
    "64-added-causal-silu": (64, 0, "silu", False, 0, False),
    "64-added-off": (64, None, "relu", False, 1, False),
    "128-added": (128, None, "relu", False, 0, False),
    "128-added-causal": (128, 0, "relu", False, 0, False),
    "128-added-relu4": (128, None, "relu4", True, 0, False),
    "128-added-relu4-causal": (128, 0, "relu4", True, 0, False),
    "128-added-off": (128, 0, "relu", False, 1, False),
    "128-overwritten": (128, None, "relu", False, 0, True),
    "192-added": (192, None, "relu", False, 0, False),
    "256-added": (256, None, "relu", False, 0, False),
    "256-overwritten": (256, None, "relu", False, 0, True),
}
# the kernels of other cases, by name, that take heads in sections: how many these are
SECTIONED = "-sectioned"
SECTIONED_CASES = {
    f"128-causal{SECTIONED}": 1,
    f"128-causal-signed{SECTIONED}": 1,
    f"192-causal{SECTIONED}": 4,
    f"256-causal{SECTIONED}": 4,
    f"64-sum-relu4-causal{SECTIONED}": 1,
    f"128-sum-relu4-causal{SECTIONED}": 1,
}
# the kernel of other cases, by name, whose backward is one pass: how many these are
ONCE = "-once"
ONCE_CASES = dict.fromkeys(
    [
        *(f"64-long{ONCE}", f"64-causal{ONCE}", f"64-gelu{ONCE}"),
        *(f"64-causal-gelu{ONCE}", f"64-causal-power{ONCE}"),
        *(f"64-softplus{ONCE}", f"64-causal-softplus{ONCE}"),
        *(f"64-sum-relu4{ONCE}", f"64-sum-relu4-causal{ONCE}"),
    ],
    1,
)
# every kernel, those with numbers in local memory among them
SHORT = (
    *("64", "64-long", "128-causal-signed", "128-causal-silu", "192", "256-causal"),
    *("64-layer", "64-rms-q-only", "64-sum-relu4", "128-sum-relu4-causal", "128-added"),
    *(f"128-causal{SECTIONED}", f"256-causal{SECTIONED}"),
    *(f"64-gelu{ONCE}", f"64-sum-relu4-causal{ONCE}"),
)
SHORTEST = ("64-long", "64-layer", f"64-long{ONCE}")
NUM_KERNELS = {"all": 3, "both": 2, "signed": 2, "split": 4, "forward": 1}
LOCAL_MEMORY = re.compile(r"(\d+) bytes stack frame")
SPILLING = (3, 8)  # Triton from which on ptxas keeps more of a tile's numbers in local memory
# side and head dim
MAY_SPILL = (("keys", 64), ("keys", 128), ("values", 256), ("keys", 256), ("once", 64))
MOST_LOCAL_MEMORY = 96  # bytes, then and for these; else none
# the same of cases that keep more
MOST_LOCAL_MEMORY_OF = {"128-sum-relu4-causal": 128, f"64-causal{ONCE}": 136}
# accesses to it in the loop over a tile's blocks then; else none. docs/log.md says which of these
# were timed
MOST_IN_LOOP = {
    "64-rms-q-only": 6,
    "128-sum-relu4": 4,
    "128-causal-signed": 1,
    "128-causal-root-signed": 1,
    "128-sum-relu4-causal": 6,
    f"64-causal-gelu{ONCE}": 1,
    f"64-causal-softplus{ONCE}": 1,
    f"64-sum-relu4-causal{ONCE}": 5,
    f"64-causal-power{ONCE}": 3,
    f"64-causal{ONCE}": 1,
}


def test_kernels_compile_without_a_gpu(request):
    if not versions.has_supported_gluon():
        pytest.skip(f"triton {triton.__version__} has another Gluon than the tested ones")
    require_compiler(request)
    counts = {case: NUM_KERNELS[which] for case, (*_, which) in CASES.items()}
    counts |= {case: len(sides) for case, (*_, sides) in NORMED_CASES.items()}
    counts |= {case: 2 if tokens == 300 else 3 for case, (*_, tokens, _) in SUMMED_CASES.items()}
    counts |= dict.fromkeys(ADDED_CASES, 1) | SECTIONED_CASES | ONCE_CASES
    if not request.config.getoption("--every-case"):
        chosen = SHORT if request.config.getoption("--each-gpu") else SHORTEST
        counts = {case: counts[case] for case in chosen}
    lines = compile_in_processes(__file__, list(counts))
    for case, count in counts.items():
        assert sum(line.startswith(f"{case}: ") for line in lines) == count, lines


@pytest.mark.parametrize(
    ("columns", "block", "pieces"),
    [
        *((784, 128, (16, 0)), (577, 128, (64, 16)), (197, 128, (64, 16)), (224, 128, (64, 32))),
        *((96, 128, (0, 0)), (65, 128, (0, 0))),
        *((300, 128, (32, 16)), (256, 128, (0, 0)), (250, 128, (0, 0)), (100, 64, (32, 16))),
        (120, 64, (0, 0)),
    ],
)
def test_last_block_is_cut_to_pieces(columns, block, pieces):
    """Powers of two from 16 on that hold what is left; as others where a block costs no more."""
    from flashpoint.ops.gpu.hopper.backward.kernel import pieces_of

    assert pieces_of(columns, block) == pieces
    assert sum(pieces) == 0 or 0 <= sum(pieces) - columns % block < 16


@pytest.mark.parametrize(
    ("keys", "block", "piece"),
    [(196, 64, 16), (784, 64, 16), (577, 128, 0), (785, 128, 32), (300, 64, 0), (256, 64, 0),
     (200, 128, 0)],
)  # fmt: skip
def test_last_keys_of_forward_are_cut(keys, block, piece):
    """To a power of two from 16 on, where blocks before it fill the loop."""
    from flashpoint.ops.gpu.hopper.forward.kernel import piece_of

    assert piece_of(keys, block) == piece


def test_sums_in_fp32_fit_shared_memory():
    """Where results are added: Q, K, V, O in fp32, and barriers."""
    from flashpoint.ops.gpu.hopper.forward import kernel

    tables = (kernel.CONFIGS, kernel.SHORT, kernel.SUMMED, kernel.PINNED_SUMS, kernel.POWERS)
    tables += tuple(kernel.BY_ACTIVATION.values())
    for table in tables:
        for (room, _), config in table.items():
            rows = config.rows * config.consumers
            column_bytes = rows * (2 + 4) + 2 * config.stages * config.block_keys * 2
            assert room > 128 or column_bytes * room + 1024 <= GPUS[90].shared_bytes, config


def launches_of(head_dim, right, alpha, activation, which):
    """What the launchers would run: kernels and their arguments.

    ``which``: all of a plain call, those of a short one, whose backward has both sides in one, the
    backward ones that store signs, all where backward is three launches, or the forward one.
    """
    from flashpoint.ops.gpu import dispatch
    from flashpoint.ops.gpu.attend import gradient_arguments
    from flashpoint.ops.gpu.call import Call
    from flashpoint.ops.gpu.hopper.backward import kernel as hopper_backward
    from flashpoint.ops.gpu.hopper.forward import kernel as hopper_forward
    from flashpoint.ops.gpu.portable.blocks import Layout
    from flashpoint.ops.gpu.replay import Recorder
    from flashpoint.ops.spec import Terms

    q, k, v, do = (torch.empty(2, 4, 512, head_dim, dtype=torch.bfloat16) for _ in range(4))
    call = Call.dense(q, k, v, None, None, None, Terms(activation, alpha, right=right))
    dispatch.serves = lambda _: True
    assert dispatch.choose(call) is dispatch.choose(call, do) is dispatch.HOPPER
    with compiling_for(90) as kernels:
        if which != "signed":
            hopper_forward.launch(call, Recorder(q), do, Layout.HEADS_FIRST)
        if which == "forward":
            return kernels
        signed_rows = 512 if which == "signed" else 513
        hopper_backward.SIGNED_ROWS = dict.fromkeys([False, True], signed_rows)
        hopper_backward.BOTH_ROWS = 512 if which == "both" else 511
        rest = (do, [q, k, v], gradient_arguments(call), Layout.HEADS_FIRST)
        hopper_backward.launch_backward(call, Recorder(q), *rest)
    return kernels


def packed_launches_of(tokens, q_kind, k_kind, has_gains, sides):
    """Those with a norm inside, of a packed call."""
    from flashpoint.ops.gpu import dispatch, packed
    from flashpoint.ops.gpu.hopper.backward import kernel as hopper_backward
    from flashpoint.ops.spec import NormTerms, Terms

    hopper_backward.BOTH_ROWS = 1024
    dispatch.serves = lambda _: True
    qkv = torch.empty(2, tokens, 3, 4, 64, dtype=torch.bfloat16)
    gains = [torch.ones(64) if has_gains and kind != "none" else None for kind in (q_kind, k_kind)]
    rest = (*gains, None, None, None, NormTerms(q_kind, 1e-6, k_kind, 1e-6), Terms())
    with compiling_for(90) as kernels:
        (o,) = packed.launch_packed_forward(False, qkv, *rest)
        packed.launch_packed_backward((), o, qkv, *rest, False, False)
    launches = [kernel for kernel in kernels if kernel.name.startswith("hopper")]
    normed = [kernel for kernel in launches if has_norm(kernel.arguments)]
    assert [side_of(kernel.arguments) for kernel in normed] == sides
    return normed


def summed_launches_of(head_dim, right, activation, tokens, bias):
    """Forward and backward of a call that is divided by its sums."""
    from flashpoint.ops.gpu import attend, dispatch
    from flashpoint.ops.spec import Terms

    dispatch.serves = lambda _: True
    q, k, v, do = (torch.empty(2, 4, tokens, head_dim, dtype=torch.bfloat16) for _ in range(4))
    shares = {"normalize": "sum", "floor": 1e-3, "bias": bias}
    terms = Terms(activation, -1.0, right=right, **shares)
    with compiling_for(90) as kernels:
        o, sums = attend.launch_forward(True, q, k, v, None, None, None, terms)
        inputs = (q, k, v, None, None, None, terms, False, False)
        attend.launch_backward((None, o, sums), do, *inputs)
    return [kernel for kernel in kernels if kernel.name.startswith("hopper")]


def added_launches_of(head_dim, right, activation, has_sums, first, overwrites):
    """Forward of a call that is added to what some rows have, as those of a ring are."""
    from flashpoint.ops.gpu import attend, dispatch
    from flashpoint.ops.spec import Terms

    dispatch.serves = lambda _: True
    q, k, v = (torch.empty(2, 4, 512, head_dim, dtype=torch.bfloat16) for _ in range(3))
    totals = torch.empty(first + 8 * 1024 * head_dim)[first:].view(2, 4, 1024, -1)[:, :, 512:]
    goal = {"totals": totals, "overwrites": overwrites}
    with compiling_for(90) as kernels:
        terms = Terms(activation, 0.0, right=right)
        attend.launch_forward(has_sums, q, k, v, None, None, None, terms, **goal)
    (kernel,) = kernels
    by_engine = head_dim <= dispatch.NARROW and first == 0
    assert (kernel.arguments["o"] is not None) == by_engine
    assert ("cp.reduce.async.bulk" in kernel.compiled.asm["ptx"]) == (by_engine and not overwrites)
    assert kernel.shared_bytes <= GPUS[90].shared_bytes
    return kernels


def count_two(launch, *_):
    """Sections of two heads wherever a launch may have any."""
    from flashpoint.ops.gpu.sections import FLOPS_PER_BYTE

    return 2 if launch.flops_per_byte < FLOPS_PER_BYTE else None


def launches_by(case):
    from flashpoint.ops.gpu.hopper.backward import kernel as hopper_backward
    from flashpoint.ops.gpu.hopper.backward import once
    from flashpoint.ops.gpu.hopper.forward import kernel as hopper_forward

    has_sections, is_once = case in SECTIONED_CASES, case in ONCE_CASES
    for module in (hopper_forward, hopper_backward):
        module.size_section = count_two if has_sections else lambda *_: None
    once.LEAST_ROWS = 192 if is_once else sys.maxsize
    hopper_forward.hopper_forward_kernel.device_caches.clear()  # another case may have the same
    launches = plain_launches_by(case.removesuffix(SECTIONED).removesuffix(ONCE))
    if is_once:
        return [one for one in launches if one.name == "hopper_one_pass"]
    return [one for one in launches if (one.arguments["section"] is not None) == has_sections]


def plain_launches_by(case):
    if case in CASES:
        return launches_of(*CASES[case])
    if case in SUMMED_CASES:
        return summed_launches_of(*SUMMED_CASES[case])
    if case in ADDED_CASES:
        return added_launches_of(*ADDED_CASES[case])
    return packed_launches_of(*NORMED_CASES[case])


def side_of(arguments):
    return arguments.get("SIDE", "once" if "dq_sums" in arguments else "forward")


def head_dim_of(case):
    return int(case.partition("-")[0])


def has_norm(arguments):
    names = {"keys": ["K_NORM"], "queries": ["Q_NORM"]}
    of_both = ["Q_NORM", "K_NORM"]
    return any(arguments[name] != "none" for name in names.get(side_of(arguments), of_both))


def main():
    """Compile, and read what ptxas made: products that do not wait, and no spill among them."""
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(
        multi_processor_count=132, L2_cache_size=60 * 2**20
    )
    for case in sys.argv[1:]:
        for kernel in launches_by(case):
            side = side_of(kernel.arguments)
            may_spill = (side, head_dim_of(case)) in MAY_SPILL
            may_spill = may_spill or versions.installed() >= SPILLING
            said = f"{case}, {side}:\n{kernel.log}"
            assert not re.search(r"\(C75\d\d\)", said), said
            most = MOST_LOCAL_MEMORY_OF.get(case, MOST_LOCAL_MEMORY) * may_spill
            assert int(LOCAL_MEMORY.search(said)[1]) <= most, said
            code = machine_code(kernel)
            assert not unwritten_registers(code), said
            loops = spills_in_product_loops(code)
            assert loops, said
            most = MOST_IN_LOOP.get(case, 0) if versions.installed() >= SPILLING else 0
            assert max(loops) <= most, f"{said}{loops} spills in the loops over blocks"
            print(f"{case}: {side} compiled")  # noqa: T201 - the parent process reads it


if __name__ == "__main__":
    main()
