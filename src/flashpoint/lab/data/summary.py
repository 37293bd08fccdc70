"""What a person wants to know of a source: counts, sizes, labels, and a sheet to look at."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flashpoint.lab.data.decode import require_pillow
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.image_source import BrokenImageError, Integers, Source
from flashpoint.lab.data.places import open_splits

if TYPE_CHECKING:
    from PIL.Image import Image

NUM_PROBED = 64
CELL = 64
GAP = 4
NAME_WIDTH = 112
PAPER, INK, MISSING = (255, 255, 255), (0, 0, 0), (220, 120, 120)


@dataclass(frozen=True)
class Summary:
    """One split of a source.

    Attributes:
        split: "train", "validation" or another name; "all" if there are no splits.
        source: the split itself.
        sizes: widths and heights of some images, int64 [n, 2].
        num_broken: how many of those that were tried cannot be read.
    """

    split: str
    source: Source
    sizes: Integers
    num_broken: int

    def size_text(self) -> str:
        """The size of the images, or their range."""
        if not len(self.sizes):
            return "unreadable"
        low, high = (side.tolist() for side in (self.sizes.min(axis=0), self.sizes.max(axis=0)))
        if low == high:
            return f"{low[0]} x {low[1]}"
        middle = np.median(self.sizes, axis=0).astype(int).tolist()
        return f"{low[0]} x {low[1]} to {high[0]} x {high[1]}, median {middle[0]} x {middle[1]}"

    def count_text(self) -> str:
        """How many images a class has, or their range."""
        counts = self.source.label_counts
        low, high = int(counts.min()), int(counts.max())
        return f"{low}" if low == high else f"{low} to {high}, median {int(np.median(counts))}"


def summarize(
    where: str, split: str | None = None, labels: str | None = None
) -> tuple[list[Summary], dict[str, str]]:
    """One split of what a text names, or those it has for training and validation.

    The second part is why splits that are there cannot be opened, by their names.
    """
    if split is not None:
        return [_summary(split, open_source(where, split, labels))], {}
    sources, broken = open_splits(
        ("train", "validation"), lambda name: open_source(where, name, labels)
    )
    both = list(sources.values())
    if len(both) == 2 and both[0].name == both[1].name:
        same = np.array_equal(both[0].labels, both[1].labels)
        sources = {"all": both[0]} if same else sources
    return [_summary(name, source) for name, source in sources.items()], broken


def _summary(split: str, source: Source) -> Summary:
    sizes: list[tuple[int, int]] = []
    probed = _spread(source.num_samples, NUM_PROBED)
    for index in probed:
        try:
            sizes.append(source.read(index)[0].size)
        except BrokenImageError:
            continue
    array = np.array(sizes, dtype=np.int64).reshape(-1, 2)
    return Summary(split, source, array, len(probed) - len(sizes))


def _spread(total: int, most: int) -> list[int]:
    """At most so many numbers below a total, evenly spread."""
    return np.unique(np.linspace(0, total - 1, min(total, most)).astype(int)).tolist()


def contact_sheet(source: Source, rows: int = 10, columns: int = 10) -> "Image":
    """A picture of some images of some classes, a class a row, with its name."""
    from PIL import ImageDraw

    with_images = np.flatnonzero(source.label_counts)
    classes = with_images[_spread(len(with_images), rows)]
    width, height = NAME_WIDTH + columns * (CELL + GAP), GAP + len(classes) * (CELL + GAP)
    sheet: Image = require_pillow().new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, label in enumerate(classes.tolist()):
        y = GAP + row * (CELL + GAP)
        draw.text((GAP, y + CELL // 2 - 6), source.class_names[label][:17], fill=INK)
        members = np.flatnonzero(source.labels == label)
        for column, place in enumerate(_spread(len(members), columns)):
            cell = _cell(source, int(members[place]))
            sheet.paste(cell, (NAME_WIDTH + column * (CELL + GAP), y))
    return sheet


def _cell(source: Source, index: int) -> "Image":
    """One image, its longer side a cell's; red if it cannot be read."""
    pillow = require_pillow()
    try:
        image = source.read(index)[0]
    except BrokenImageError:
        return pillow.new("RGB", (CELL, CELL), MISSING)
    scale = CELL / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    filters = pillow.Resampling
    method = filters.NEAREST if scale > 1 else filters.BILINEAR
    return image.convert("RGB").resize((width, height), method)
