"""Lines of a text file; what is wrong is said with the file and the line."""

from collections.abc import Iterator
from pathlib import Path

from flashpoint.errors import InputError
from flashpoint.lab.runs.stored import open_plain


def read_lines(file: Path) -> Iterator[str]:
    """All lines without their ends; only a line feed, or one after a return, ends a line.

    Other characters that Unicode calls line breaks stay in the line: files of two languages
    would else come apart.
    """
    try:
        with open_plain(file) as opened:
            for number, content in enumerate(opened, start=1):
                try:
                    line = content.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{file}, line {number}: byte {error.start + 1} (0x"
                        f"{content[error.start]:02x}) is no UTF-8. Convert the file, as with "
                        "`iconv -f LATIN1 -t UTF-8`."
                    ) from error
                yield line.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
