"""Passages for language models: texts of one language, from folders of the user's or made up.

A folder with ``train`` and other splits, as files (``train.jsonl``, ``train.txt``) or as folders
of files, is read by these names. Any other folder is split by file: of twenty files, one is for
validation and one for tests, chosen by their names alone.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashpoint.errors import InputError, describe, hint, show_names
from flashpoint.lab.data.places import (
    SPLIT_NAMES,
    MissingSplitError,
    folder_and_split,
    list_folder,
    pick_split,
)
from flashpoint.lab.data.text.documents import read_lines
from flashpoint.lab.runs.names import PIECES
from flashpoint.lab.runs.stored import parse_json

KINDS = {"passages": "passages:DIR", "words": "words:COUNT"}
"""Words before the colon, and how users write them; a folder without a word is one of passages."""
SUFFIXES = (".jsonl", ".txt")
LONGEST_LINE = 4096
"""Letters of what subword pieces are found in: SentencePiece leaves out lines of 64 KiB."""
FOLD = 20
"""Of so many files without splits, one is for validation and one for tests."""
MAX_MADE_UP = 100_000

_ALL_SPLITS = frozenset(name for names in SPLIT_NAMES.values() for name in names)
_TOPICS = ("river", "engine", "market", "garden", "signal", "window", "letter", "bridge")
_VERBS = ("holds", "moves", "reads", "follows", "opens", "keeps", "finds", "writes")
_PLAIN = ("the", "a", "old", "new", "small", "long", "first", "last", "other", "same")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text, and what it is called in its source."""

    name: str
    text: str


@dataclass(frozen=True)
class Passages:
    """The passages of one split of a source.

    Attributes:
        name: what messages call the source, with its split at the end.
        passages: in the order of the source; none is empty.
        pieces_file: subword pieces that come with the source; None where there are none.

    Example:
        >>> Passages("two", [Passage("a", "One line\\nand another")]).num_texts
        2
    """

    name: str
    passages: Sequence[Passage]
    pieces_file: Path | None = None

    def __post_init__(self) -> None:
        if not self.passages:
            raise InputError(f"{self.name} holds no passages with text in them.")

    @property
    def num_texts(self) -> int:
        """Lines of all passages, long ones in parts."""
        return sum(1 for _ in self.texts())

    def texts(self) -> Iterator[str]:
        """All lines: what subword pieces are found in. Long ones are cut, at spaces if any."""
        for passage in self.passages:
            for line in passage.text.split("\n"):
                while len(line) > LONGEST_LINE:
                    end = line.rfind(" ", 1, LONGEST_LINE)
                    end = end if end > 0 else LONGEST_LINE
                    yield line[:end]
                    line = line[end:]
                yield line


def open_passages(where: str, split: str) -> Passages:
    """Open what a text names.

    | text | what |
    |---|---|
    | ``passages:DIR`` or ``DIR`` | .txt files, a passage each; .jsonl files, a passage a line, \
as ``{"text": ...}`` |
    | ``words:200`` | made up: so many passages to train on, of few words |

    Behind a folder ``:NAME`` may name a split, which then counts and not the argument.

    Args:
        where: as above.
        split: "train", "validation" or "test".
    """
    word, _, place = where.partition(":")
    if word == "words":
        return _make_up(place, split)
    if word == "passages":
        if not place:
            raise InputError(f"{where!r} needs a place: {KINDS[word]}.")
        where = place
    folder, split = folder_and_split(where, split)
    if not os.path.isdir(folder):
        raise InputError(
            f"{folder} is no folder of passages. {hint(word, KINDS)}Give a folder of .txt or "
            ".jsonl files, or make one: flashpoint data prepare linux-doc."
        )
    chosen, files = _files(folder, split)
    passages = [passage for file in files for passage in _read(file, folder)]
    pieces = folder / PIECES
    found = [passage for passage in passages if passage.text.strip()]
    return Passages(
        f"passages:{folder}:{chosen}", found, pieces if os.path.isfile(pieces) else None
    )


