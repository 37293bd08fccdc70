"""JSON lines: a document a line, or a segment a line."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashpoint.errors import InputError, describe
from flashpoint.lab.data.source import pick_split
from flashpoint.lab.data.text.collecting import Collector
from flashpoint.lab.data.text.documents import Documents
from flashpoint.lab.data.text.lines import read_lines
from flashpoint.lab.data.text.rows import Row, as_row, collect_rows
from flashpoint.lab.runs.stored import parse_json

SEGMENTS = "segments"


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
