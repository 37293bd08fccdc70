"""Plain parallel text: line n of one file is the translation of line n of the other.

Documents end where both files have an empty line, or a line of markup as Europarl's
``<CHAPTER ID=1>`` and TED's ``<talkid>1</talkid>``; or a third file names them; or the files are
SGML or XML with ``<doc>`` and ``<seg>``, as those of news tests. Without any of it, all is one
document.
"""

import html
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

from flashpoint.errors import InputError
from flashpoint.lab.data.places import at_home, list_folder, pick_split
from flashpoint.lab.data.text.documents import Collector, Documents, read_lines
from flashpoint.lab.data.text.rows import Row, collect_rows

MARKUP_SUFFIXES = (".xml", ".sgm", ".sgml")
DOCUMENT_SUFFIXES = (".docs", ".doc")
NEW_DOCUMENT_TAGS = frozenset(
    ("chapter", "doc", "d", "url", "keywords", "talkid", "title", "description")
)
_MARKUP_LINE = re.compile(r"\s*</?(?P<tag>[A-Za-z]+)\b[^<>]*>(?:.*</(?P=tag)>)?\s*")
_DOC = re.compile(r"<doc\b(?P<head>[^>]*)>(?P<body>.*?)</doc>", re.DOTALL | re.IGNORECASE)
_SEG = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
_DOC_ID = re.compile(r"\b(?:docid|id)\s*=\s*[\"']?([^\"'\s>]+)", re.IGNORECASE)


class ParallelFiles(NamedTuple):
    """Where the texts are.

    Attributes:
        name: what messages call them.
        source, target: of each language; the same file if its lines hold both.
        documents: says which line belongs to which document; None if the texts do.
    """

    name: str
    source: Path
    target: Path
    documents: Path | None


def open_parallel(place: str, split: str, languages: tuple[str, str]) -> Documents:
    """Read the files that a place names; see ``find_files`` for what it may be."""
    files = find_files(place, split, languages)
    collector = Collector(files.name)
    if files.source == files.target:
        _collect_lines(collector, _tab_lines(files.source))
    elif files.source.suffix in MARKUP_SUFFIXES:
        _collect_marked(collector, files)
    elif files.documents is not None:
        _collect_named(collector, files, files.documents)
    else:
        _collect_lines(collector, _paired_lines(files.source, files.target))
    return collector.finish(languages)


