"""What a page is made of, whatever its format: blocks of text in order."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """A heading, a paragraph, a table's cell: what is translated as a whole.

    Attributes:
        kind: what it is and what it stands in; equal in all languages.
        text: without markup, white space collapsed; empty for listings, which only mark a place.
        key: its own id in the page, if it has one.
        anchor: the name of a place that starts with it, if one does; made-up names left out.
    """

    kind: str
    text: str
    key: str = ""
    anchor: str = ""

    @property
    def is_heading(self) -> bool:
        """Whether a section starts here."""
        return self.kind.rpartition("/")[2] in HEADINGS


HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6", "SH", "SS"))
LISTING = "listing"


def collapse(text: str) -> str:
    """Text with single spaces, no-break ones included, and without invisible hyphens.

    Example:
        >>> collapse("  Abbildung\\u00a014.62.\\n Er\\u00adgeb\\u00adnis ")
        'Abbildung 14.62. Ergebnis'
    """
    return " ".join(text.translate(_INVISIBLE).split())


_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
