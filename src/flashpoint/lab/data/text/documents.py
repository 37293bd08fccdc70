"""Parallel documents: what every source of text gives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

from flashpoint.errors import InputError

Segment = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Document:
    """Segments that belong together, in order.

    Attributes:
        name: of the document in its source.
        origin: the corpus it comes from; empty if the source does not say.
        segments: sentences or paragraphs with their translations, without line breaks.
    """

    name: str
    origin: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Documents(Sequence[Document]):
    """The documents of one split of a source.

    Attributes:
        name: what messages call the source; the split that was taken, where there were several,
            stands at its end.
        documents: in the order of the source; none is empty.
        languages: of source and target.
        num_left_out: segments without a text on one side or both, which are not there.

    Example:
        >>> Documents("two", [Document("a", "", (("Yes", "Ja"), ("No", "Nein")))]).num_segments
        2
    """

    name: str
    documents: Sequence[Document]
    languages: tuple[str, str] = ("en", "de")
    num_left_out: int = 0

    def __post_init__(self) -> None:
        if not self.documents:
            raise InputError(f"{self.name} holds no documents with text on both sides.")

    @cached_property
    def num_segments(self) -> int:
        """Segments of all documents."""
        return sum(len(document.segments) for document in self.documents)

    def texts(self) -> Iterator[str]:
        """All sources and targets, segment by segment."""
        for document in self.documents:
            for segment in document.segments:
                yield from segment

    def __len__(self) -> int:
        return len(self.documents)

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Document]: ...

    def __getitem__(self, index: int | slice) -> Document | Sequence[Document]:
        return self.documents[index]
