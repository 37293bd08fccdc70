"""A study's records in one file: ``trials.jsonl``, a line for each folder of a trial.

::

    {"trial": NAME, "files": {"record.json": {...}, "metrics.jsonl": [{...}, ...], ...}}

A file's content is an object where the file is JSON in the form that ``write_json`` gives it, a
list of objects where it has one a line, ``{"base64": TEXT}`` where it is not UTF-8, else its text:
every byte comes back. ``stored.py`` reads a file that is not on disk from here, so that all who
read folders read packed studies too.
"""

import base64
import fnmatch
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from flashpoint.errors import InputError, describe
from flashpoint.files import json_text
from flashpoint.lab.runs import names
from flashpoint.lab.runs.stored import (
    MAX_BYTES,
    exists,
    parse_json,
    read_bytes,
    read_text,
    unreadable,
)
from flashpoint.lab.runs.writing import (
    PARTS,
    json_bytes,
    remove_parts,
    replace_file,
    sync_folder,
    writing,
)

Content: TypeAlias = dict[str, Any] | list[dict[str, Any]] | str
Files: TypeAlias = dict[str, bytes]
"""Content of files by their names within a trial's folder."""

FILES = (
    *(names.TRIAL, names.CONFIG, names.DATA, names.START, names.RECORD, names.EVALUATIONS),
    *(names.FAILURE, names.METRICS, names.LOG, f"{names.ATTENTION}/{names.STATISTICS}"),
    *(f"{names.ATTENTION}/{names.STATISTICS_PICTURE}", f"{names.ATTENTION}/{names.ALL_MAPS}"),
)
"""All that a pack can hold, in its order; patterns."""
_PASSING = (names.LOCK, PARTS)
"""What lies in a trial's folder and is nothing to keep."""
_BYTES = "base64"
_LONGEST_NAME = 255
"""Bytes of a folder's name, on any usual file system."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A trial in a pack."""

    trial: str
    files: dict[str, Content]

    def __post_init__(self) -> None:
        if not is_folder_name(self.trial):
            raise InputError(f"trial={describe(self.trial)} is no name of a folder.")
        for name, content in self.files.items():
            if _rank(name) is None:
                raise InputError(f"files has {describe(name)}, which is no file of a trial.")
            if isinstance(content, dict) and content.keys() == {_BYTES}:
                try:
                    _decode(content)
                except (ValueError, TypeError) as error:
                    raise InputError(f"files.{name} has bytes that are no base64.") from error


class Packed(NamedTuple):
    """A file that a pack holds: what is in it, and how messages name it."""

    content: bytes
    place: str


def is_folder_name(name: str) -> bool:
    """Whether a trial may be called so."""
    is_long = len(name.encode(errors="replace")) > _LONGEST_NAME
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and not is_long


def find(file: Path) -> Packed | None:
    """A file of a trial from its study's pack; None if there is no pack, or it lacks the file."""
    for folder in file.parents[1:3]:
        if _may_be_packed(folder):
            held = folder / names.TRIALS
            trial, name = file.relative_to(folder).as_posix().split("/", 1)
            content = _read(held).get(trial, {}).get(name)
            return None if content is None else Packed(_decode(content), f"{held}, {trial}/{name}")
    return None


def matching(folder: Path, pattern: str) -> list[Path]:
    """Files that a pack has in a trial's folder, or in a folder within it, by their last names."""
    for study in folder.parents[:2]:
        if _may_be_packed(study):
            trial = folder.relative_to(study).parts[0]
            packed = _read(study / names.TRIALS).get(trial, {})
            files = [study / trial / name for name in packed]
            return [
                f for f in files if f.parent == folder and fnmatch.fnmatchcase(f.name, pattern)
            ]
    return []


def _may_be_packed(folder: Path) -> bool:
    """Whether a folder is a study's with a pack; others may have a file of that name."""
    return all(os.path.lexists(folder / name) for name in (names.TRIALS, names.STUDY))


def is_packed(study: Path) -> bool:
    """Whether a study's folder has a pack."""
    return exists(study / names.TRIALS)


def packed_in(folder: Path) -> Path | None:
    """The study whose pack holds the trial of this folder; None if there is none."""
    study = folder.parent
    return study if _may_be_packed(study) and folder.name in _read(study / names.TRIALS) else None


def pack(study: Path, trials: Sequence[str]) -> None:
    """Put all files of a study's trials into its pack, then remove their folders.

    Whoever is killed meanwhile leaves the folders, or the pack and what is left of the folders;
    either can be read, and to pack again removes the rest. The caller holds the study.

    Args:
        study: its folder.
        trials: names of its trials, in the order of the pack.
    """
    found = {name: _collect(study / name) for name in trials}
    if is_packed(study):
        _require_same(study, found)
    else:
        content = b"".join(_encode_line(name, files) for name, files in found.items())
        if len(content) > MAX_BYTES:
            raise InputError(
                f"{study} has {len(content)} bytes, more than the {MAX_BYTES} of a pack."
            )
        replace_file(study / names.TRIALS, content)
    with writing(study):
        for name in trials:
            if os.path.lexists(study / name):
                shutil.rmtree(study / name)
        sync_folder(study)


