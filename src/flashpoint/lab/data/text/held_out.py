"""Training documents in two parts: settings are chosen on one, by training on the other."""

import re
from dataclasses import replace

from flashpoint.lab.data.places import HELD_OUT
from flashpoint.lab.data.text.documents import Document, Documents

FOLD = 20
"""One document of twenty is held out."""
_NO_LETTERS = re.compile(r"[\W\d_]+")


def part_of(documents: Documents, part: str) -> Documents:
    """The documents that are held out, or those to fit without any segment of these.

    Segments count as the same if either side is, but for case, numbers and punctuation: manuals
    repeat themselves, and a repeated segment would be known by heart.

    Args:
        documents: of the training split, in the order of its file.
        part: "fit" or "held-out".

    Example:
        >>> two = [Document("a", "", (("Yes", "Ja"),)), Document("b", "", (("No", "Nein"),))]
        >>> [document.name for document in part_of(Documents("two", two), "fit")]
        ['b']
    """
    held_out = replace(documents, documents=documents[::FOLD])
    if part == HELD_OUT:
        return held_out
    known = set(map(_letters, held_out.texts()))
    others = [document for number, document in enumerate(documents) if number % FOLD]
    kept = [_without(document, known) for document in others]
    return replace(documents, documents=[document for document in kept if document.segments])


def _without(document: Document, known: set[str]) -> Document:
    segments = (pair for pair in document.segments if known.isdisjoint(map(_letters, pair)))
    return replace(document, segments=tuple(segments))


def _letters(text: str) -> str:
    return _NO_LETTERS.sub(" ", text).casefold().strip()
