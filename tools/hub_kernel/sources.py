"""The modules that the operator needs, with imports that work under any package's name."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "flashpoint"
_IMPORT = re.compile(rf"^(\s*)from {PACKAGE}\.([\w.]+) import ", re.MULTILINE)


def find_modules(root: Path, entries: Iterable[str]) -> dict[str, Path]:
    """Files by module: the entries', and all that they import of the package, anywhere in them.

    Args:
        root: folder of the package.
        entries: modules as "ops.api", without the package's name.
    """
    found: dict[str, Path] = {}
    waiting = [*entries]
    while waiting:
        module = waiting.pop()
        if module in found or (file := _file_of(root, module)) is None:
            continue
        found[module] = file
        waiting += _parents(module)
        waiting += _imported(file)
    return found


def make_relative(module: str, text: str, *, is_package: bool) -> str:
    """A module's text without the package's name in its imports.

    Example:
        >>> make_relative("ops.api", "from flashpoint.errors import describe", is_package=False)
        'from ..errors import describe'
    """
    depth = module.count(".") + is_package
    relative = _IMPORT.sub(rf"\1from .{'.' * depth}\2 import ", text)
    if left := [*_absolute(relative)]:
        raise ValueError(f"{module} imports {', '.join(left)} in a way that is not rewritten.")
    return relative


def _absolute(text: str) -> Iterator[str]:
    """What a text imports of the package by its name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == PACKAGE)


def _imported(file: Path) -> Iterator[str]:
    """Modules, and names that may be modules; without the package's name."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            home = (node.module or "").removeprefix(f"{PACKAGE}.")
            yield home
            yield from (f"{home}.{alias.name}" for alias in node.names)


def _parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _file_of(root: Path, module: str) -> Path | None:
    place = root.joinpath(*module.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if file.is_file()), None)