def unpack(study: Path) -> int:
    """Make the folders of a study's trials again, then remove its pack; gives how many.

    What lies in such a folder and is no record, as a report of the trial, stays there.
    """
    file = study / names.TRIALS
    if not is_packed(study):
        raise InputError(f"{study} is not packed: it has no {names.TRIALS}.")
    packed = {
        trial: {n: _decode(c) for n, c in files.items()} for trial, files in _read(file).items()
    }
    _require_same(study, {trial: _collect(study / trial, strict=False) for trial in packed})
    for trial, files in packed.items():
        for name, content in files.items():
            replace_file(study / trial / name, content)
        for folder in (study / trial, study / trial / names.ATTENTION):
            remove_parts(folder)
    with writing(file):
        file.unlink()
        sync_folder(study)
    return len(packed)


def _collect(folder: Path, *, strict: bool = True) -> Files:
    """All records in a trial's folder, in the order of a pack.

    Args:
        folder: of the trial.
        strict: refuse other files, which a pack would lose; else they are passed over.
    """
    found: Files = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        name = path.relative_to(folder).as_posix()
        if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _PASSING):
            continue
        is_folder = name in (".", names.ATTENTION)
        if _rank(name) is None and not is_folder and not strict:
            continue
        if path.is_symlink() or (_rank(name) is None and not is_folder):
            raise InputError(
                f"{path} is no record of a trial, and a pack would lose it. Leave the study as it "
                "is, or remove what nobody needs; a trial goes on from its checkpoints until it "
                "has finished."
            )
        if not is_folder:
            found[name] = read_bytes(path)
    return dict(sorted(found.items(), key=lambda item: (_rank(item[0]), item[0])))


def _rank(name: str) -> int | None:
    """Where a file stands in a pack; None of one that a pack does not hold."""
    ranks = (i for i, pattern in enumerate(FILES) if fnmatch.fnmatchcase(name, pattern))
    return next(ranks, None) if name.count("/") <= 1 else None


def _require_same(study: Path, found: Mapping[str, Files]) -> None:
    """Refuse folders that hold what the pack does not: one of both is not the study's."""
    packed = _read(study / names.TRIALS)
    for trial, files in found.items():
        for name, content in files.items():
            known = packed.get(trial, {}).get(name)
            if known is None or _decode(known) != content:
                raise InputError(
                    f"{study / trial / name} is not what {study / names.TRIALS} has. Move one of "
                    "them elsewhere, then give the same command again."
                )


def _encode_line(trial: str, files: Files) -> bytes:
    line = {"trial": trial, "files": {name: _encode(content) for name, content in files.items()}}
    return json_text(line).encode() + b"\n"


def _encode(content: bytes) -> Content:
    """The most readable form that gives the same bytes back."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {_BYTES: base64.b64encode(content).decode("ascii")}
    return next((form for form in _forms(text) if _comes_back(form, content)), text)


def _forms(text: str) -> Iterator[Content]:
    for parse in (json.loads, lambda text: [json.loads(line) for line in text.splitlines()]):
        try:
            yield parse(text)
        except (ValueError, RecursionError):
            continue


def _comes_back(form: Content, content: bytes) -> bool:
    """Whether a form survives a pack: what is nested too deep, or no Unicode, stays a text."""
    try:
        line = json.dumps({"trial": "a", "files": {names.RECORD: form}})
        return _decode(parse_json(line, _Line, "").files[names.RECORD]) == content
    except (InputError, ValueError, TypeError, RecursionError):
        return False


def _decode(content: Content) -> bytes:
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, list):
        return b"".join(json_text(line).encode() + b"\n" for line in content)
    if content.keys() == {_BYTES}:
        return base64.b64decode(content[_BYTES], validate=True)
    return json_bytes(content)


def _read(file: Path) -> Mapping[str, Mapping[str, Content]]:
    """Files of all trials of a pack, by name."""
    try:
        state = file.stat()
    except OSError as error:
        raise unreadable(file, error) from error
    return _read_once(file, state.st_mtime_ns, state.st_size, state.st_ino)


@lru_cache(maxsize=4)
def _read_once(file: Path, *_: int) -> Mapping[str, Mapping[str, Content]]:
    trials: dict[str, dict[str, Content]] = {}
    try:
        for number, line in enumerate(read_text(file).removesuffix("\n").split("\n"), start=1):
            found = parse_json(line, _Line, where := f"{file}, line {number}")
            if found.trial in trials:
                raise InputError(f"{where}: trial={describe(found.trial)} is there twice.")
            trials[found.trial] = found.files
    except InputError as error:
        raise InputError(f"{error} Restore the file.") from error
    return trials
