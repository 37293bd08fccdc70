"""Rows with named fields, as JSON lines and Hugging Face datasets give them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from flashpoint.errors import InputError, describe, show_names
from flashpoint.lab.data.text.collecting import Collector

DOCUMENT_FIELDS = ("document", "doc", "doc_id", "docid", "document_id", "talk_id", "name")
TRANSLATION = "translation"


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
