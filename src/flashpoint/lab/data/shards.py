"""WebDataset shards: tar files whose samples are read in any order, by random access.

ImageNet-21k's usual form. A pattern names the shards: ``{00000..00127}`` counts with its zeros,
``{a,b}`` lists, ``*`` and ``?`` match, a folder means the .tar files in it. ``classes.txt`` beside
the shards names the classes, one a line in the order of the labels.

The order of an epoch is local: shards are permuted, then samples within each group of 16, so that
reads stay in a few files at a time.
"""

import glob
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashpoint.errors import InputError, describe, hint
from flashpoint.lab.data.decode import decode
from flashpoint.lab.data.image_folder import find_split_folder
from flashpoint.lab.data.image_source import BrokenImageError, Integers, Source
from flashpoint.lab.data.labels import name_labels, number_labels, read_class_list
from flashpoint.lab.data.places import SPLIT_NAMES, at_home, pick_split
from flashpoint.lab.data.shard_index import ShardIndex, index_shards
from flashpoint.lab.data.tar_members import name_before
from flashpoint.lab.runs.stored import MAX_BYTES

if TYPE_CHECKING:
    from PIL.Image import Image

GROUP = 16
MAX_OPEN = 32
MAX_SHARDS = 1_000_000
CLASS_LIST = "classes.txt"

Floats = npt.NDArray[np.float64]

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,100})\.\.(\d{1,100})")


class ShardSource(Source):
    """The samples of many tar files.

    Attributes:
        shards: the files, in the order of their names.
    """

    def __init__(self, name: str, shards: Sequence[Path], labels: Path | None = None) -> None:
        self.shards = tuple(shards)
        self.places = [os.path.realpath(shard) for shard in self.shards]
        indices = index_shards(self.shards)
        self.damage = [
            f"{shard}: {index.damage}"
            for shard, index in zip(self.shards, indices, strict=True)
            if index.damage
        ]
        self.lost_share = _lost_share(indices)
        counts = [len(index.offsets) for index in indices]
        if not sum(counts):
            raise InputError(
                f"{name}: none of {len(self.shards)} shards has an image with a label"
                + (f" ({self.damage[0]})." if self.damage else ".")
            )
        self._starts = np.concatenate(([0], np.cumsum(counts)))
        self._offsets = np.concatenate([index.offsets for index in indices])
        self._sizes = np.concatenate([index.sizes for index in indices])
        self._open: OrderedDict[int, int] = OrderedDict()
        beside = self.shards[0].parent / CLASS_LIST
        file = labels or (beside if os.path.exists(beside) else None)
        super().__init__(name, *_classes(name, indices, file))

    def read(self, index: int) -> tuple["Image", int]:
        """Read and decode one member of a tar file."""
        content = self.read_file(index)
        return decode(content, lambda: self.describe(index)), int(self.labels[index])

    def read_file(self, index: int) -> bytes:
        """Read one member of a tar file."""
        shard, offset, size = self._place(index)
        if size > MAX_BYTES:
            raise BrokenImageError(f"{self.describe(index)}: {size} bytes, over {MAX_BYTES}")
        try:
            return os.pread(self._handle(shard), size, offset)
        except OSError as error:
            raise BrokenImageError(f"{self.shards[shard]}: {error.strerror}") from error

    def describe(self, index: int) -> str:
        """The shard and the member."""
        shard, offset, _ = self._place(index)
        try:
            member = name_before(self._handle(shard), offset)
        except OSError:
            member = f"byte {offset}"
        return f"{self.shards[shard]}: {member}"

    def shuffle(self, rng: np.random.Generator) -> Integers:
        """Permute shards, then samples within groups of shards."""
        shards = rng.permutation(len(self.shards))
        parts: list[Integers] = []
        for first in range(0, len(shards), GROUP):
            group = shards[first : first + GROUP]
            spans = [np.arange(self._starts[s], self._starts[s + 1]) for s in group]
            parts.append(rng.permutation(np.concatenate(spans)))
        return np.concatenate(parts)

    def _place(self, index: int) -> tuple[int, int, int]:
        """Shard, offset and size of a sample."""
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        return shard, int(self._offsets[index]), int(self._sizes[index])

    def _handle(self, shard: int) -> int:
        """An open file; the one used least recently is closed for it."""
        if shard not in self._open:
            self._open[shard] = os.open(self.shards[shard], os.O_RDONLY)
            if len(self._open) > MAX_OPEN:
                os.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(shard)
        return self._open[shard]

    def __getstate__(self) -> dict[str, Any]:
        """Open files stay in their process."""
        return self.__dict__ | {"_open": OrderedDict()}

    def __del__(self) -> None:
        for handle in self.__dict__.get("_open", {}).values():
            os.close(handle)


def open_shards(pattern: str, split: str, labels: Path | None = None) -> ShardSource:
    """The shards that a pattern names; of a folder with several splits, those of one."""
    path, name = at_home(pattern), f"shards:{pattern}"
    if os.path.isdir(path):
        shards, chosen = _shards_in(path, split)
        name += f":{chosen}" if chosen else ""
    else:
        shards = [Path(name) for text in expand_braces(str(path)) for name in _matches(text)]
    if not any(os.path.exists(shard) for shard in shards):
        raise InputError(
            f"{name} names no file that exists"
            + (f", the first would be {shards[0]}." if shards else ".")
            + " Quote the pattern, so that the shell leaves its braces alone."
        )
    return ShardSource(name, shards, labels)


