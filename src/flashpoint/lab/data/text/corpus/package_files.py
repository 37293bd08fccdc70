"""Text files of a Debian package by their path, read without installing it."""

import gzip
import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from flashpoint.errors import InputError, UnsupportedError, reason
from flashpoint.lab.data.packages import NO_PACKAGE, deb_data, plain_members
from flashpoint.lab.runs.stored import open_plain

Read = Callable[[], bytes]


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
        for member in plain_members(archive):
            stream = archive.extractfile(member)
            assert stream is not None
            yield member.name.removeprefix("./"), stream.read


def _open_tar(package: Path) -> tarfile.TarFile:
    """The files in a package; for what Python cannot unpack, dpkg-deb is asked."""
    try:
        with open_plain(package) as opened:
            data: IO[bytes] = deb_data(opened)
    except UnsupportedError:
        if shutil.which("dpkg-deb") is None:
            raise
        command = ["dpkg-deb", "--fsys-tarfile", str(package)]
        data = io.BytesIO(subprocess.run(command, capture_output=True, check=True).stdout)
    return tarfile.open(fileobj=data)
