"""Compiles ``attention.cpp``, an activation at a time, for the machine it runs on.

Files are kept in ``native`` in the cache folder, found by what they were made of. Whatever goes
wrong leaves the calls with PyTorch's products, and is said by ``flashpoint doctor``.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from flashpoint.files import cache_folder, write_atomically

CLASSES = {
    "exp": "Exp",
    "gelu": "Gelu",
    "identity": "Identity",
    "relu": "Relu<1>",
    "relu2": "Relu<2>",
    "relu3": "Relu<3>",
    "relu4": "Relu<4>",
    "relu6": "Relu6",
    "sigmoid": "Sigmoid",
    "silu": "Silu",
    "softplus": "Softplus",
}
"""Of ``activations.h``, by activation."""
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared")
_COMPILERS = ("c++", "g++", "clang++")
_SOURCE = Path(__file__).with_name("attention.cpp")  # with the headers beside it
_LONGEST_S = 120.0
# of what compilers say where memory or disk is short, which it may not be next time
_SHORT = (b"signal terminated", b"ut of memory", b"Cannot allocate memory", b"No space left")
_CPU_FIELDS = (
    "vendor_id",
    "cpu family",
    "model",
    "flags",
    "CPU implementer",
    "CPU part",
    "Features",
)


class Kernel(NamedTuple):
    """A compiled call, and PyTorch's own way to run a function on all threads."""

    run: Callable[..., Any]
    region: ctypes.c_void_p


class _UnavailableError(Exception):
    """Why there is no kernel, in a few words."""


_found: dict[str, Kernel | str] = {}
_finding = threading.Lock()


def _unlock() -> None:
    """A forked process has none of the threads that may have held the lock."""
    global _finding
    _finding = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has none, and no forks
    os.register_at_fork(after_in_child=_unlock)


def find(activation: str) -> Kernel | str:
    """The kernel of an activation, compiled if it has to be; or why there is none."""
    if activation not in _found:
        with _finding:
            if activation not in _found:
                try:
                    _found[activation] = _load(activation)
                except _UnavailableError as error:
                    _found[activation] = str(error)
                except OSError as error:  # a folder that cannot be written, say
                    _found[activation] = f"{error.filename}: {error.strerror}"
    return _found[activation]


def is_found(kernel: Kernel, activation: str) -> bool:
    """Whether this is the kernel of an activation."""
    return _found.get(activation) is kernel


def why_not(activation: str = "relu") -> str | None:
    """What keeps calls from the kernel on this machine, in a few words, or None."""
    found = find(activation)
    return found if isinstance(found, str) else None


def _load(activation: str) -> Kernel:
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise _UnavailableError("it is written for Linux on x86-64 and ARM")
    compiler, region = _find_compiler(), _find_region()
    file = file_of(activation, compiler)
    if not file.exists():
        _compile(compiler, activation, file)
    if not all(_is_ours(place) for place in (file, file.parent)):
        raise _UnavailableError(f"others may have written {file}; remove it")
    try:
        run = ctypes.CDLL(str(file)).flashpoint_run
    except (OSError, AttributeError) as error:
        raise _UnavailableError(f"{file} cannot be loaded ({error}); remove it") from error
    run.restype, run.argtypes = ctypes.c_int, (ctypes.c_char_p, ctypes.c_void_p)
    return Kernel(run, region)


def _find_compiler() -> str:
    """``CXX``, or the first of the usual names that is there."""
    named = os.environ.get("CXX")
    for name in (named,) if named else _COMPILERS:
        if found := shutil.which(name):
            return found
    if named:
        raise _UnavailableError(f"CXX is {named!r}, which is not on the PATH")
    raise _UnavailableError("no C++ compiler (g++, clang++) is on the PATH")


def _find_region() -> ctypes.c_void_p:
    """GOMP_parallel of the OpenMP that PyTorch brought; another one would have other threads."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p)
    except AttributeError:
        raise _UnavailableError("this PyTorch has no OpenMP that speaks GNU's") from None


def file_of(activation: str, compiler: str) -> Path:
    """Where the compiled kernel is kept: by its source, flags, compiler and this machine's CPU."""
    sources = [file.read_text("utf-8") for file in (_SOURCE, *sorted(_SOURCE.parent.glob("*.h")))]
    made_of = (*sources, *FLAGS, compiler, CLASSES[activation], _cpu())
    digest = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
    return cache_folder() / "native" / f"{activation}-{digest}.so"


def _compile(compiler: str, activation: str, file: Path) -> None:
    """Write the file whole; or what the compiler said beside it, so that it is not asked again."""
    failure = file.with_suffix(".failed")
    if not failure.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(suffix=".part", dir=file.parent)
        os.close(handle)
        try:
            said = _run([compiler, *FLAGS, f"-DACTIVATION={CLASSES[activation]}", "-o", part])
            if said is None:
                os.chmod(part, 0o700)
                os.replace(part, file)
                return
        finally:
            Path(part).unlink(missing_ok=True)
        write_atomically(failure, lambda handle: handle.write(said))
    raise _UnavailableError(f"{compiler} failed; {failure} says why, remove it to try again")


def _run(command: list[str]) -> bytes | None:
    """What the compiler said where it failed; None where it did not."""
    try:
        done = subprocess.run(
            [*command, str(_SOURCE)],
            capture_output=True,
            timeout=_LONGEST_S,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return f"It took longer than {_LONGEST_S:.0f} s.\n".encode()
    if done.returncode < 0:  # for lack of memory, say: it may work next time
        raise _UnavailableError(f"{command[0]} was killed by signal {-done.returncode}")
    if done.returncode == 0:
        return None
    for line in done.stderr.splitlines():
        if any(words in line for words in _SHORT):
            raise _UnavailableError(f"{command[0]}: {line.decode(errors='replace')}")
    return done.stderr


def _is_ours(place: Path) -> bool:
    """Whether nobody else could have written it."""
    status = place.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _cpu() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.split("\t")[0].rstrip() in _CPU_FIELDS)
