"""The kinds of documents that a config or the command line can name, and how each is opened.

A new kind is a row of ``KINDS``; what it opens is ``Documents`` (``documents.py``).
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flashpoint.errors import InputError, hint
from flashpoint.lab.data.places import FIT, PARTS, at_home, folder_and_split
from flashpoint.lab.data.text.config import DocumentConfig
from flashpoint.lab.data.text.documents import Documents
from flashpoint.lab.data.text.parallel import open_parallel
from flashpoint.lab.data.text.prepared import is_prepared, open_prepared
from flashpoint.lab.data.text.recall import open_recall
from flashpoint.lab.data.text.rows import holds_text, open_huggingface, open_json_lines


class Kind(NamedTuple):
    """Documents by the word that stands before the colon.

    Attributes:
        form: as a user writes it.
        open: takes what stands behind the colon, a split, and the languages.
    """

    form: str
    open: Callable[[str, str, tuple[str, str]], Documents]


def _open_prepared(place: str, split: str, languages: tuple[str, str]) -> Documents:
    return open_prepared(*_folder(place, split), languages)


def _open_json_lines(place: str, split: str, languages: tuple[str, str]) -> Documents:
    return open_json_lines(at_home(place), split, languages)


def _open_huggingface(place: str, split: str, languages: tuple[str, str]) -> Documents:
    return open_huggingface(*_folder(place, split), languages)


KINDS = {
    "documents": Kind("documents:DIR", _open_prepared),
    "text": Kind("text:PREFIX", open_parallel),
    "jsonl": Kind("jsonl:FILE", _open_json_lines),
    "hf": Kind("hf:DIR", _open_huggingface),
    "recall": Kind("recall:PAIRS", open_recall),
}
"""A folder without a word is one of prepared documents."""


def open_documents(where: str, split: str, languages: tuple[str, str] = ("en", "de")) -> Documents:
    """Open what a text names.

    | text | what |
    |---|---|
    | ``documents:DIR`` or ``DIR`` | by ``flashpoint data prepare`` |
    | ``text:PREFIX``, ``text:FILE,FILE``, ``text:FILE.tsv``, ``text:DIR`` | line by line |
    | ``jsonl:FILE`` or ``jsonl:DIR`` | a document or a segment a line |
    | ``hf:DIR`` | a Hugging Face dataset, written by ``save_to_disk`` |
    | ``recall:16``, ``recall:2-64`` | generated: so many pairs of keys and values, and a query |

    Behind the folder of a prepared set or a Hugging Face dataset ``:NAME`` may name a split,
    which then counts and not the argument. A prepared set has ``:fit`` and ``:held-out``, parts of
    its training split.

    Args:
        where: as above.
        split: "train", "validation" (which may be stored as val, valid or test), "test", or
            another name; for a place that has no splits it does not matter.
        languages: of source and target.
    """
    word, _, place = where.partition(":")
    kind = KINDS.get(word)
    if kind is None:
        return open_prepared(*_folder(where, split, hint(word, KINDS)), languages)
    if not place:
        raise InputError(f"{where!r} needs a place: {kind.form}.")
    return kind.open(place, split, languages)


def open_both(config: DocumentConfig) -> tuple[Documents, Documents]:
    """The training and the validation documents of a config; they must not be the same."""
    train = open_documents(config.train, "train", config.languages)
    validation = open_documents(config.validation, "validation", config.languages)
    if train.name == validation.name:
        raise InputError(
            f"data.train={config.train!r} and data.validation={config.validation!r} are the same "
            "documents: there are no splits. Give each a place of its own."
        )
    place, _, part = validation.name.rpartition(":")
    if part in PARTS and train.name == f"{place}:train":
        raise InputError(
            f"data.train={config.train!r} holds the documents of data.validation="
            f"{config.validation!r}. Train on {place}:{FIT}."
        )
    return train, validation


def names_documents(where: str) -> bool:
    """Whether a text names documents, not images; an empty one names neither."""
    kind, _, rest = where.partition(":")
    if kind == "hf":
        folders = (at_home(place) for place in (rest, rest.rpartition(":")[0]) if place.strip())
        return any(os.path.isdir(folder) and holds_text(folder) for folder in folders)
    return kind in KINDS or bool(where.strip() and is_prepared(at_home(where)))


def _folder(place: str, split: str, near: str = "") -> tuple[Path, str]:
    """A folder, and the split that may stand behind it; InputError if it is no folder."""
    folder, split = folder_and_split(place, split)
    if not os.path.isdir(folder):
        raise InputError(
            f"{folder} is no folder. {near}Documents are at documents:DIR (made by "
            "`flashpoint data prepare en-de-docs --to DIR`), text:PREFIX, text:FILE,FILE, "
            "jsonl:FILE or hf:DIR."
        )
    return folder, split
