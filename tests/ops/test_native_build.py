"""Where the kernel in C++ comes from, and that calls do without where it cannot be had."""

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from native_kernel import SHAPE, needs_kernel
from numerics import place_qkv

from flashpoint import attention
from flashpoint.ops.cpu.native import build


@needs_kernel
def test_it_is_compiled_once_for_all_processes(used, nothing_built):
    tensors = place_qkv("cpu", SHAPE, torch.float32)
    attention(**tensors)
    (file,) = nothing_built.iterdir()
    made = file.stat().st_mtime_ns
    build._found.clear()  # as in a new process
    attention(**tensors)
    assert [*nothing_built.iterdir()] == [file]
    assert file.stat().st_mtime_ns == made
    assert nothing_built.stat().st_mode & 0o077 == 0
    assert used["attend"] == 2


def expect_products(used, words):
    """Calls are computed all the same, and doctor says why they go by products."""
    tensors = place_qkv("cpu", SHAPE, torch.float32)
    exact = attention(**{name: x.double() for name, x in tensors.items()}, impl="reference")
    assert (attention(**tensors) - exact).abs().max() < 1e-5
    assert used["attend"] == 0
    assert words in (build.why_not() or "")


def test_without_a_compiler_products_serve(used, nothing_built, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    expect_products(used, "no C++ compiler (g++, clang++) is on the PATH")
    assert not nothing_built.exists()


def test_a_compiler_that_fails_is_asked_once(used, nothing_built, monkeypatch, tmp_path):
    compiler = tmp_path / "mycc"
    asked = tmp_path / "asked"
    compiler.write_text(f"#!/bin/sh\necho asked >> {asked}\necho no such thing >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    for _ in range(2):
        expect_products(used, f"{compiler} failed; {nothing_built}/relu-")
        build._found.clear()  # as in a new process
    (said,) = nothing_built.iterdir()
    assert said.read_text() == "no such thing\n"
    assert asked.read_text() == "asked\n"


@needs_kernel
def test_a_file_that_others_may_have_written_is_not_run(used, nothing_built):
    attention(**place_qkv("cpu", SHAPE, torch.float32))
    (file,) = nothing_built.iterdir()
    for place in (file, nothing_built):
        place.chmod(0o777)
        build._found.clear()
        used["attend"] = 0
        expect_products(used, f"others may have written {file}; remove it")
        place.chmod(0o700)


def test_a_folder_that_cannot_be_written_leaves_products(used, nothing_built):
    nothing_built.parent.mkdir(exist_ok=True)
    nothing_built.write_text("a file where the folder would be")
    expect_products(used, f"{nothing_built}: File exists")


def test_sources_that_are_missing_leave_products(used, nothing_built, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "_SOURCE", tmp_path / "attention.cpp")
    expect_products(used, f"{tmp_path}/attention.cpp: No such file or directory")


def test_a_file_that_is_no_library_leaves_products(used, nothing_built):
    file = build.file_of("relu", shutil.which("c++") or shutil.which("g++") or "none")
    file.parent.mkdir(mode=0o700)
    file.write_text("cut")
    file.chmod(0o600)
    expect_products(used, f"{file} cannot be loaded (")


def test_a_compiler_that_is_killed_is_asked_again(used, nothing_built, monkeypatch, tmp_path):
    compiler = tmp_path / "mycc"
    compiler.write_text("#!/bin/sh\nkill -9 $$\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    expect_products(used, f"{compiler} was killed by signal 9")
    assert not [*nothing_built.iterdir()]


@pytest.mark.parametrize(
    "said",
    [
        "g++: fatal error: Killed signal terminated program cc1plus",
        "cc1plus: out of memory allocating 65536 bytes after a total of 31653888 bytes",
        "LLVM ERROR: out of memory",
        "/tmp/x.s: fatal error: error writing to /tmp/x.s: No space left on device",
    ],
)
def test_a_compiler_that_runs_short_is_asked_again(
    used, nothing_built, monkeypatch, tmp_path, said
):
    """It ends with 1, as for a fault in the source, when its own process was killed."""
    compiler = tmp_path / "mycc"
    compiler.write_text(f"#!/bin/sh\necho compiling >&2\necho '{said}' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    expect_products(used, f"{compiler}: {said}")
    assert not [*nothing_built.iterdir()]


def test_it_can_be_kept_off(used, nothing_built, monkeypatch):
    monkeypatch.setenv("CXX", "none")
    expect_products(used, "CXX is 'none', which is not on the PATH")


@needs_kernel
def test_threads_that_call_it_first_at_once_share_one(nothing_built, monkeypatch, tmp_path):
    compiler, asked = tmp_path / "mycc", tmp_path / "asked"
    compiler.write_text(f'#!/bin/sh\necho asked >> {asked}\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(build.find, ["relu"] * 4)]
    assert all(kernel is found[0] for kernel in found)
    assert isinstance(found[0], build.Kernel)
    assert asked.read_text() == "asked\n"


@needs_kernel
def test_a_process_forked_while_a_thread_compiles_does_not_wait_for_it(used, monkeypatch):
    tensors = place_qkv("cpu", SHAPE, torch.float32)
    with build._finding:
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)  # ends it if it waits
            try:
                build._found.clear()
                torch.set_num_threads(1)
                attention(**tensors)
            finally:
                os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