def _paired_lines(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Lines of both files; they must have the same number."""
    left, right = read_lines(source), read_lines(target)
    for number, (mine, other) in enumerate(zip_longest(left, right)):
        if mine is None or other is None:
            shorter, longer = (source, target) if mine is None else (target, source)
            total = number + 1 + sum(1 for _ in chain(left, right))
            raise InputError(
                f"{shorter} has {number} lines and {longer} {total}: line n must be the "
                "translation of line n."
            )
        yield mine, other


def _tab_lines(file: Path) -> Iterator[tuple[str, str]]:
    """Source and target of each line; an empty one has neither."""
    for number, line in enumerate(read_lines(file), start=1):
        fields = line.split("\t") if line.strip() else ["", ""]
        if len(fields) != 2:
            raise InputError(
                f"{file}, line {number} has {len(fields)} fields, not 2: source, tab, target."
            )
        yield fields[0], fields[1]


def _collect_lines(collector: Collector, lines: Iterable[tuple[str, str]]) -> None:
    """Segments, and the marks between documents."""
    for source, target in lines:
        if not source.strip() and not target.strip():
            collector.start()
            continue
        marks = [_MARKUP_LINE.fullmatch(side) for side in (source, target)]
        if marks[0] is None or marks[1] is None:
            collector.add(source, target)
        elif marks[0]["tag"].lower() in NEW_DOCUMENT_TAGS:
            collector.start()


def _collect_named(collector: Collector, files: ParallelFiles, named: Path) -> None:
    """Documents by a third file: a name for each line, or the number of each first line."""
    pairs = list(_paired_lines(files.source, files.target))
    names = [line.strip() for line in read_lines(named)]
    if len(names) != len(pairs):
        names = _names_from_starts(names, len(pairs), named)
    rows = (Row(*pair, name) for pair, name in zip(pairs, names, strict=True))
    collect_rows(collector, rows)


def _names_from_starts(starts: Sequence[str], num_lines: int, file: Path) -> list[str]:
    """The document of each line; documents are counted from 1, lines from 0 or from 1."""
    numbers = [int(start) for start in starts if start.isdecimal()]
    rising = all(a < b for a, b in pairwise(numbers))
    if not numbers or len(numbers) < len(starts) or not rising or numbers[0] > 1:
        raise InputError(
            f"{file} has {len(starts)} lines for {num_lines} lines of text. It must have a name "
            "for each of them, or the number of each document's first line, rising from 0 or 1."
        )
    borders = [number - numbers[0] for number in numbers] + [num_lines]
    if borders[-2] >= num_lines:
        raise InputError(f"{file}: line {numbers[-1]} is past the {num_lines} lines of text.")
    sizes = [end - start for start, end in pairwise(borders)]
    return [str(n) for n, size in enumerate(sizes, start=1) for _ in range(size)]


def _collect_marked(collector: Collector, files: ParallelFiles) -> None:
    """SGML or XML: documents in the same order, with the same number of segments."""
    sides = [_marked_documents(file) for file in (files.source, files.target)]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{files.source} has {len(sides[0])} documents and {files.target} {len(sides[1])}."
        )
    for (name, segments), (other, translations) in zip(*sides, strict=True):
        if len(segments) != len(translations):
            raise InputError(
                f"document {name} of {files.source} has {len(segments)} segments, and {other} of "
                f"{files.target} has {len(translations)}."
            )
        collector.start(name)
        for source, target in zip(segments, translations, strict=True):
            collector.add(source, target)


def _marked_documents(file: Path) -> list[tuple[str, list[str]]]:
    """Name and segments of each document."""
    text = "\n".join(read_lines(file))
    found: list[tuple[str, list[str]]] = []
    for match in _DOC.finditer(text):
        name = _DOC_ID.search(match["head"])
        segments = [html.unescape(segment) for segment in _SEG.findall(match["body"])]
        found.append((name[1] if name else str(len(found) + 1), segments))
    if not found:
        raise InputError(f"{file} has no <doc> with <seg> in it.")
    return found


def find_files(place: str, split: str, languages: tuple[str, str]) -> ParallelFiles:
    """The files that a place names.

    | place | files |
    |---|---|
    | ``FILE,FILE`` | these two |
    | ``FILE.tsv`` | source, tab, target |
    | ``PREFIX`` | PREFIX.en and PREFIX.de, or PREFIX.en.xml, PREFIX.en.sgm; PREFIX.docs |
    | ``DIR`` | as PREFIX, named train, validation (or val, valid, dev, test) |
    """
    before, comma, after = place.partition(",")
    if comma:
        source, target = (_existing(at_home(side)) for side in (before, after))
        return ParallelFiles(f"text:{place}", source, target, None)
    path = at_home(place)
    if path.suffix == ".tsv":
        return ParallelFiles(f"text:{place}", _existing(path), path, None)
    if not os.path.isdir(path):
        return _with_prefix(path, languages, f"text:{place}")
    names = {name for name in list_folder(path).files if os.path.isfile(path / name)}
    stems = {name.partition(f".{languages[0]}")[0] for name in names if f".{languages[0]}" in name}
    if split == "validation" and "dev" in stems and "validation" not in stems:
        split = "dev"
    prefix = path / pick_split(stems, split, f"text:{place}")
    return _with_prefix(prefix, languages, f"text:{prefix}")


def _with_prefix(prefix: Path, languages: tuple[str, str], name: str) -> ParallelFiles:
    source, target = (_of_language(prefix, language) for language in languages)
    named = (prefix.with_name(prefix.name + suffix) for suffix in DOCUMENT_SUFFIXES)
    return ParallelFiles(name, source, target, next(filter(os.path.isfile, named), None))


def _of_language(prefix: Path, language: str) -> Path:
    """PREFIX.LANGUAGE, with or without markup."""
    wanted = prefix.with_name(f"{prefix.name}.{language}")
    for suffix in ("", *MARKUP_SUFFIXES):
        if os.path.isfile(file := wanted.with_name(wanted.name + suffix)):
            return file
    raise InputError(
        f"{wanted} does not exist. Give text:PREFIX for PREFIX.{language} and its translation, "
        "or the two files: text:FILE,FILE."
    )


def _existing(file: Path) -> Path:
    if not os.path.isfile(file):
        raise InputError(f"{file} does not exist, or is no plain file.")
    return file
