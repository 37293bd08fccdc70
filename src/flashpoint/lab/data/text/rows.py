"""Rows with named fields: JSON lines, and Hugging Face datasets on disk with two texts a row."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flashpoint.errors import InputError, describe, show_names
from flashpoint.lab.data.huggingface import load_split, require_datasets
from flashpoint.lab.data.places import SPLIT_NAMES, open_splits, pick_split
from flashpoint.lab.data.text.documents import Collector, Documents, read_lines
from flashpoint.lab.runs.stored import parse_json

DOCUMENT_FIELDS = ("document", "doc", "doc_id", "docid", "document_id", "talk_id", "name")
TRANSLATION = "translation"
SEGMENTS = "segments"


class Row(NamedTuple):
    """One segment, and the document it belongs to."""

    source: str
    target: str
    document: str


def find_fields(
    names: Collection[str], languages: tuple[str, str], where: str
) -> tuple[str, str, str]:
    """The fields that hold source, target and document; the last is empty if there is none.

    Source and target are named after their languages, or "source" and "target".
    """
    document = next((name for name in DOCUMENT_FIELDS if name in names), "")
    for pair in (languages, ("source", "target")):
        if set(pair) <= set(names):
            return *pair, document
    raise InputError(
        f"{where} has the fields {show_names(names)}; needed are "
        f"{languages[0]} and {languages[1]}, or source and target (or a field {TRANSLATION} with "
        f"these), and for documents one of {', '.join(DOCUMENT_FIELDS)}."
    )


def as_row(fields: Mapping[str, Any], languages: tuple[str, str], where: str) -> Row:
    """One segment of a mapping; a field "translation" may hold both texts."""
    texts = fields.get(TRANSLATION, fields)
    if not isinstance(texts, Mapping):
        raise InputError(f"{where}: {TRANSLATION} is {describe(texts)}, not a text by language.")
    source, target, _ = find_fields(texts, languages, where)
    document = next((fields[name] for name in DOCUMENT_FIELDS if name in fields), "")
    for name in (source, target):
        if not isinstance(texts[name], str):
            raise InputError(f"{where}: {name} is {describe(texts[name])}, not a text.")
    return Row(texts[source], texts[target], str(document))


def collect_rows(collector: Collector, rows: Iterable[Row]) -> None:
    """Rows with the same document belong together, wherever they stand."""
    by_document: dict[str, list[Row]] = {}
    for row in rows:
        by_document.setdefault(row.document, []).append(row)
    for name, members in by_document.items():
        collector.start(name)
        for row in members:
            collector.add(row.source, row.target)


def open_json_lines(place: Path, split: str, languages: tuple[str, str]) -> Documents:
    """Read a .jsonl file, or a split's file of a folder.

    | a line | holds |
    |---|---|
    | ``{"name": "a", "segments": [["Yes", "Ja"], ...]}`` | a document |
    | ``{"en": "Yes", "de": "Ja", "document": "a"}`` | a segment |
    | ``{"translation": {"en": "Yes", "de": "Ja"}, "document": "a"}`` | a segment |

    Segments without a document are one document. An empty line is nothing.
    """
    file = place
    if os.path.isdir(place):
        stems = [found.stem for found in place.glob("*.jsonl")]
        file = place / f"{pick_split(stems, split, f'jsonl:{place}')}.jsonl"
    return read_json_lines(file, languages, f"jsonl:{file}")


def read_json_lines(file: Path, languages: tuple[str, str], name: str) -> Documents:
    """The documents of a file."""
    collector = Collector(name)
    rows: list[Row] = []
    for where, fields in _objects(file):
        if SEGMENTS in fields:
            _add_document(collector, fields, where)
        else:
            rows.append(as_row(fields, languages, where))
    collect_rows(collector, rows)
    return collector.finish(languages)


def _objects(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where each object stands, and the object."""
    for number, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        yield where, parse_json(line, dict[str, Any], where)


def _add_document(collector: Collector, fields: Mapping[str, Any], where: str) -> None:
    segments = fields[SEGMENTS]
    if not isinstance(segments, list):
        raise InputError(f"{where}: {SEGMENTS} is {describe(segments)}, not a list.")
    collector.start(str(fields.get("name", "")), str(fields.get("origin", "")))
    for segment in segments:
        if not _is_pair(segment):
            raise InputError(f"{where}: a segment is {describe(segment)}, not two texts.")
        collector.add(*segment)


def _is_pair(segment: object) -> bool:
    return (
        isinstance(segment, Sequence)
        and len(segment) == 2
        and all(isinstance(text, str) for text in segment)
        and not isinstance(segment, str)
    )


def open_huggingface(folder: Path, split: str, languages: tuple[str, str]) -> Documents:
    """A dataset that ``save_to_disk`` wrote.

    It has a column "translation", or a column for each language, or the columns source and
    target; a column such as "document" says which rows belong together.
    """
    dataset, name = load_split(folder, split)
    if TRANSLATION not in dataset.column_names:
        find_fields(dataset.column_names, languages, name)
    collector = Collector(name)
    rows = (as_row(row, languages, f"{name}, row {n}") for n, row in enumerate(dataset))
    collect_rows(collector, rows)
    return collector.finish(languages)


def holds_text(folder: Path) -> bool:
    """Whether there is a dataset, and no column of it holds images."""
    library = require_datasets()
    try:
        splits, _ = open_splits(tuple(SPLIT_NAMES), lambda split: load_split(folder, split)[0])
    except InputError:
        return False
    return bool(splits) and not any(
        isinstance(kind, library.Image)
        for dataset in splits.values()
        for kind in dataset.features.values()
    )
