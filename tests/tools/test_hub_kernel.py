"""The operator as a kernel of the Hub: built, loaded by the Hub's loader, computed with."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flashpoint
from hub_kernel.layout import API, VARIANT, build

SOURCES = Path(flashpoint.__file__).parent
OPTIONAL = {"jaxtyping", "numpy", "triton"}
"""What may be missing where a kernel is loaded; torch may not."""

ABSENT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[2].split(",")))  # imports of these fail
"""
EXACT = """
import math
from pathlib import Path

import torch
from kernels import get_local_kernel

kernel = get_local_kernel(Path(sys.argv[1]))

def exact(q, k, v, *, activation, bias=0.0):
    "The definition in fp64: causal, over the number of keys that are seen."
    sees = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
    return (activation(scores) * sees) @ v / sees.sum(-1, keepdim=True)

def error(length, impl="auto"):
    "The largest difference of output and gradients to fp64."
    torch.manual_seed(0)
    shape, largest = (2, 3, length, 16), 0.0
    for name, h, bias in (("relu", torch.relu, 0.0), ("sigmoid", torch.sigmoid, -1.0)):
        do, *inputs = (torch.randn(shape) for _ in range(4))
        found, wanted = [], []
        for dtype, results in ((torch.float32, found), (torch.float64, wanted)):
            q, k, v = (x.to(dtype, copy=True).requires_grad_() for x in inputs)
            if dtype == torch.float64:
                o = exact(q, k, v, activation=h, bias=bias)
            else:
                o = kernel.attention(q, k, v, activation=name, bias=bias, causal=True, impl=impl)
            o.backward(do.to(dtype))
            results += [o, q.grad, k.grad, v.grad]
        largest = max([largest, *((x - y).abs().max().item() for x, y in zip(found, wanted))])
    return largest
"""
ALONE = """
print(max(error(67), error(5)) < 1e-5)
print([name for name in sys.argv[2].split(",") if sys.modules[name] is not None])
"""
INTERPRETED = """
print(error(19, impl="triton") < 1e-5)
"""
TOGETHER = """
import pkgutil

import flashpoint

parts = [found.name for found in pkgutil.walk_packages(kernel.__path__, f"{kernel.__name__}.")]
for part in parts:
    __import__(part)
print(sum(".hopper." in part for part in parts))

q, k, v = torch.randn(3, 1, 2, 32, 16)
print(torch.equal(flashpoint.attention(q, k, v), kernel.attention(q, k, v)))

def keep(graph, _):
    "A compiler that notes which operators a graph calls, and computes them as they are."
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    print([name.partition(".attention")[0] for name in called if ".attention" in name])
    return graph

both = torch.compile(
    lambda q: flashpoint.attention(q, k, v) - kernel.attention(q, k, v),
    backend=keep, fullgraph=True,
)
print(both(q).abs().max().item(), kernel.__name__)
flashpoint.register_activation(flashpoint.Activation("tanh", torch.tanh))
try:
    kernel.attention(q, k, v, activation="tanh")
except kernel.InputError as error:
    print(isinstance(error, flashpoint.InputError), str(error).partition(".")[0])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("hub") / "hub-kernel"
    build(SOURCES, out)
    return out


def run(folder, code, absent, **environment):
    """What a fresh process prints that has loaded the kernel."""
    pytest.importorskip("kernels")
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ABSENT + EXACT + code, folder, ",".join(absent)],
        cwd=folder.parent,
        env=os.environ | offline | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def imports(file):
    """What a file imports: how many folders up, and which module."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)


def test_build_imports_torch_and_itself_alone(folder):
    files = [*folder.rglob("*.py")]
    assert len(files) > 70
    assert {file.parts[len(folder.parts) + 1] for file in files} == {VARIANT}
    for file in files:
        found = {name.partition(".")[0] for level, name in imports(file) if not level}
        assert found - set(sys.stdlib_module_names) <= {"torch"} | OPTIONAL, file


def test_build_has_nothing_but_what_the_operator_needs(folder):
    files = {file.relative_to(folder / "build" / VARIANT) for file in folder.rglob("*.py")}
    tops = {"__init__.py", "bounds.py", "errors.py", "files.py", "shapes.py", "version.py"}
    assert {file.name for file in files if len(file.parts) == 1} == tops
    assert {file.parts[0] for file in files if len(file.parts) > 1} == {"ops"}


def test_build_offers_what_the_package_offers_of_the_operator():
    offered = {name for names in API.values() for name in names}
    others = {"AttentionSpec", "create_model", "list_models"}
    others |= {"replace_attention", "restore_attention"}
    assert offered == set(flashpoint.__all__) - others


def test_name_changes_with_the_sources(folder, tmp_path):
    def name(at):
        return (at / "build" / VARIANT / "ops" / "namespace.py").read_text().split()[-1]

    build(SOURCES, tmp_path / "again")
    assert name(tmp_path / "again") == name(folder)
    changed = tmp_path / "flashpoint"
    shutil.copytree(SOURCES, changed, ignore=shutil.ignore_patterns("lab", "__pycache__"))
    (changed / "version.py").write_text('__version__ = "0.1.1"\n')
    build(changed, tmp_path / "other")
    assert name(tmp_path / "other") != name(folder)


@pytest.mark.slow
def test_kernel_is_exact_without_flashpoint_triton_and_numpy(folder):
    (card,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    shown = run(folder, ALONE + card, {"flashpoint", *OPTIONAL})
    assert shown == ["True", "[]"]


@pytest.mark.slow
def test_triton_kernels_of_the_build_are_exact_in_the_interpreter(folder):
    assert run(folder, INTERPRETED, {"flashpoint"}, TRITON_INTERPRET="1") == ["True"]


@pytest.mark.slow
def test_kernel_and_package_work_side_by_side(folder):
    count, same, called, compiled, unknown = run(folder, TOGETHER, {"no_module"})
    assert int(count) > 10
    difference, name = compiled.split()
    assert (same, float(difference)) == ("True", 0.0)
    assert called == f"['flashpoint', '{name}']"
    assert unknown == "False activation='tanh' is unknown"
