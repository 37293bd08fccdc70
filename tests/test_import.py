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
    assert min(float(run_python(code)) for _ in range(3)) < 1.0


@pytest.mark.parametrize("name", flashpoint.__all__)
def test_public_name_is_listed_and_loads(name):
    assert name in dir(flashpoint)
    assert getattr(flashpoint, name) is not None


def test_layers_have_the_names_that_documents_use():
    assert (layers.Attention, layers.KeyValueMemory) == (Attention, KeyValueMemory)


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
