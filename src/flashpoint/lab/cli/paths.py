"""Files and folders as words of the command line."""

from pathlib import Path

import typer


def path_of(word: str | Path) -> Path:
    """What a word names; an empty one, which would be the current folder, is refused.

    A default comes as the path it is.

    Example:
        >>> path_of("runs/demo").name
        'demo'
    """
    if isinstance(word, str) and not word.strip():
        raise typer.BadParameter("it is empty and names no file or folder")
    return Path(word)
