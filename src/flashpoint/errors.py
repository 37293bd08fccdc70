"""What users see when something they passed cannot be served.

Every message says what was given, the rule with the actual numbers, and what to do. The command
line prints these errors as one line; any other exception is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable
from importlib import import_module
from typing import Any


class FlashpointError(Exception):
    """Base of every error that Flashpoint raises on purpose; catch it to catch them all."""


class InputError(FlashpointError, ValueError):
    """An argument breaks a rule of the call: shape, dtype, device, range or an unknown name.

    Example:
        >>> raise InputError("alpha=nan must be a finite number.")
        Traceback (most recent call last):
        flashpoint.errors.InputError: alpha=nan must be a finite number.
    """


class UnsupportedError(FlashpointError, NotImplementedError):
    """The request is valid, but not served here: by this implementation, device or install."""


class LostRankError(FlashpointError, RuntimeError):
    """Another process of a distributed call died, hangs or makes another call."""


def hint(name: object, known: Iterable[str]) -> str:
    """The nearest known names as a question, or nothing; with a space behind it.

    Example:
        >>> hint("rellu", ("relu", "gelu"))
        "Did you mean 'relu' or 'gelu'? "
    """
    text = name[:60] if isinstance(name, str) else describe(name)
    near = difflib.get_close_matches(text, list(known), n=2)
    return f"Did you mean {' or '.join(map(repr, near))}? " if near else ""


def describe(value: object) -> str:
    """A wrong argument in a few words: one line, however large the value.

    Tensors and arrays are their shapes, NumPy's scalars their values.

    Example:
        >>> describe(list(range(1000)))
        '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13... (list)'
    """
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and (shape or type(value).__module__ != "numpy"):
        return f"a {type(value).__name__.lower()} of shape {list(shape)}"
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes out no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:46]}... ({type(value).__name__})"


def show_names(names: Iterable[str]) -> str:
    """Names that a file or folder has, sorted, for one line; a long or odd one in a few words.

    Example:
        >>> show_names(["train", "dev", "a\\nb"])
        "'a\\\\nb', dev, train"
    """
    found = sorted(names)
    shown = [x if x.isprintable() and len(x) <= 60 else describe(x) for x in found[:20]]
    more = f" and {len(found) - 20} more" if len(found) > 20 else ""
    return ", ".join(shown) + more or "none"


def reason(error: Exception) -> str:
    """What another library says of its input, as a part of one line; without a full stop.

    Example:
        >>> reason(ValueError("no header.\\nLong explanation"))
        'no header'
    """
    said = next(iter(str(error).splitlines()), "").rstrip(" .")
    return said[:300] or type(error).__name__


def check_choice(name: str, value: object, known: tuple[str, ...], also: str = "") -> None:
    """Refuse a word that is not known, with its nearest matches; ``also``: what else would do."""
    if not isinstance(value, str) or value not in known:
        raise InputError(
            f"{name}={describe(value)} is unknown. {hint(value, known)}"
            f"Known: {', '.join(known)}{also}."
        )


def require(module: str, what: str, *, extra: str = "lab", package: str | None = None) -> Any:
    """A module that an extra brings, or a line that says what to install.

    Args:
        module: its name for ``import``.
        what: needs it, as the line begins.
        extra: of ours that brings it.
        package: its name for pip, where that is another.

    Example:
        >>> require("no_such_module", "this page")
        Traceback (most recent call last):
        flashpoint.errors.UnsupportedError: this page needs the package no_such_module. Install \
it: pip install '.[lab]' in a clone of Flashpoint.
    """
    name = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        absent = (error.name or name).partition(".")[0]  # it may be one that the module needs
        raise missing(package or name if absent == name else absent, what, extra) from error


def missing(package: str, what: str, extra: str = "lab") -> UnsupportedError:
    """That a package is not installed, and how to get it."""
    return UnsupportedError(
        f"{what} needs the package {package}. Install it: {how_to_install(extra)}."
    )


def how_to_install(extra: str) -> str:
    """The command that brings an extra. No package index has Flashpoint, so it names none.

    Example:
        >>> how_to_install("timm")
        "pip install '.[timm]' in a clone of Flashpoint"
    """
    return f"pip install '.[{extra}]' in a clone of Flashpoint"
