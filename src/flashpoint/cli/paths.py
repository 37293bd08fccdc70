"""Files and folders as words of the command line."""

from pathlib import Path

import typer


def path_of(word: str) -> Path:
    """What a word names; an empty one, which would be the current folder, is refused.

    Example:
        >>> path_of("runs/demo").name
        'demo'
    """
    if not word.strip():
        raise typer.BadParameter("it is empty and names no file or folder")
    return Path(word)
