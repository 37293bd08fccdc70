"""Stand-ins for a GPU's launches: Triton's own classes with a C launcher that only takes notes."""

from typing import Any, NamedTuple

import torch
import triton
from triton.backends.nvidia.driver import CudaLauncher, wrap_handle_tensordesc
from triton.compiler.compiler import CompiledKernel
from triton.tools.tensor_descriptor import TensorDescriptor

from flashpoint.ops.gpu import launcher, replay, versions

META = {"swizzle": 3, "elem_size": 2, "elem_type": 8, "block_size": [1, 16], "fp4_padded": False}
STREAM = 11
IS_FLAT = triton.__version__.startswith(("3.5.", "3.6."))  # read off Triton's own C launchers
SHAPE = (4, 32)


class Given(NamedTuple):
    """What the C launcher was given, in the same order for every Triton."""

    grid: tuple[int, ...]
    stream: int
    function: int
    modes: tuple[bool, ...]
    scratch: tuple[Any, ...]
    metadata: tuple[int, ...]
    hooks: tuple[Any, ...]  # what they are told, enter, exit
    extra: tuple[Any, ...]
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, given):
        """The C launcher's arguments, which have two forms."""
        first = (given[:3], given[3], given[4], given[5:7])
        if IS_FLAT:
            return cls(*first, given[7:9], given[9], given[10:13], (), given[13:])
        assert len(given) == 16
        return cls(*first, given[11:13], given[7], given[8:11], given[13:15], tuple(given[15]))


class Compiled(CompiledKernel):
    """Loaded nothing, so that there is nothing to unload."""

    def __del__(self):
        pass


class Kernel:
    """o = f(q, k), with q and k read by the copy engine or by pointers."""

    arg_names = ("q", "k", "strides", "scale", "o", "bias", "BLOCK")

    def __init__(self, described=True, metas=2, **changes):
        self.notes = []
        kind = "tensordesc<bf16[1, 16]>" if described else "*bf16"
        others = (("i32", "constexpr"), "fp32", "*bf16", "constexpr", "constexpr")
        signature = dict(enumerate((kind, kind, *others)))
        run = CudaLauncher.__new__(CudaLauncher)
        run.num_ctas = 1
        run.launch_cooperative_grid, run.launch_pdl = False, True
        run.global_scratch_size = run.profile_scratch_size = 0
        run.global_scratch_align = run.profile_scratch_align = 1
        run.arg_annotations, run.kernel_signature, run.gsan_enabled = ("annotations",), b"s", False
        metas = [META] * metas if described else None
        run.launch = wrap_handle_tensordesc(self.note, signature, metas)
        vars(run).update(changes)
        self.compiled = Compiled.__new__(Compiled)
        known = {"module": 1, "function": 7, "packed_metadata": (4, 1, 0), "name": "kernel"}
        vars(self.compiled).update(known, _run=run, src=None)

    def note(self, *given):
        """The C launcher."""
        self.notes.append(Given.of(given))

    def __getitem__(self, grid):
        def launch(enable_fp_fusion=None, **arguments):
            assert enable_fp_fusion == (True if versions.launcher_form() else None)
            self.compiled[(*grid, 1, 1)](*arguments.values())
            return self.compiled

        return launch


def describe(x):
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 16])


def attend(kernel, recorder, inputs, describe=describe):
    """The first call."""
    o = recorder.empty("o", SHAPE, inputs["q"].dtype)
    values = (describe(inputs["q"]), describe(inputs["k"]), (32, 1), 0.5, o, None, 16)
    recorder.launch(kernel, 9, dict(zip(kernel.arg_names, values, strict=True)))
    return [o]


class Repeating(replay.Recorder):
    def __init__(self, like):
        super().__init__(like)
        self.is_repeatable = True


def make(num=2):
    return [torch.zeros(SHAPE, dtype=torch.bfloat16) for _ in range(num)]


def addresses_in(given):
    """The same with addresses for tensors, and without hooks."""
    arguments = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in given.arguments]
    return given._replace(hooks=(), arguments=arguments)


def took_shortcut(given):
    return given.hooks == (None, None, None)


def mapped(given):
    """The addresses in descriptors."""
    return [x[1] for x in given.arguments if isinstance(x, tuple) and x[0] == "map"]


def values_of(q, k):
    return (q, k, (32, 1), 0.5, make(1)[0], None, 16)


def find(kernel, values):
    return launcher.find_shortcut(kernel.compiled, (9, 1, 1), kernel.arg_names, values)
