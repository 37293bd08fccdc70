"""Folders that ``flashpoint data prepare`` wrote: one .jsonl file a split, and a summary."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flashpoint.data.source import pick_split
from flashpoint.data.text.documents import Document, Documents
from flashpoint.data.text.json_lines import read_json_lines
from flashpoint.errors import InputError
from flashpoint.files import write_atomically

SUMMARY = "summary.json"


def is_prepared(folder: Path) -> bool:
    """Whether documents were prepared there."""
    return (folder / SUMMARY).is_file()


def open_prepared(folder: Path, split: str, languages: tuple[str, str]) -> Documents:
    """One split, in the wanted direction."""
    name = f"documents:{folder}"
    found = _languages(folder, name)
    if set(found) != set(languages):
        raise InputError(f"{name} holds {'-'.join(found)}, not {'-'.join(languages)}.")
    chosen = pick_split([file.stem for file in folder.glob("*.jsonl")], split, name)
    documents = read_json_lines(folder / f"{chosen}.jsonl", found, f"{name}:{chosen}")
    return documents if found == languages else reverse(documents)


def _languages(folder: Path, name: str) -> tuple[str, str]:
    """Source and target as the summary says."""
    if not is_prepared(folder):
        raise InputError(
            f"{name} has no {SUMMARY}: nothing was prepared there, or not to the end. Run "
            f"`flashpoint data prepare en-de-docs --to {folder}`."
        )
    try:
        summary: Any = json.loads((folder / SUMMARY).read_bytes())
        source, target = summary["languages"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / SUMMARY} is damaged: {error!r}. Prepare it again.") from error
    return source, target


def reverse(documents: Documents) -> Documents:
    """The same documents, translated the other way."""
    turned = [
        Document(d.name, d.origin, tuple((target, source) for source, target in d.segments))
        for d in documents
    ]
    source, target = documents.languages
    return Documents(documents.name, turned, (target, source), documents.num_left_out)


def write_documents(file: Path, documents: Iterable[Document]) -> None:
    """A document a line."""
    lines = (
        json.dumps(
            {"name": d.name, "origin": d.origin, "segments": d.segments}, ensure_ascii=False
        )
        for d in documents
    )
    write_atomically(file, lambda handle: handle.writelines(f"{x}\n".encode() for x in lines))
