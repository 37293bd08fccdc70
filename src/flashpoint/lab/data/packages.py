"""Files inside packages: npm and other tar files, Debian packages, and extracted folders."""

import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from flashpoint.errors import InputError, UnsupportedError, reason
from flashpoint.lab.runs.stored import open_plain

AR_MAGIC = b"!<arch>\n"
AR_HEADER = 60

NO_PACKAGE = (OSError, EOFError, ValueError, tarfile.TarError, zlib.error, lzma.LZMAError)
"""What reading a package raises where it is damaged, or none."""

Wanted = Callable[[str], bool]


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
            return _read_tar(deb_data(opened) if is_deb else opened, wanted)
    except NO_PACKAGE as error:
        raise InputError(
            f"{where} cannot be read as a package: {reason(error)}. "
            "Give a .tgz, .tar or .deb file, or a folder it was extracted to."
        ) from error


def _read_tar(opened: IO[bytes], wanted: Wanted) -> dict[str, bytes]:
    with tarfile.open(fileobj=opened) as archive:
        files = list(plain_members(archive))

        def reads(member: tarfile.TarInfo) -> Callable[[], bytes]:
            stream = archive.extractfile(member)
            return stream.read if stream is not None else bytes

        return _unpacked(((file.name.rpartition("/")[2], reads(file)) for file in files), wanted)


def plain_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The plain files of a tar file; ReadError where a header leads back, as to a loop."""
    last = -1
    for member in archive:
        if member.offset <= last or member.size < 0:
            raise tarfile.ReadError(f"the header at byte {member.offset} has a wrong size")
        last = member.offset
        if member.isfile():
            yield member


def _unpacked(
    files: Iterator[tuple[str, Callable[[], bytes]]], wanted: Wanted
) -> dict[str, bytes]:
    """Read the wanted ones."""
    found: dict[str, bytes] = {}
    for name, read in files:
        plain = name.removesuffix(".gz")
        if wanted(plain):
            found[plain] = gzip.decompress(read()) if name != plain else read()
    return found


def deb_data(opened: IO[bytes]) -> IO[bytes]:
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
