"""What the head of a JPEG file says, read without decoding it."""

_START, _END = b"\xff\xd8", b"\xff\xd9"
_BASELINE = 0xC0
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # tables and extensions are no frames
_ADOBE = 0xEE
_COLOR = (1, 2, 3)  # the numbers of Y, Cb and Cr
_SAMPLINGS = ((0x11, 0x11, 0x11), (0x21, 0x11, 0x11), (0x22, 0x11, 0x11))
_TAIL = 64  # bytes in which a whole file ends


def baseline_size(content: bytes) -> tuple[int, int] | None:
    """Width and height of a color image that a decoder in hardware takes; None for all others.

    That is: baseline, 8 bits, YCbCr in a usual sampling, and a file that has its end.

    Example:
        >>> baseline_size(b"no image") is None
        True
    """
    if not content.startswith(_START) or _END not in content[-_TAIL:]:
        return None
    at = 2
    while at + 4 <= len(content) and content[at] == 0xFF:
        kind, length = content[at + 1], int.from_bytes(content[at + 2 : at + 4])
        segment = content[at + 4 : at + 2 + length]
        if kind == _ADOBE and segment.startswith(b"Adobe") and segment[11:12] != b"\x01":
            return None
        if kind in _FRAMES:
            return _size(segment) if kind == _BASELINE else None
        at += 2 + length
    return None


def _size(frame: bytes) -> tuple[int, int] | None:
    """Of a frame with three components: 8 bits, height, width, then three bytes for each."""
    if len(frame) != 15 or frame[0] != 8 or frame[5] != 3:
        return None
    if tuple(frame[6::3]) != _COLOR or tuple(frame[7::3]) not in _SAMPLINGS:
        return None
    height, width = int.from_bytes(frame[1:3]), int.from_bytes(frame[3:5])
    return (width, height) if width and height else None
