"""The six parallel corpora in Debian's packages: where their pages are and how they align."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from data_preparation.alignment import Pair, align_by_key, align_by_order, clean_pairs
from data_preparation.blocks import Block
from data_preparation.html_blocks import read_html
from data_preparation.man_blocks import read_man
from data_preparation.packages import read_pages
from flashpoint.errors import InputError
from flashpoint.lab.data.text.documents import Document

LANGUAGES = ("en", "de")


class Counts(NamedTuple):
    """How much of a corpus there is.

    Attributes:
        documents: pages with at least one pair.
        segments: pairs.
        unique: different pairs.
        words: of the source, split at white space.
    """

    documents: int
    segments: int
    unique: int
    words: int


@dataclass(frozen=True)
class Corpus:
    """Pages in two languages.

    Attributes:
        name: the origin of its documents.
        packages: that hold its pages.
        patterns: of the paths of English and of German pages; the group "page" is the same.
        read: blocks of a page.
        align: pairs of blocks.
        known: what earlier extraction from Debian 12's packages gave, to compare with.
    """

    name: str
    packages: tuple[str, ...]
    patterns: tuple[str, str]
    known: Counts
    read: Callable[[str], list[Block]] = read_html
    align: Callable[[Sequence[Block], Sequence[Block]], list[Pair]] = align_by_order


def count(documents: Sequence[Document]) -> Counts:
    """Sizes of some documents."""
    pairs = [pair for document in documents for pair in document.segments]
    words = sum(len(source.split()) for source, _ in pairs)
    return Counts(len(documents), len(pairs), len(set(pairs)), words)


def extract(corpus: Corpus, packages: Mapping[str, Path]) -> tuple[list[Document], int]:
    """Pages that both languages have, aligned and cleaned, by name; pairs before cleaning."""
    source, target = _pages(corpus, packages)
    documents: list[Document] = []
    num_aligned = 0
    for page in sorted(source.keys() & target.keys()):
        blocks = corpus.read(source[page]), corpus.read(target[page])
        aligned = [pair for pair in corpus.align(*blocks) if any(pair)]  # no listings
        num_aligned += len(aligned)
        if pairs := clean_pairs(aligned):
            documents.append(Document(f"{corpus.name}/{page}", corpus.name, tuple(pairs)))
    if not documents:
        raise InputError(
            f"{corpus.name}: {len(source)} English and {len(target)} German pages have nothing in "
            f"common in {', '.join(packages[name].name for name in corpus.packages)}. Are these "
            "packages of another release of Debian?"
        )
    return documents, num_aligned


def _pages(corpus: Corpus, packages: Mapping[str, Path]) -> list[dict[str, str]]:
    """English and German pages of all packages."""
    pages: list[dict[str, str]] = [{}, {}]
    for name in corpus.packages:
        for mine, new in zip(pages, read_pages(packages[name], corpus.patterns), strict=True):
            mine |= new
    return pages


def _patterns(path: str, english: str, german: str) -> tuple[str, str]:
    """Paths of pages, from one that has a pair of braces where the language stands."""
    return path.format(english), path.format(german)


CORPORA = (
    Corpus(
        name="libreoffice-help",
        packages=("libreoffice-help-en-us", "libreoffice-help-de"),
        patterns=_patterns(
            r"usr/share/libreoffice/help/{}/text/(?P<page>.*)\.html", "en-US", "de"
        ),
        align=align_by_key,
        known=Counts(2_549, 53_559, 36_068, 608_000),
    ),
    Corpus(
        name="gimp-help",
        packages=("gimp-help-en", "gimp-help-de"),
        patterns=_patterns(r"usr/share/gimp/[^/]*/help/{}/(?P<page>[^/]*)\.html", "en", "de"),
        known=Counts(657, 14_024, 10_215, 192_000),
    ),
    Corpus(
        name="manpages",
        packages=("manpages", "manpages-dev", "manpages-de", "manpages-de-dev"),
        patterns=_patterns(r"usr/share/man/{}(?P<page>man\d/[^/]*)\.gz", "", "de/"),
        read=read_man,
        known=Counts(501, 11_134, 6_975, 200_000),
    ),
    Corpus(
        name="debian-handbook",
        packages=("debian-handbook",),
        patterns=_patterns(
            r"usr/share/doc/debian-handbook/html/{}/(?P<page>[^/]*)\.html", "en-US", "de-DE"
        ),
        known=Counts(126, 4_670, 3_723, 124_000),
    ),
    Corpus(
        name="debian-reference",
        packages=("debian-reference-en", "debian-reference-de"),
        patterns=_patterns(r"usr/share/debian-reference/(?P<page>[^/]*)\.{}\.html", "en", "de"),
        known=Counts(14, 7_091, 5_316, 72_000),
    ),
    Corpus(
        name="installation-guide",
        packages=("installation-guide-amd64",),
        patterns=_patterns(
            r"usr/share/doc/installation-guide-amd64/{}/(?P<page>[^/]*)\.html", "en", "de"
        ),
        known=Counts(81, 1_791, 1_538, 54_000),
    ),
)
