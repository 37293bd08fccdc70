"""Folders that ``flashpoint data prepare`` wrote: one .jsonl file a split, and a summary."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from flashpoint.errors import InputError, show_names
from flashpoint.files import write_atomically
from flashpoint.lab.data.places import pick_part
from flashpoint.lab.data.text.documents import Document, Documents
from flashpoint.lab.data.text.held_out import part_of
from flashpoint.lab.data.text.rows import read_json_lines
from flashpoint.lab.runs.stored import read_json

SUMMARY = "summary.json"


class _Summary(TypedDict):
    """What is read of the summary."""

    languages: tuple[str, str]


def is_prepared(folder: Path) -> bool:
    """Whether documents were prepared there."""
    return os.path.isfile(folder / SUMMARY)


def open_prepared(folder: Path, split: str, languages: tuple[str, str]) -> Documents:
    """One split, in the wanted direction; "fit" and "held-out" are parts of "train"."""
    name = f"documents:{folder}"
    found = _languages(folder, name)
    if set(found) != set(languages):
        held = "-".join(show_names([language]) for language in found)
        raise InputError(f"{name} holds {held}, not {'-'.join(languages)}.")
    chosen, part = pick_part([file.stem for file in folder.glob("*.jsonl")], split, name)
    documents = read_json_lines(folder / f"{chosen}.jsonl", found, f"{name}:{part or chosen}")
    if part:
        documents = part_of(documents, part)
    return documents if found == languages else reverse(documents)


def _languages(folder: Path, name: str) -> tuple[str, str]:
    """Source and target as the summary says."""
    if not is_prepared(folder):
        raise InputError(
            f"{name} has no {SUMMARY}: nothing was prepared there, or not to the end. Run "
            f"`flashpoint data prepare en-de-docs --to {folder}`."
        )
    return read_json(folder / SUMMARY, _Summary, "Prepare it again.")["languages"]


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
