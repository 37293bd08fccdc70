"""Which files a text names: two of plain text, with documents in a third, or one with tabs."""

import os
from pathlib import Path
from typing import NamedTuple

from flashpoint.errors import InputError
from flashpoint.lab.data.folder_walk import at_home, list_folder
from flashpoint.lab.data.source import pick_split

MARKUP_SUFFIXES = (".xml", ".sgm", ".sgml")
DOCUMENT_SUFFIXES = (".docs", ".doc")


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
