"""The members of a tar file, found by its headers alone.

Python's ``tarfile`` takes three times as long and does not say where a damaged file breaks off.
Here a header and the beginning of its member are one read.
"""

import os
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

BLOCK = 512
MAX_END = 22 * BLOCK  # of zeros: two blocks, and what fills the last record of twenty
AHEAD = 1536  # read with a header: enough for a label, so that it needs no second read
MAX_EXTENSION = 1 << 20  # of a long name, or of facts about the next member
POSITIVE_BINARY = 0x80  # 0xff begins a negative number
REGULAR = (0, ord("0"), ord("7"))
NAME_OF_NEXT, FACTS_OF_NEXT = ord("L"), ord("x")

_DECIMAL = re.compile(r"[0-9]{1,20}")


class DamagedTarError(Exception):
    """A tar file ends too early or holds what is no header.

    Attributes:
        position: where the readable part ends, in bytes.
        is_cut: whether the file ends there, so that its whole length is unknown.
    """

    def __init__(self, message: str, position: int, *, is_cut: bool) -> None:
        super().__init__(message)
        self.position = position
        self.is_cut = is_cut


class Member(NamedTuple):
    """A file in a tar file.

    Attributes:
        name: its path.
        offset, size: where its content lies, in bytes.
        head: the first bytes of the content.
    """

    name: str
    offset: int
    size: int
    head: bytes


def members(handle: int, length: int) -> Iterator[Member]:
    """The regular files in a tar file of this length; DamagedTarError where it is broken.

    Everything that is yielded lies wholly in the file.
    """
    position, name, size_of_next = 0, None, None
    while True:
        block = os.pread(handle, BLOCK + AHEAD, position)
        header = block[:BLOCK]
        if len(header) < BLOCK:
            message = f"cut at byte {length}, there is no end mark"
            raise DamagedTarError(message, position, is_cut=True)
        if not header[0] and not any(header):
            _check_end(handle, position, length)
            return
        kind, size = header[156], _checked_size(header, position)
        if kind in REGULAR and size_of_next is not None:
            size = size_of_next
        start = position + BLOCK
        if start + size > length:
            message = f"cut at byte {length}, in the member at {position}"
            raise DamagedTarError(message, position, is_cut=True)
        if kind in (NAME_OF_NEXT, FACTS_OF_NEXT) and size > MAX_EXTENSION:
            raise _no_header(position)
        head = block[BLOCK : BLOCK + size]
        if kind == NAME_OF_NEXT:
            name = _text(_whole(handle, start, size, head))
        elif kind == FACTS_OF_NEXT:
            facts = _facts(_whole(handle, start, size, head))
            name = facts.get("path", name)
            size_of_next = _size_fact(facts.get("size"), position)
        else:
            if kind in REGULAR:
                yield Member(name or _name(header), start, size, head)
            name, size_of_next = None, None
        position = start + -(-size // BLOCK) * BLOCK


def _check_end(handle: int, position: int, length: int) -> None:
    """Refuse zeros that end nothing: what was never written, or is followed by more members.

    Writers fill up a last record of 20 blocks, and no more.
    """
    rest = length - position
    if rest >= MAX_END or any(os.pread(handle, rest, position)):
        message = f"zeros instead of a header at byte {position}, {rest} bytes before the end"
        raise DamagedTarError(message, position, is_cut=False)


def content(handle: int, member: Member) -> bytes:
    """All bytes of a member."""
    return _whole(handle, member.offset, member.size, member.head)


def name_before(handle: int, offset: int) -> str:
    """The name in the header of the member whose content begins here."""
    return _name(os.pread(handle, BLOCK, offset - BLOCK))


def _whole(handle: int, start: int, size: int, head: bytes) -> bytes:
    return head if len(head) == size else os.pread(handle, size, start)


def _checked_size(header: bytes, position: int) -> int:
    """The size of a member; the header's own sum tells whether it is a header."""
    field = header[124:136]
    stated = _octal(header[148:156], position)
    if field[0] == POSITIVE_BINARY:  # sizes from 8 GiB on
        size = int.from_bytes(field[1:], "big")
    else:
        size = _octal(field, position)
    # The lower half of adler32 is 1 + the sum of all bytes, modulo 65521, and fast.
    if zlib.adler32(header[:148] + b" " * 8 + header[156:]) & 0xFFFF != (stated + 1) % 65521:
        raise _no_header(position)
    return size


def _octal(field: bytes, position: int) -> int:
    """A number in a header; one with a sign would lead back, and a scan would have no end."""
    digits = field.split(b"\0", 1)[0].strip() or b"0"
    if digits.strip(b"01234567"):
        raise _no_header(position)
    return int(digits, 8)


def _size_fact(text: str | None, position: int) -> int | None:
    """The size that an extended header states for the member behind it, if it does."""
    if text is None:
        return None
    if not _DECIMAL.fullmatch(text):
        raise _no_header(position)
    return int(text)


def _no_header(position: int) -> DamagedTarError:
    return DamagedTarError(f"no header at byte {position}", position, is_cut=False)


def _name(header: bytes) -> str:
    name = _text(header[:100])
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _facts(block: bytes) -> dict[str, str]:
    """The records "LENGTH KEY=VALUE" of an extended header."""
    facts: dict[str, str] = {}
    while block:
        length, _, rest = block.partition(b" ")
        if not _DECIMAL.fullmatch(length.decode("ascii", "replace")) or int(length) <= len(length):
            break
        record = rest[: int(length) - len(length) - 1]
        key, _, value = record.rstrip(b"\n").partition(b"=")
        facts[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        block = block[int(length) :]
    return facts
