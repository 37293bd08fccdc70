"""Plain data checked by a declared shape, and back: errors name the dotted path.

A shape is a dataclass (closed: an unknown key is an error; gives an instance), a TypedDict (open:
other keys stay as they are; gives a dict), a mapping, list or tuple of shapes, a literal, a plain
type, a union of these, or Any. Configs are read leniently, since YAML takes 1e-3 for text; stored
files strictly, so that nothing in them is changed by reading.

A class with ``parse`` may also be written as text (an AttentionSpec as "relu"); one with
``from_section`` reads a mapping itself; one with ``to_dict`` says itself how it is written.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, cast

from flashpoint.errors import InputError, describe, hint

T = TypeVar("T")

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
}


def build(cls: type[T], values: object, path: str = "", *, strict: bool = False) -> T:
    """An instance of the dataclass ``cls`` from a mapping of its fields.

    Args:
        cls: the dataclass; fields may be dataclasses again.
        values: what a file or the command line gave.
        path: where this stands in the whole, for messages.
        strict: take text for no number, and only finite ones.

    Example:
        >>> from flashpoint.lab.training.config import OptimizerConfig
        >>> build(OptimizerConfig, {"lr": "1e-3"}, "optimizer").lr
        0.001
        >>> build(OptimizerConfig, {"lrr": 1.0}, "optimizer")
        Traceback (most recent call last):
        flashpoint.errors.InputError: optimizer.lrr is unknown. Did you mean 'optimizer.lr'? \
Known: betas, clip, lr, weight_decay.
    """
    if not isinstance(values, Mapping):
        subject = f"{path} must be" if path else "it must hold"
        raise InputError(f"{subject} a section, not {describe(values)}.")
    if hasattr(cls, "from_section"):
        return typing.cast("Any", cls).from_section(values, path)
    fields = {field.name: field for field in _fields(cls)}
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise unknown(key, {name: hints[name] for name in fields}, path)
    for name, field in fields.items():
        if name not in values and _is_required(field):
            how = "" if strict else " Set it, or pass --set KEY=VALUE."
            raise InputError(f"{join(path, name)} is missing.{how}")
    arguments = {
        key: convert(value, hints[key], join(path, key), strict=strict)
        for key, value in values.items()
    }
    try:
        return cls(**arguments)
    except InputError as error:
        says_where = not path or str(error).startswith(path)
        raise InputError(str(error) if says_where else f"{path}: {error}") from error


def convert(value: object, wanted: Any, path: str, *, strict: bool = False) -> Any:
    """``value`` as the type ``wanted``, or an InputError that names the path.

    Example:
        >>> convert({"a": [1, 2.5]}, dict[str, list[int | float]], "", strict=True)
        {'a': [1, 2.5]}
        >>> convert({"a": ["1"]}, dict[str, list[int]], "", strict=True)
        Traceback (most recent call last):
        flashpoint.errors.InputError: a[0]='1' must be a whole number.
    """
    members = _members(wanted)
    for member in _fitting(members, value):
        if _is_record(member):
            if isinstance(value, Mapping) or (len(members) == 1 and not hasattr(member, "parse")):
                return build(member, value, path, strict=strict)
            if hasattr(member, "parse") and isinstance(value, str | member):
                return _parse(member, value, path)
            continue
        found, result = _convert_plain(value, member, path, strict)
        if found:
            return result
    words = " or ".join(_describe_type(member) for member in members)
    near = _literal_hint(value, members)
    if not path:
        raise InputError(f"it must hold {words}, not {describe(value)}.")
    raise InputError(f"{path}={describe(value)} must be {words}. {near}".rstrip())


def plain(value: object) -> Any:
    """The same as dicts, lists, text and numbers; ``build`` takes it back."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        writes_itself = getattr(value, "to_dict", None)
        if writes_itself is not None:
            return plain(writes_itself())
        return {field.name: plain(getattr(value, field.name)) for field in _fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def join(path: str, key: object) -> str:
    """The dotted path of a key; a key that is no name stands there in a few words."""
    name = (
        str(key)
        if isinstance(key, str) and key.isprintable() and len(key) <= 60
        else describe(key)
    )
    return f"{path}.{name}" if path else name


def unknown(key: object, known: Mapping[str, Any], path: str) -> InputError:
    """The error for a key that nobody reads, with the paths of its nearest matches.

    Args:
        key: what was given.
        known: names of the section's fields and their types; matches may lie in a section below.
        path: of the section.
    """
    below = [below for name, wanted in known.items() for below in _below(wanted, join(path, name))]
    near = _nearest(key, [join(path, name) for name in known]) or _nearest(key, below)
    question = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
    return InputError(
        f"{join(path, key)} is unknown. {question}Known: {', '.join(sorted(known))}."
    )


def _below(wanted: Any, path: str) -> Iterator[str]:
    """All dotted paths below a section."""
    if _is_record(wanted):
        for name, inner in typing.get_type_hints(wanted).items():
            yield join(path, name)
            yield from _below(inner, join(path, name))


def _nearest(key: object, paths: list[str]) -> list[str]:
    """The paths whose last names look most like a key."""
    names = {path: path.rpartition(".")[2] for path in paths}
    close = difflib.get_close_matches(str(key)[:60], set(names.values()), n=2)
    return [path for name in close for path in paths if names[path] == name]


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value)


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _is_record(wanted: Any) -> bool:
    return isinstance(wanted, type) and dataclasses.is_dataclass(wanted)


