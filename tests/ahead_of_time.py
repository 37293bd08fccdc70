"""Kernels compiled for GPUs that are not here: by all of Triton's way to a launch but the launch.

A process that uses this must not interpret, so tests run their own file as a program.
"""

import contextlib
import io
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import networkx
import pytest
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import KernelInterface

from flashpoint.ops.gpu.device import Gpu

# by architecture: bytes of shared memory that a program can have, and multiprocessors of one GPU
GPUS = {
    80: Gpu("A100", 8, 163 * 1024, 108),
    86: Gpu("RTX A6000", 8, 99 * 1024, 84),
    89: Gpu("L40S", 8, 99 * 1024, 142),
    90: Gpu("H100", 9, 227 * 1024, 132),
    100: Gpu("B200", 10, 227 * 1024, 148),
    120: Gpu("RTX 5090", 12, 99 * 1024, 170),
}
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,6})\*/\s+(.*?);", re.MULTILINE)
UNIFORM_WRITE = re.compile(
    r"(?:@!?\w+ +)?((?:U(?!ISETP|TMA|BLK|SETMAX)|[RS]2U|REDUX)\S*) +(?:U?P\w+, )*UR(\d+)"
)
DESCRIPTOR = re.compile(r"gdesc\[UR(\d+)\]")  # of B, behind that of A, which registers may hold
JUMP = re.compile(r"BRA(?:\.\w+)* +(.*?)0x([0-9a-f]+)")


class Kernel(NamedTuple):
    """A kernel that a call would have launched; ``log`` is what ptxas said of it."""

    name: str
    arguments: dict[str, Any]
    compiled: Any
    log: str

    @property
    def shared_bytes(self) -> int:
        """What it needs of a multiprocessor's shared memory."""
        return self.compiled.metadata.shared


@contextlib.contextmanager
def compiling_for(arch: int) -> Generator[list[Kernel]]:
    """Inside, launches on CPU tensors only compile for the architecture; gives the kernels."""
    from flashpoint.ops.gpu import call
    from flashpoint.ops.gpu.portable import decode, qk_norm_passes, whole_heads
    from flashpoint.ops.gpu.tiles import autotune, table

    kernels: list[Kernel] = []

    def compile_only(self: Any, grid: Any) -> Any:
        def launch(*values: Any, **arguments: Any) -> None:
            with contextlib.redirect_stdout(io.StringIO()) as log:
                compiled = self.run(*values, grid=grid, warmup=True, **arguments)
            named = dict(zip(self.arg_names, values, strict=False)) | arguments
            name = self.fn.__name__.removesuffix("_kernel").removeprefix("backward_")
            kernels.append(Kernel(name, named, compiled, log.getvalue()))

        return launch

    target = GPUTarget("cuda", arch, 32)
    active = SimpleNamespace(
        get_current_device=lambda: arch,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: target,
    )
    usual = KernelInterface.__getitem__
    modules = (autotune, decode, qk_norm_passes, call, table, whole_heads)
    usual_gpu = table.gpu_of
    driver.set_active(active)
    knobs.compilation.always_compile = knobs.nvidia.dump_ptxas_log = True
    try:
        KernelInterface.__getitem__ = compile_only
        for module in modules:
            module.gpu_of = lambda _: GPUS[arch]
        yield kernels
    finally:
        KernelInterface.__getitem__ = usual
        for module in modules:
            module.gpu_of = usual_gpu


def machine_code(kernel: Kernel) -> dict[int, str]:
    """The kernel's instructions by their addresses."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.compiled.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-sass", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {int(at, 16): what for at, what in INSTRUCTION.findall(text)}


def unwritten_registers(code: dict[int, str]) -> list[str]:
    """Instructions for Hopper that read a uniform register which none before them writes.

    ptxas 12.8 makes such code of some asynchronous products (``table.avoid_trap``): their tiles
    then come from anywhere. A loop may write further down, but what it reads first stands above.
    """
    written: set[str] = set()
    found: list[str] = []
    for at in sorted(code):
        write = UNIFORM_WRITE.match(code[at])
        rest = code[at][write.end() :] if write else code[at]
        rest = DESCRIPTOR.sub(lambda found: f"UR{int(found[1]) + 2} UR{int(found[1]) + 3}", rest)
        reads = re.findall(r"\bUR\d+", rest)
        found += [f"{at:#x} {code[at]}" for name in reads if name not in written]
        if write:
            number, is_wide = int(write[2]), re.search(r"\.(64|WIDE)", write[1])
            written |= {f"UR{number + i}" for i in range(2 if is_wide else 1)}
    return found


def spills_in_product_loops(code: dict[int, str]) -> list[int]:
    """How often each innermost loop with matrix products goes to local memory, in machine code.

    What is read there once a tile costs nothing that can be measured; once a block it would.
    """
    loops = [body for body in _loops(code) if any("HGMMA" in code[at] for at in body)]
    inner = [body for body in loops if not any(other < body for other in loops)]
    return [sum("LDL" in code[at] or "STL" in code[at] for at in body) for body in inner]


def _loops(code: dict[int, str]) -> list[frozenset[int]]:
    """The instructions of each natural loop: a jump back to where all ways to it come through."""
    graph, places = networkx.DiGraph(), sorted(code)
    for at, following in itertools.pairwise(places):
        jump = JUMP.search(code[at])
        if jump:
            graph.add_edge(at, int(jump[2], 16))
        is_conditional = code[at].startswith("@") or (jump is not None and jump[1])
        if is_conditional or not (jump or code[at].startswith("EXIT")):
            graph.add_edge(at, following)
    entries = [
        at for at, ways in graph.in_degree if ways == 0
    ]  # partitions are jumped to by table
    graph.add_edges_from(("start", at) for at in {places[0], *entries})
    before = networkx.immediate_dominators(graph, "start")
    loops: dict[int, set[int]] = {}
    for end, start in list(graph.edges):
        if end in before and _dominates(start, end, before):
            inside = graph.subgraph(set(graph) - {start}) if end != start else graph
            body = {start, end} | (networkx.ancestors(inside, end) if end != start else set())
            loops.setdefault(start, set()).update(body)
    return [frozenset(body) for body in loops.values()]


def _dominates(start: int, end: int, before: dict[int, int]) -> bool:
    while end != start and before.get(end, end) != end:
        end = before[end]
    return end == start


def require_compiler(request: pytest.FixtureRequest) -> None:
    """Skip a test where nothing can be compiled; with --each-gpu, as CI runs it, fail."""
    try:
        subprocess.run([knobs.nvidia.ptxas.path, "--version"], capture_output=True, check=True)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        end = pytest.fail if request.config.getoption("--each-gpu") else pytest.skip
        end(f"ptxas does not run: {error}")


def compile_in_processes(file: str, cases: list[str], count: int = 2) -> list[str]:
    """Run a test file as a program on shares of the cases; gives the lines that it printed.

    Loading torch takes as long as compiling several kernels, so each process has many cases.
    """
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), env.get("PYTHONPATH", "")])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": env}
    shares = [cases[number::count] for number in range(count)]
    workers = [
        subprocess.Popen([sys.executable, file, *share], **pipes) for share in shares if share
    ]
    said = [worker.communicate()[0] for worker in workers]
    for worker, text in zip(workers, said, strict=True):
        assert worker.returncode == 0, text[-4000:]
    return "\n".join(said).splitlines()  # what ends a process may lack its last newline
