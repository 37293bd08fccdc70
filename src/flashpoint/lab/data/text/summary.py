"""What a person wants to know of documents: counts, lengths, origins, and pairs to read."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flashpoint.lab.data.places import open_splits
from flashpoint.lab.data.text.document_kinds import open_documents
from flashpoint.lab.data.text.documents import Document, Documents, Segment

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Summary:
    """One split of a source.

    Attributes:
        split: "train", "validation", "test" or another name; "all" if there are no splits.
        documents: of the split.
        num_unique: different segments.
        num_words: of source and of target, split at white space.
        document_words: words of the source in a document: the median, and the most.
        origins: documents and words of the source of each origin.
    """

    split: str
    documents: Documents
    num_unique: int
    num_words: tuple[int, int]
    document_words: tuple[int, int]
    origins: dict[str, tuple[int, int]]


def summarize(
    where: str, split: str | None = None, languages: tuple[str, str] = ("en", "de")
) -> tuple[list[Summary], dict[str, str]]:
    """One split of what a text names, or all that it has.

    The second part is why splits that are there cannot be opened, by their names.
    """
    if split is not None:
        return [_summary(split, open_documents(where, split, languages))], {}
    found, broken = open_splits(SPLITS, lambda name: open_documents(where, name, languages))
    different = {documents.name: split for split, documents in reversed(found.items())}
    if len(different) == 1 and len(found) > 1:
        return [_summary("all", next(iter(found.values())))], broken
    return [_summary(s, d) for s, d in found.items() if different[d.name] == s], broken


def _summary(split: str, documents: Documents) -> Summary:
    words = np.array([_num_words(document) for document in documents])  # [D, 2]
    origins: dict[str, tuple[int, int]] = {}
    for document, (num_words, _) in zip(documents, words.tolist(), strict=True):
        known = origins.get(document.origin, (0, 0))
        origins[document.origin] = (known[0] + 1, known[1] + num_words)
    return Summary(
        split,
        documents,
        num_unique=len({segment for document in documents for segment in document.segments}),
        num_words=(int(words[:, 0].sum()), int(words[:, 1].sum())),
        document_words=(int(np.median(words[:, 0])), int(words[:, 0].max())),
        origins=origins,
    )


def _num_words(document: Document) -> tuple[int, int]:
    source = sum(len(text.split()) for text, _ in document.segments)
    return source, sum(len(text.split()) for _, text in document.segments)


def sample_pairs(documents: Documents, number: int) -> Iterator[tuple[str, Segment]]:
    """Some segments, evenly spread, each with the name of its document."""
    ends = np.cumsum([len(document.segments) for document in documents])
    chosen = np.linspace(0, ends[-1] - 1, min(number, int(ends[-1]))).astype(int)
    for place in np.unique(chosen).tolist():
        index = int(np.searchsorted(ends, place, side="right"))
        document = documents[index]
        yield document.name, document.segments[place - int(ends[index])]
