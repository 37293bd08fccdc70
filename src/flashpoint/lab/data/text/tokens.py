"""Texts as ids: one flat array, in which every segment ends with a separator or an end."""

import hashlib
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashpoint.files import cache_folder, write_atomically
from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.data.text.documents import Documents
from flashpoint.lab.data.text.pieces import SEP, Pieces

Ids = npt.NDArray[np.integer[Any]]  # uint16, or int32 for more pieces


@dataclass(frozen=True)
class TokenSide:
    """Source or target of all segments.

    Attributes:
        ids: of all segments, one after another, a separator behind each; [T].
        offsets: where each segment begins, and where the last ends; [S + 1].
    """

    ids: Ids
    offsets: Integers

    @property
    def lengths(self) -> Integers:
        """Tokens of each segment, with its separator."""
        return np.diff(self.offsets)

    def take(self, segments: Integers) -> "TokenSide":
        """These segments in this order; runs of neighbors are copied at once."""
        lengths = self.lengths[segments]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        breaks = np.flatnonzero(np.diff(segments) != 1) + 1
        first = segments[np.concatenate(([0], breaks))]
        last = segments[np.concatenate((breaks, [len(segments)])) - 1] + 1
        runs = zip(self.offsets[first].tolist(), self.offsets[last].tolist(), strict=True)
        return TokenSide(np.concatenate([self.ids[start:end] for start, end in runs]), offsets)


@dataclass(frozen=True)
class TokenDocuments:
    """Both sides, and where documents begin.

    Attributes:
        source, target: with the same number of segments.
        borders: the first segment of each document, and the end of the last; [D + 1].
    """

    source: TokenSide
    target: TokenSide
    borders: Integers

    @property
    def sides(self) -> tuple[TokenSide, TokenSide]:
        """Source and target."""
        return self.source, self.target


def encode_documents(documents: Documents, pieces: Pieces) -> TokenDocuments:
    """All segments as ids; kept in the cache for the next time."""
    borders = np.cumsum([0, *(len(document.segments) for document in documents)])
    sides: list[TokenSide] = []
    for side in (0, 1):
        texts = [segment[side] for document in documents for segment in document.segments]
        sides.append(encode_texts(texts, pieces))
    return TokenDocuments(sides[0], sides[1], borders)


def encode_texts(texts: Sequence[str], pieces: Pieces, end: int = SEP) -> TokenSide:
    """Texts as ids, each with an end behind it; kept in the cache for the next time."""
    digest = hashlib.sha256(pieces.digest.encode())
    if end != SEP:
        digest.update(f"end {end}".encode())
    for text in texts:
        digest.update(text.encode() + b"\n")
    file = cache_folder() / "tokens" / f"{digest.hexdigest()[:32]}.npz"
    return _stored(file) or _encode(texts, pieces, file, end)


def _stored(file: Path) -> TokenSide | None:
    """What was kept; what cannot be read is made again."""
    try:
        with file.open("rb") as opened, np.load(opened) as arrays:
            return TokenSide(arrays["ids"], arrays["offsets"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _encode(texts: Sequence[str], pieces: Pieces, file: Path, end: int) -> TokenSide:
    unique = list(dict.fromkeys(texts))
    dtype = np.uint16 if pieces.size <= 1 << 16 else np.int32
    encoded = {
        text: np.array([*ids, end], dtype=dtype)
        for text, ids in zip(unique, pieces.encode(unique), strict=True)
    }
    parts = [encoded[text] for text in texts]
    side = TokenSide(np.concatenate(parts), np.cumsum([0, *map(len, parts)]))
    with suppress(OSError):  # a cache that cannot be written makes things slower, no more
        write_atomically(file, lambda handle: np.savez(handle, ids=side.ids, offsets=side.offsets))
    return side
