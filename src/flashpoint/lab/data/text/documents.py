"""Parallel documents: what every kind of text gives, and what all readers of files share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

from flashpoint.errors import InputError
from flashpoint.lab.runs.stored import open_plain

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

    @property
    def num_texts(self) -> int:
        """Sources and targets of all segments."""
        return 2 * self.num_segments

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


class Collector:
    """Takes segments in the order of a source and makes documents of them.

    Example:
        >>> collector = Collector("two files")
        >>> collector.add("Yes.", "Ja.")
        >>> collector.start("second")
        >>> collector.add("No.", "")
        >>> collector.finish(("en", "de"))
        Documents(name='two files', documents=[Document(name='1', origin='', segments=(('Yes.', \
'Ja.'),))], languages=('en', 'de'), num_left_out=1)
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._documents: list[Document] = []
        self._segments: list[Segment] = []
        self._current = ("", "")
        self._num_left_out = 0

    def start(self, name: str = "", origin: str = "") -> None:
        """What follows belongs to another document; without a name it gets a number."""
        if self._segments:
            known, from_where = self._current
            given = known or str(len(self._documents) + 1)
            self._documents.append(Document(given, from_where, tuple(self._segments)))
        self._segments = []
        self._current = (name, origin)

    def add(self, source: str, target: str) -> None:
        """One segment; white space is collapsed, and a side without text leaves it out."""
        segment = " ".join(source.split()), " ".join(target.split())
        if all(segment):
            self._segments.append(segment)
        else:
            self._num_left_out += 1

    def finish(self, languages: tuple[str, str]) -> Documents:
        """All documents that have segments."""
        self.start()
        return Documents(self._name, self._documents, languages, self._num_left_out)


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