def split_off(where: str) -> str:
    """The same place without a split behind it.

    Example:
        >>> split_off("passages:texts:validation"), split_off("words:200")
        ('passages:texts', 'words:200')
    """
    word, colon, place = where.partition(":")
    if word == "words":
        return where
    named = word == "passages" and bool(colon)
    folder = folder_and_split(place if named else where, "")[0]
    return f"passages:{folder}"


def names_passages(where: str) -> bool:
    """Whether a text names passages by its first word."""
    return where.partition(":")[0] in KINDS


def _files(folder: Path, split: str) -> tuple[str, list[Path]]:
    """A split's name in a folder, and its files."""
    entries = list_folder(folder)
    stems: dict[str, str] = {}
    for name in (name for name in entries.files if name.endswith(SUFFIXES)):
        other = stems.setdefault(Path(name).stem, name)
        if other != name and Path(name).stem in _ALL_SPLITS:
            raise InputError(f"{folder} has {other} and {name}. Keep one file of a split.")
    named = {**stems, **{name: name for name in entries.folders}}
    if not any(name in named for name in SPLIT_NAMES["train"]):
        return split, _fold(folder, split)
    chosen = pick_split(list(named), split, f"passages:{folder}")
    path = folder / named[chosen]
    return chosen, _below(path) if path.is_dir() else [path]


def _fold(folder: Path, split: str) -> list[Path]:
    """The files of a split where a folder has none of its own: by the files' names alone."""
    if split not in ("train", "validation", "test"):
        raise MissingSplitError(
            f"passages:{folder} has no split {split!r}. It has: train, validation, test."
        )
    files = sorted(_below(folder), key=lambda file: _draw(str(file.relative_to(folder))))
    if len(files) < 3:
        raise InputError(
            f"{folder} has {len(files)} files of {' or '.join(SUFFIXES)}, too few to split. Give "
            "at least 3, or name them train.txt and validation.txt."
        )
    kinds = {0: "validation", 1: "test"}
    chosen = [file for n, file in enumerate(files) if kinds.get(n % FOLD, "train") == split]
    return sorted(chosen)


def _below(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if file.name.endswith(SUFFIXES))
    if not files:
        raise InputError(
            f"{folder} holds no {' or '.join(SUFFIXES)} files. It has: "
            f"{show_names(file.name for file in folder.iterdir())}."
        )
    return files


def _draw(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _read(file: Path, folder: Path) -> Iterator[Passage]:
    name = str(file.relative_to(folder))
    if file.suffix == ".txt":
        yield Passage(name, "\n".join(read_lines(file)).strip("\n"))
        return
    for number, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        fields = parse_json(line, dict[str, Any], where)
        text = fields.get("text")
        if not isinstance(text, str):
            raise InputError(
                f"{where}: text is {describe(text)}, not a text. It has the fields "
                f"{show_names(fields)}."
            )
        yield Passage(str(fields.get("name", f"{name}:{number}")), text.strip("\n"))


def _make_up(count: str, split: str) -> Passages:
    """Sentences about one topic a passage, the same ones every time."""
    if not count.isascii() or not count.isdecimal() or not 1 <= int(count[:9]) <= MAX_MADE_UP:
        raise InputError(
            f"'words:{count}' must name how many passages to make up, from 1 to {MAX_MADE_UP:,}."
        )
    total = int(count) if split == "train" else max(2, int(count) // 10)
    rng = np.random.default_rng(int.from_bytes(_draw(f"words:{count}:{split}")[:8], "big"))
    return Passages(
        f"words:{count}:{split}", [Passage(str(n), _sentences(rng)) for n in range(total)]
    )


def _sentences(rng: np.random.Generator) -> str:
    topic = rng.choice(_TOPICS)
    lines: list[str] = []
    for _ in range(int(rng.integers(4, 12))):
        first, second = rng.choice(_PLAIN, 2)
        lines.append(f"{first} {topic} {rng.choice(_VERBS)} {second} {rng.choice(_TOPICS)}.")
    return "\n".join(lines)
