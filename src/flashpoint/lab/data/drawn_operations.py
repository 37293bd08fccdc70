"""Which operations of randaug an image gets, drawn without the image.

The random numbers are those that ``randaug`` takes, in its order, so that an image gets the same
operations wherever it is changed.
"""

import numpy as np

from flashpoint.lab.data.image_source import Integers
from flashpoint.lab.data.randaug import GEOMETRIC, OPERATIONS, POINTWISE

NO_OPERATIONS: Integers = np.zeros((0, 4), dtype=np.int64)

_NAMES = tuple(OPERATIONS)
_KINDS = {  # numbers of gpu/change.py, which needs Triton where workers do not
    **dict.fromkeys(POINTWISE, 0),
    "autocontrast": 1,
    "equalize": 2,
    **dict.fromkeys(GEOMETRIC, 3),
    "cutout": 4,
    "color": 5,
    "sharpness": 6,
}
_ROWS = {  # of tables; those of moves have a second one each, for the other direction
    **{name: row for row, name in enumerate(POINTWISE)},
    **{name: 2 * row for row, name in enumerate(GEOMETRIC)},
}


def draw_operations(rng: np.random.Generator, num_ops: int, size: int) -> Integers:
    """Kind, row of its table, x and y of operations in a row, [num_ops, 4].

    Example:
        >>> draw_operations(np.random.default_rng(0), 2, 224).shape
        (2, 4)
    """
    if not num_ops:
        return NO_OPERATIONS
    drawn = np.zeros((num_ops, 4), dtype=np.int64)
    for place, choice in enumerate(rng.integers(len(_NAMES), size=num_ops).tolist()):
        name, x, y = _NAMES[choice], 0, 0
        row = _ROWS.get(name, 0)
        if name in GEOMETRIC:
            row += int(rng.random() >= 0.5)
        elif name == "cutout":
            x, y = int(rng.integers(size)), int(rng.integers(size))
        drawn[place] = _KINDS[name], row, x, y
    return drawn
