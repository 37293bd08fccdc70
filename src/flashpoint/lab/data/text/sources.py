"""From a text in a config or on the command line to documents."""

import os
from pathlib import Path

from flashpoint.errors import InputError, hint
from flashpoint.lab.data.folder_walk import at_home
from flashpoint.lab.data.text.config import DocumentConfig
from flashpoint.lab.data.text.documents import Documents
from flashpoint.lab.data.text.huggingface import holds_text, open_huggingface
from flashpoint.lab.data.text.json_lines import open_json_lines
from flashpoint.lab.data.text.parallel import open_parallel
from flashpoint.lab.data.text.prepared import is_prepared, open_prepared
from flashpoint.lab.data.text.recall import open_recall

KINDS = ("documents", "text", "jsonl", "hf", "recall")


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
    which then counts and not the argument.

    Args:
        where: as above.
        split: "train", "validation" (which may be stored as val, valid or test), "test", or
            another name; for a place that has no splits it does not matter.
        languages: of source and target.
    """
    kind, _, rest = where.partition(":")
    if kind not in KINDS:
        return open_prepared(*_folder_and_split(where, split, where), languages)
    if not rest:
        raise InputError(f"{where!r} needs a place: {kind}:DIR.")
    if kind == "documents":
        return open_prepared(*_folder_and_split(rest, split, where), languages)
    if kind == "text":
        return open_parallel(rest, split, languages)
    if kind == "jsonl":
        return open_json_lines(at_home(rest), split, languages)
    if kind == "recall":
        return open_recall(rest, split, languages)
    return open_huggingface(*_folder_and_split(rest, split, where), languages)


def open_both(config: DocumentConfig) -> tuple[Documents, Documents]:
    """The training and the validation documents of a config; they must not be the same."""
    train = open_documents(config.train, "train", config.languages)
    validation = open_documents(config.validation, "validation", config.languages)
    if train.name == validation.name:
        raise InputError(
            f"data.train={config.train!r} and data.validation={config.validation!r} are the same "
            "documents: there are no splits. Give each a place of its own."
        )
    return train, validation


def names_documents(where: str) -> bool:
    """Whether a text names documents, not images; an empty one names neither."""
    kind, _, rest = where.partition(":")
    if kind == "hf":
        folders = (at_home(place) for place in (rest, rest.rpartition(":")[0]) if place.strip())
        return any(os.path.isdir(folder) and holds_text(folder) for folder in folders)
    return kind in KINDS or bool(where.strip() and is_prepared(at_home(where)))


def _folder_and_split(place: str, split: str, where: str) -> tuple[Path, str]:
    """A folder, and the split that may stand behind it."""
    before, colon, after = place.rpartition(":")
    if colon and not os.path.exists(at_home(place)):
        place, split = before, after
    folder = at_home(place)
    if not os.path.isdir(folder):
        kind = where.partition(":")[0]
        near = "" if kind in KINDS else hint(kind, KINDS)
        raise InputError(
            f"{where!r}: {folder} is no folder. {near}Documents are at documents:DIR (made by "
            "`flashpoint data prepare en-de-docs --to DIR`), text:PREFIX, text:FILE,FILE, "
            "jsonl:FILE or hf:DIR."
        )
    return folder, split
