"""``import flashpoint`` stays light, and its public names are real."""

import subprocess
import sys

import pytest

import flashpoint
from flashpoint import layers
from flashpoint.layers.attention import Attention
from flashpoint.layers.memory import KeyValueMemory


def run_python(code):
    """What a fresh interpreter prints for this code."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_import_does_not_load_torch():
    assert run_python("import sys, flashpoint; print('torch' in sys.modules)") == "False\n"


def test_import_adds_less_than_a_second_to_torch():
    code = """
import time, torch
start = time.perf_counter()
import flashpoint
flashpoint.attention
print(time.perf_counter() - start)
"""
    assert any(float(run_python(code)) < 1.0 for _ in range(3))


@pytest.mark.parametrize("name", flashpoint.__all__)
def test_public_name_is_listed_and_loads(name):
    assert name in dir(flashpoint)
    assert getattr(flashpoint, name) is not None


def test_layers_have_the_names_that_documents_use():
    assert (layers.Attention, layers.KeyValueMemory) == (Attention, KeyValueMemory)
    assert all(hasattr(layers, name) for name in layers.__all__)


def test_layers_are_found_without_an_import_of_their_own():
    code = "import flashpoint; print(flashpoint.layers.KeyValueCache.__name__)"
    assert run_python(code) == "KeyValueCache\n"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'flashpoint' has no attribute 'atention'"):
        _ = flashpoint.atention


@pytest.mark.parametrize(
    ("error", "builtin"),
    [(flashpoint.InputError, ValueError), (flashpoint.UnsupportedError, NotImplementedError)],
)
def test_errors_can_be_caught_by_family_or_builtin(error, builtin):
    assert issubclass(error, flashpoint.FlashpointError)
    assert issubclass(error, builtin)


ALONE = """
import pkgutil, sys, torch
from importlib.machinery import PathFinder

TORCHS = {name.partition(".")[0] for name in sys.modules} | {"sympy", "mpmath", "networkx"}
NEEDED = {"flashpoint", "torch", "numpy", "safetensors", *sys.stdlib_module_names}

class OnlyNeeded(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in NEEDED | TORCHS and not name.startswith("flashpoint.lab"):
            return super().find_spec(name, path, target)

sys.meta_path = [OnlyNeeded if finder is PathFinder else finder for finder in sys.meta_path]

import flashpoint

prefixes = ("flashpoint.lab", "flashpoint.ops.gpu", "flashpoint.__main__")
modules = pkgutil.walk_packages(flashpoint.__path__, "flashpoint.", lambda name: None)
names = [module.name for module in modules if not module.name.startswith(prefixes)]
for name in names:
    __import__(name)
q = torch.randn(1, 2, 8, 16, requires_grad=True)
flashpoint.attention(q, q, q, causal=True).sum().backward()
model = flashpoint.create_model("vit_s16", image_size=32, num_classes=3, depth=1)
model(torch.randn(1, 3, 32, 32)).sum().backward()
print(len(names), *({"jaxtyping", "triton", "yaml", "rich", "typer"} & set(sys.modules)))
"""


def test_library_needs_torch_numpy_and_safetensors_only():
    """Every module of it but the GPU's, which need Triton, with all other packages blocked."""
    parts, *loaded = run_python(ALONE).split()
    assert int(parts) > 35
    assert loaded == []


def test_command_line_without_the_lab_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None\nfrom flashpoint.__main__ import main; main()"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert "pip install '.[lab]' in a clone" in process.stderr
    assert "typer is not installed" in process.stderr
