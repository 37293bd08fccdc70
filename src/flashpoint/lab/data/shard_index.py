"""Where the samples of a WebDataset shard lie: scanned once, then kept in the cache folder.

Members that share a path up to the first dot of their file name are a sample. Its image is the
first with a known suffix; its label comes from ``.cls``, the field "label" of ``.json``, or
``.txt``, in this order. A WordNet id in the ``.json`` or in the sample's key names the class.

An index is valid for one path, size and time of change of the shard.
"""

import hashlib
import json
import os
import stat
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from flashpoint.errors import InputError
from flashpoint.files import cache_folder, write_atomically
from flashpoint.lab.data.image_folder import IMAGE_SUFFIXES
from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.data.labels import WORDNET_ID
from flashpoint.lab.data.tar_members import DamagedTarError, Member, content, members
from flashpoint.lab.runs.stored import parse_json

FORMAT = 4  # another one is not read
THREADS = 8  # disks answer several at once
MAX_LABEL_BYTES = 1 << 20
ARRAYS = ("offsets", "sizes", "codes")
"""Fields of an index that are stored as they are; the others are JSON."""


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one shard.

    Attributes:
        offsets, sizes: of the images, in bytes.
        codes: each sample's label, as a place in ``values``.
        values: the labels as they are written: numbers or names.
        names: the class's name by label, where the shard tells.
        damage: what is wrong with the shard, or nothing.
        num_unlabelled: images that were left out because they have no label.
        readable: the share of the file that lies before the damage: 1.0 of a whole shard, 0.0 of
            one whose length nothing tells, as it was cut or cannot be opened.
    """

    offsets: Integers
    sizes: Integers
    codes: Integers
    values: Sequence[str]
    names: dict[str, str]
    damage: str = ""
    num_unlabelled: int = 0  # spelled as stored indices have it
    readable: float = 1.0


@dataclass
class _Samples:
    """Samples found so far."""

    rows: list[tuple[int, int, int]] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    unlabeled: list[str] = field(default_factory=list)

    def add(self, image: Member, label: str, name: str | None) -> None:
        code = self.values.setdefault(label, len(self.values))
        self.rows.append((image.offset, image.size, code))
        if name is not None:
            self.names.setdefault(label, name)

    def index(self, damage: str, readable: float) -> ShardIndex:
        offsets, sizes, codes = np.array(self.rows, dtype=np.int64).reshape(-1, 3).T.copy()
        values, unlabeled = tuple(self.values), len(self.unlabeled)
        return ShardIndex(offsets, sizes, codes, values, self.names, damage, unlabeled, readable)


def index_shards(shards: Sequence[Path]) -> list[ShardIndex]:
    """The index of every shard, from the cache or from a scan; unreadable ones are empty."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(index_shard, shards))


def index_shard(shard: Path) -> ShardIndex:
    """The index of one shard; a scan is stored for the next time."""
    try:
        facts = os.stat(shard)
    except OSError as error:
        return _Samples().index(f"{error.strerror}", 0.0)
    if not stat.S_ISREG(facts.st_mode):  # to open a FIFO would wait for a writer
        return _Samples().index("no plain file", 0.0)
    file = _cache_file(shard)
    key = json.dumps([FORMAT, os.path.abspath(shard), facts.st_size, facts.st_mtime_ns])
    stored = _load(file, key)
    if stored is not None:
        return stored
    try:
        index = scan(shard)
    except OSError as error:
        return _Samples().index(f"{error.strerror}", 0.0)
    _keep(file, key, index)
    return index


def scan(shard: Path) -> ShardIndex:
    """Read the headers and labels of a shard; a damaged one gives what precedes the damage."""
    samples, damage, readable = _Samples(), [], 1.0
    with shard.open("rb") as opened:
        handle = opened.fileno()
        length = os.fstat(handle).st_size
        found = _until_damage(members(handle, length))
        for key, group in groupby(found, key=_key):
            if isinstance(key, DamagedTarError):
                damage.append(str(key))
                readable = 0.0 if key.is_cut else key.position / length
            else:
                _add_sample(samples, handle, key, [m for m in group if isinstance(m, Member)])
    if unlabeled := samples.unlabeled:
        damage.append(f"{len(unlabeled)} images without a label, as {unlabeled[0]}")
    return samples.index("; ".join(damage), readable)


def _until_damage(found: Iterator[Member]) -> Iterator[Member | DamagedTarError]:
    """Members, and at the end what stopped the scan, if something did."""
    try:
        yield from found
    except DamagedTarError as error:
        yield error


def _key(member: Member | DamagedTarError) -> str | DamagedTarError:
    """What members of a sample share."""
    if isinstance(member, DamagedTarError):
        return member
    folder, _, file = member.name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"


def _add_sample(samples: _Samples, handle: int, key: str, parts: Sequence[Member]) -> None:
    """Keep a sample that has an image and a label."""
    fields = {part.name.rpartition("/")[2].partition(".")[2].lower(): part for part in parts}
    image = next((part for kind, part in fields.items() if f".{kind}" in IMAGE_SUFFIXES), None)
    if image is None:
        return
    texts = {
        kind: content(handle, part).decode("utf-8", "replace").strip()
        for kind, part in fields.items()
        if kind in ("cls", "json", "txt") and part.size <= MAX_LABEL_BYTES
    }
    texts = {kind: text for kind, text in texts.items() if "\0" not in text}  # never written
    facts = _facts(texts.get("json", ""))
    candidates = (texts.get("cls"), facts.get("label"), texts.get("txt"))
    label = next((str(value) for value in candidates if _is_label(value)), None)
    if label is None:
        samples.unlabeled.append(image.name)
        return
    match = WORDNET_ID.search(texts.get("json", "")) or WORDNET_ID.search(key)
    class_name = facts.get("class_name")
    told = class_name if isinstance(class_name, str) else None
    samples.add(image, label, match[0] if match else told)


def _is_label(value: object) -> bool:
    """Whether it is a number or a name; a list, a float or true is neither."""
    return isinstance(value, int | str) and not isinstance(value, bool) and value != ""


def _facts(text: str) -> dict[str, Any]:
    """The fields of a .json member, if it has some."""
    try:
        return parse_json(text, dict[str, Any], "") if text else {}
    except InputError:
        return {}


def _cache_file(shard: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(os.path.abspath(shard))).hexdigest()
    return cache_folder() / "shards" / f"{digest[:32]}.npz"


def _load(file: Path, key: str) -> ShardIndex | None:
    """A stored index, if there is one for the shard as it is now."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                return None
            texts = json.loads(str(stored["texts"]))
            return ShardIndex(**{name: stored[name] for name in ARRAYS}, **texts)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None


def _keep(file: Path, key: str, index: ShardIndex) -> None:
    """Store an index; a cache that cannot be written costs time, no more."""
    arrays = {name: getattr(index, name) for name in ARRAYS}
    texts = {name: value for name, value in vars(index).items() if name not in ARRAYS}
    arrays |= {"key": np.array(key), "texts": np.array(json.dumps(texts))}
    try:
        write_atomically(file, lambda handle: np.savez(handle, **arrays))
    except OSError as error:
        warnings.warn(
            f"flashpoint: the index of shards cannot be stored in {file.parent}: "
            f"{error.strerror}; shards are scanned at every start.",
            stacklevel=2,
        )
