"""Documents cut, and joined, to samples of wanted lengths; always between segments."""

from dataclasses import dataclass

import numpy as np

from flashpoint.errors import InputError
from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.data.text.tokens import TokenDocuments, TokenSide


@dataclass(frozen=True)
class Chunks:
    """Samples as runs of segments.

    Attributes:
        segments: in the order in which samples take them, [S]; those too long for a sample are
            not among them.
        starts, ends: chunk n holds ``segments[starts[n]:ends[n]]``, [N].
        lengths: tokens of source and target of each chunk, with a separator or the end behind
            each segment, [2, N].
    """

    segments: Integers
    starts: Integers
    ends: Integers
    lengths: Integers

    def __len__(self) -> int:
        return len(self.starts)


def cut_documents(
    tokens: TokenDocuments,
    length: int,
    *,
    join: bool,
    resolutions: int = 1,
    by_segment: bool = False,
    rng: np.random.Generator | None = None,
) -> Chunks:
    """Cut all documents to samples of at most ``length`` tokens on each side.

    Each sample takes as many segments as fit, or one.

    Args:
        tokens: the documents.
        length: of a side at most.
        join: whether a sample may run on into the next document.
        resolutions: how often all documents are cut: to the length, half of it, a quarter, ...;
            a segment longer than such a part is a sample of its own.
        by_segment: whether every segment is a sample of its own; nothing is joined then.
        rng: shuffles the documents and places the first cut; None: the documents as they are.
    """
    num_documents = len(tokens.borders) - 1
    order = np.arange(num_documents) if rng is None else rng.permutation(num_documents)
    segments, document_ends = _in_order(tokens, order, length)
    offsets = [np.concatenate(([0], np.cumsum(s.lengths[segments]))) for s in tokens.sides]
    borders = [
        np.arange(len(segments) + 1)
        if by_segment
        else _borders(offsets, document_ends, length >> halvings, join=join, rng=rng)
        for halvings in range(resolutions)
    ]
    starts = np.concatenate([some[:-1] for some in borders])
    ends = np.concatenate([some[1:] for some in borders])
    lengths = np.stack([offset[ends] - offset[starts] for offset in offsets])
    return Chunks(segments, starts, ends, lengths)


def _borders(
    offsets: list[Integers],
    ends: Integers,
    length: int,
    *,
    join: bool,
    rng: np.random.Generator | None,
) -> Integers:
    """Where samples of a length meet, from the first segment's start to the last one's end.

    Args:
        offsets: of each side: where each segment's tokens begin, and where the last one's end.
        ends: of the documents.
        length, join, rng: as in ``cut_documents``.
    """
    num_segments = int(ends[-1])
    fits = _reach(offsets, np.full(num_segments, length))
    first = np.concatenate(([0], ends[:-1]))  # of each document
    if rng is not None:
        starts = first[:1] if join else first[fits[first] < ends]
        limits = np.full(num_segments, length)
        limits[starts] = rng.integers(1, length, len(starts), endpoint=True)
        fits[starts] = _reach(offsets, limits)[starts]
    if not join:
        fits = np.minimum(fits, np.repeat(ends, ends - first))
    return _walk(fits)


def num_too_long(tokens: TokenDocuments, length: int) -> int:
    """Segments that fit into no sample."""
    return int(np.count_nonzero(_is_too_long(tokens.sides, length)))


def _is_too_long(sides: tuple[TokenSide, TokenSide], length: int) -> np.ndarray:
    return np.maximum(sides[0].lengths, sides[1].lengths) > length


def _in_order(tokens: TokenDocuments, order: Integers, length: int) -> tuple[Integers, Integers]:
    """Segments of the documents in this order, without the too long; where each document ends."""
    starts, sizes = tokens.borders[order], np.diff(tokens.borders)[order]
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    segments = np.repeat(starts, sizes) + within
    fitting = ~_is_too_long(tokens.sides, length)[segments]
    counts = np.bincount(np.repeat(np.arange(len(order)), sizes)[fitting], minlength=len(order))
    if not fitting.any():
        raise InputError(
            f"data.length={length} is less than the tokens of any segment: the shortest has "
            f"{int(np.maximum(*(side.lengths for side in tokens.sides)).min())}."
        )
    return segments[fitting], np.cumsum(counts[counts > 0])


def _reach(offsets: list[Integers], limits: Integers) -> Integers:
    """The end of the longest run from each segment that both limits allow, or of it alone."""
    ends = [np.searchsorted(o, o[:-1] + limits, side="right") - 1 for o in offsets]
    return np.maximum(np.minimum(ends[0], ends[1]), np.arange(1, len(limits) + 1))


def _walk(next_border: Integers) -> Integers:
    """The borders that one meets from the start."""
    steps = next_border.tolist()
    borders = [0]
    while borders[-1] < len(steps):
        borders.append(steps[borders[-1]])
    return np.array(borders, dtype=np.int64)
