"""Files that name the classes, one a line, in the order of the labels.

A line is the class's name; if it begins with a WordNet id, as "n01440764 tench", the id is the
name. Ids are what ImageNet-21k and ImageNet-1k are matched by.
"""

import re
from pathlib import Path

from flashpoint.errors import InputError

WORDNET_ID = re.compile(r"(?<![A-Za-z0-9])n\d{8}(?!\d)")


def read_class_list(file: Path) -> list[str]:
    """The names in a file."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the class list {file} cannot be read: {error}.") from error
    names = [_name(line) for line in lines if line]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the class list {file} has {twice!r} more than once.")
    return names


def _name(line: str) -> str:
    match = WORDNET_ID.match(line)
    return match[0] if match else line