def _members(wanted: Any) -> list[Any]:
    """The types of a union, words before numbers before text; another type alone."""
    if typing.get_origin(wanted) not in (Union, types.UnionType):
        return [wanted]
    order = [type(None), bool, int, float, str]
    return sorted(typing.get_args(wanted), key=lambda m: order.index(m) if m in order else -1)


def _fitting(members: list[Any], value: object) -> list[Any]:
    """Types in the order to try; of several dataclasses first what a mapping has the fields of."""
    if not isinstance(value, Mapping):
        return members
    needed = {
        member: {field.name for field in _fields(member) if _is_required(field)}
        for member in members
        if _is_record(member)
    }
    return sorted(members, key=lambda m: m in needed and not needed[m] <= value.keys())


def _convert_plain(value: object, wanted: Any, path: str, strict: bool) -> tuple[bool, object]:
    """Whether ``value`` can be read as one type that is no record, and as what."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return True, value
    if origin is Literal:
        return type(value) in {type(word) for word in arguments} and value in arguments, value
    if origin in (tuple, list, Sequence):
        return _convert_sequence(value, origin, arguments, path, strict)
    if origin in (dict, Mapping) or typing.is_typeddict(wanted):
        return _convert_mapping(value, wanted, path, strict)
    if wanted is float:
        number = _as_number(value, strict)
        return number is not None, number
    if wanted in _WORDS:
        return type(value) is wanted, value
    raise TypeError(f"{path}: no schema can hold {wanted}")


def _convert_sequence(
    value: object, origin: Any, arguments: tuple[Any, ...], path: str, strict: bool
) -> tuple[bool, object]:
    if not isinstance(value, list | tuple):
        return False, None
    items = list(value)
    if origin is not tuple or arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(items)
    if len(items) != len(arguments):
        return False, None
    pairs = enumerate(zip(items, arguments, strict=True))
    found = [convert(item, wanted, f"{path}[{i}]", strict=strict) for i, (item, wanted) in pairs]
    return True, tuple(found) if origin is tuple else found


def _convert_mapping(value: object, wanted: Any, path: str, strict: bool) -> tuple[bool, object]:
    """A mapping of text to one type, or of the keys of a TypedDict to theirs."""
    if not isinstance(value, Mapping):
        return False, None
    given = cast("Mapping[Any, Any]", value)
    if typing.is_typeddict(wanted):
        hints, required = typing.get_type_hints(wanted), wanted.__required_keys__
    else:
        hints, required = dict.fromkeys(given, typing.get_args(wanted)[1]), ()
    for key in given:
        if not isinstance(key, str):
            raise InputError(f"{join(path, key)} must have text as its key.")
    for name in sorted(required):
        if name not in given:
            raise InputError(f"{join(path, name)} is missing.")
    return True, {
        key: convert(inner, hints.get(key, Any), join(path, key), strict=strict)
        for key, inner in given.items()
    }


def _as_number(value: object, strict: bool) -> float | None:
    """A float; YAML reads 1e-3 as text, since it lacks a dot."""
    accepted = (int, float) if strict else (int, float, str)
    if isinstance(value, bool) or not isinstance(value, accepted):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) or not strict else None


def _parse(cls: Any, value: object, path: str) -> Any:
    try:
        return cls.parse(value)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _describe_type(wanted: Any) -> str:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (tuple, list, Sequence):
        count = "" if origin is not tuple or arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"a list of {count}values, each {_describe_type(arguments[0])}"
    return _WORDS.get(wanted, "a section")


def _literal_hint(value: object, members: list[Any]) -> str:
    words = [a for m in members if typing.get_origin(m) is Literal for a in typing.get_args(m)]
    return hint(value, words).strip()