def expand_braces(pattern: str) -> list[str]:
    """All texts that a pattern with braces stands for.

    Example:
        >>> expand_braces("{a,b}-{08..10}.tar")
        ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    texts = [pattern]
    while _BRACES.search(texts[0]):  # each text has as many
        parts = (_BRACES.split(text, maxsplit=1) for text in texts)
        several = (head + x + tail for head, inner, tail in parts for x in _choices(inner))
        texts = list(dict.fromkeys(islice(several, MAX_SHARDS + 1)))  # nested ones name some twice
        if len(texts) > MAX_SHARDS:
            raise InputError(
                f"shards:{pattern} names more than {MAX_SHARDS} shards. Name fewer, or a folder."
            )
    return texts


def _choices(inner: str) -> Iterator[str]:
    """What braces stand for, one by one: a range may be endless for any memory."""
    bounds = _RANGE.fullmatch(inner)
    if bounds is None:
        yield from inner.split(",")
        return
    first, last = bounds[1], bounds[2]
    step = 1 if int(first) <= int(last) else -1
    for number in range(int(first), int(last) + step, step):
        yield str(number).zfill(len(first))


def _matches(text: str) -> list[str]:
    """The files of a pattern with stars; a plain name is itself, also if it does not exist."""
    return sorted(glob.glob(text)) if glob.has_magic(text) else [text]


def _shards_in(folder: Path, split: str) -> tuple[list[Path], str]:
    """The tar files of a split, and the word for it there, or nothing.

    Folders of splits, or names with split words in them, are told apart. A split has the shards
    that bear its word. If none does, it has those without any.
    """
    shards = sorted(folder.glob("*.tar"))
    if not shards:
        inner = find_split_folder(folder, split)
        if inner == folder:
            raise InputError(f"shards:{folder} holds no .tar files.")
        return _shards_in(inner, split)[0], inner.name
    words = {shard: _split_word(shard.name) for shard in shards}
    known = {word for word in words.values() if word}
    has_own = known.intersection((split, *SPLIT_NAMES.get(split, ())))
    if not has_own and (not known or (split in SPLIT_NAMES and "" in words.values())):
        chosen = ""
    else:
        chosen = pick_split(known, split, f"shards:{folder}")
    return [shard for shard in shards if words[shard] == chosen], chosen


def _split_word(name: str) -> str:
    """The word in a file's name that names a split, or nothing."""
    parts = re.split(r"[-_.]", name.lower())
    return next((p for known in SPLIT_NAMES.values() for p in known if p in parts), "")


def _lost_share(indices: Sequence[ShardIndex]) -> float:
    """The samples that are unlabeled or behind a damage, as a share of all."""
    kept = np.array([len(index.offsets) for index in indices], dtype=np.float64)
    found = kept + [index.num_unlabelled for index in indices]
    whole = _whole_counts(found, np.array([index.readable for index in indices]))
    return float((whole - kept).sum() / max(whole.sum(), 1.0))


def _whole_counts(found: Floats, readable: Floats) -> Floats:
    """How many samples each shard had before it was damaged: an estimate.

    A shard that is damaged inside tells by the part of the file that is readable. Of a cut one
    nothing tells: it had as many as its siblings, of those that have no fewer than are left in
    it. If there are none, it had twice what is left, which is too much as often as too little
    where a file is cut at random.
    """
    is_known = (readable == 1.0) | ((readable > 0.0) & (found > 0.0))
    whole = found / np.where(is_known, readable, 1.0)
    siblings = whole[readable == 1.0] if (readable == 1.0).any() else whole[is_known]
    for place in np.flatnonzero(~is_known):
        larger = siblings[siblings >= max(found[place], 1.0)]
        whole[place] = larger.mean() if len(larger) else 2.0 * max(found[place], found.mean())
    return whole


def _classes(
    name: str, indices: Sequence[ShardIndex], file: Path | None
) -> tuple[list[str], Integers]:
    """Class names, and the label of every sample as a number."""
    values = {value for index in indices for value in index.values}
    names: dict[str, str] = {}
    for index in indices:
        names.update(index.names)
    numbers = number_labels(values, name)
    if file is not None:
        class_names = read_class_list(file)
    elif numbers is not None:
        highest = max(numbers.values())
        class_names = [names.get(str(number), str(number)) for number in range(highest + 1)]
    else:
        class_names = name_labels(values, name)
    known = {class_name: number for number, class_name in enumerate(class_names)}
    if numbers is None:
        numbers = {value: known.get(value, -1) for value in values}
    if missing := [value for value, number in numbers.items() if number < 0]:
        raise InputError(
            f"{name}: the label {describe(missing[0])} is not among the {len(known)} classes of "
            f"{file}. {hint(missing[0], known)}Labels are numbers, or names in that list."
        )
    parts = [
        np.array([numbers[value] for value in index.values], dtype=np.int64)[index.codes]
        for index in indices
        if len(index.codes)
    ]
    return class_names, np.concatenate(parts)
