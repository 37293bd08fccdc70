"""Segments one after another, gathered into documents."""

from flashpoint.lab.data.text.documents import Document, Documents, Segment


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
