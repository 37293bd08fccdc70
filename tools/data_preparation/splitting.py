"""Documents to splits: by document, of all lengths, nothing of the held-out ones in training."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from data_preparation.alignment import fingerprint
from flashpoint.lab.data.text.documents import Document

SPLITS = ("train", "validation", "test")
GROUP = 25
FROM_GROUP = ("test", "validation")
FROM_LONGEST = ("test", "test", "test", "validation")

Splits = dict[str, list[Document]]
T = TypeVar("T")


def split_documents(documents: Sequence[Document], seed: int) -> Splits:
    """Which documents are for training, validation and test.

    Each origin's documents are sorted by length and cut into groups of about 25. Each group gives
    one to the test and one to the validation split, chosen by the seed; that of the longest gives
    three to the test: translation of long documents is what it is there for.
    """
    splits: Splits = {name: [] for name in SPLITS}
    for origin in dict.fromkeys(document.origin for document in documents):
        members = [document for document in documents if document.origin == origin]
        members.sort(key=lambda document: (-_num_characters(document), document.name))
        for number, group in enumerate(groups(members)):
            drawn = sorted(group, key=lambda document: draw(seed, document.name))
            for name, document in zip(_shares(number, len(drawn)), drawn, strict=True):
                splits[name].append(document)
    return {name: sorted(part, key=lambda d: d.name) for name, part in splits.items()}


def _shares(number: int, size: int) -> list[str]:
    """The split of each document of a group; a very small one gives none away."""
    names = FROM_LONGEST if number == 0 and size > 2 * len(FROM_LONGEST) else FROM_GROUP
    held_out = names if size > len(names) else ()
    return [*held_out, *("train" for _ in range(size - len(held_out)))]


def remove_repeats(splits: Mapping[str, Sequence[Document]]) -> tuple[Splits, dict[str, int]]:
    """Take out of training what the held-out splits hold, and out of validation what test holds.

    Segments count as the same if either side is, but for case, numbers and punctuation.

    Returns:
        the splits, without documents that have nothing left; removed segments of each.
    """
    kept: Splits = {}
    removed: dict[str, int] = {}
    known: set[str] = set()
    for name in reversed(SPLITS):
        documents = [_without(document, known) for document in splits[name]]
        kept[name] = [document for document in documents if document.segments]
        removed[name] = _num_segments(splits[name]) - _num_segments(kept[name])
        for document in kept[name]:
            for segment in document.segments:
                known.update(map(fingerprint, segment))
    return {name: kept[name] for name in SPLITS}, {name: removed[name] for name in SPLITS}


def _without(document: Document, known: set[str]) -> Document:
    """A document without the segments that are known."""
    segments = tuple(
        segment
        for segment in document.segments
        if known.isdisjoint(fingerprint(text) for text in segment)
    )
    return Document(document.name, document.origin, segments)


def groups(documents: Sequence[T]) -> Iterator[Sequence[T]]:
    """Parts of about the same size, of some 25 members."""
    number = max(1, round(len(documents) / GROUP))
    borders = [len(documents) * part // number for part in range(number + 1)]
    for start, end in pairwise(borders):
        yield documents[start:end]


def draw(seed: int, name: str) -> bytes:
    """A random number for a document, which does not depend on the other ones."""
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()


def _num_characters(document: Document) -> int:
    return sum(len(source) for source, _ in document.segments)


def _num_segments(documents: Sequence[Document]) -> int:
    return sum(len(document.segments) for document in documents)
