"""Files of runs, studies and data as checked plain data.

A file of a trial whose study is packed is read from the pack (``pack.py``) as if it were there.
Whatever lies there instead (half a file, another type, a FIFO, a bomb of aliases) is an InputError
in one line: the file, the field, what was found, what to do. Nothing is read without limits, and
only a file that is not there counts as missing: one that cannot be read is an error.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import yaml

from flashpoint.errors import InputError, describe
from flashpoint.lab.runs.schema import convert

if TYPE_CHECKING:
    from flashpoint.lab.runs.pack import Packed

T = TypeVar("T")

MAX_BYTES = 2**28
MAX_DEPTH = 50
MAX_YAML = 2**17
"""Letters of YAML, of which PyYAML reads some ten thousand a second."""
MAX_VALUES = 100_000
"""In YAML, aliases counted as often as they are used."""
MAX_DIGITS = 40
"""Of a whole number; a generator's state has 39."""


def exists(path: Path) -> bool:
    """Whether something is there; an InputError where that cannot be said.

    A link to what is not there is no missing file: perhaps a disk is not mounted.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            raise InputError(f"{path} is a link to what is not there.") from error
        return _packed(path) is not None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    return True


def _packed(file: Path) -> "Packed | None":
    """What the pack of a study has of a file that is not on disk."""
    from flashpoint.lab.runs.pack import find  # which itself reads files and JSON from here

    return find(file)


def listed(folder: Path, pattern: str) -> list[Path]:
    """Files in a folder, on disk or in a pack, by name."""
    from flashpoint.lab.runs.pack import matching

    return sorted({*folder.glob(pattern), *matching(folder, pattern)})


def place_of(file: Path) -> str:
    """How messages name a file: its path, or its place in a pack."""
    packed = None if os.path.lexists(file) else _packed(file)
    return str(file) if packed is None else packed.place


def open_plain(file: Path) -> IO[bytes]:
    """A plain file to read from; a FIFO, a device or a folder in its place is refused."""
    try:
        # Not to wait for a writer, should it be a FIFO.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise unreadable(file, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{file} is no plain file. Remove it, or restore the file.")
    return open(descriptor, "rb")


def read_bytes(file: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """What a plain file holds."""
    try:
        opened = open_plain(file)
    except InputError as error:
        is_missing = isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
        packed = _packed(file) if is_missing else None
        if packed is None:
            raise
        return packed.content
    with opened as handle:
        size = os.fstat(handle.fileno()).st_size
        if size > max_bytes:
            raise InputError(f"{file} has {size} bytes, more than the {max_bytes} that are read.")
        try:
            return handle.read()
        except MemoryError as error:
            raise InputError(f"{file} is larger than the memory that is free.") from error
        except OSError as error:
            raise unreadable(file, error) from error


def unreadable(path: Path, error: OSError | ValueError) -> InputError:
    """What the system says, in one line."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return InputError(f"{path} cannot be read: {reason}.")


def read_text(file: Path, max_bytes: int = MAX_BYTES) -> str:
    """A file of UTF-8."""
    return _decode(place_of(file), read_bytes(file, max_bytes))


def _decode(where: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is not UTF-8: byte {error.start} is {content[error.start]:#04x}."
        ) from error


def read_json(file: Path, shape: type[T], advice: str = "") -> T:
    """A JSON file that has a shape.

    Args:
        file: a missing one is an error too; ask ``exists`` first.
        shape: as for ``schema.convert``, strict.
        advice: a sentence that says what to do about a broken file.

    Raises:
        InputError: it cannot be read, is no JSON, or has another shape.
    """
    return _advised(lambda: parse_json(read_text(file), shape, place_of(file)), advice)


def read_json_lines(file: Path, shape: type[T], advice: str = "") -> list[T]:
    """A JSON value a line; half a line at the end, which a killed writer leaves, is left out."""
    *lines, rest = _advised(lambda: read_bytes(file), advice).split(b"\n")
    if _is_json(rest):
        lines.append(rest)
    place = place_of(file)

    def parse() -> list[T]:
        return [
            parse_json(_decode(where, line), shape, where)
            for number, line in enumerate(lines, start=1)
            for where in [f"{place}, line {number}"]
        ]

    return _advised(parse, advice)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def parse_json(text: str, shape: type[T], where: str) -> T:
    """JSON text that has a shape; ``where`` it is from begins the message of an error.

    NaN and infinities, which are no JSON, are read as ``files.json_text`` writes them: as null.

    Example:
        >>> parse_json('{"steps": "ten"}', dict[str, int], "record.json")
        Traceback (most recent call last):
        flashpoint.errors.InputError: record.json: steps='ten' must be a whole number.
    """
    try:
        value = json.loads(text, parse_int=_whole, parse_constant=_null)
        if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
            raise RecursionError
        if "\\u" in text:  # halves of a pair, which no file and no terminal takes
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise InputError(f"{where} is nested more than {MAX_DEPTH} deep.") from error
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} has text that is no Unicode: {describe(error.object)}."
        ) from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"{where} cannot be read: {error.msg} in {place}.") from error
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return check(value, shape, where)


def check(value: object, shape: type[T], where: str, advice: str = "") -> T:
    """Plain data that has a shape; ``where`` it is from begins the message of an error."""
    try:
        return convert(value, shape, "", strict=True)
    except InputError as error:
        raise InputError(f"{where}: {error} {advice}".rstrip()) from error


def _null(_: str) -> None:
    """What stands for a number that is not finite."""


def _whole(digits: str) -> int:
    _limit_digits(digits)
    return int(digits)


def _limit_digits(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise InputError(f"a whole number of {len(digits)} digits is more than {MAX_DIGITS}.")


def _is_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inner(outer)]
    return bool(level)


def _inner(value: object) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML file of keys and values."""
    where = place_of(file)
    content = parse_yaml(read_text(file), f"{where} is not a YAML file")
    if not isinstance(content, dict):
        raise InputError(f"{where} must hold keys and values, not {describe(content)}.")
    return content


def parse_yaml(text: str, complaint: str) -> Any:
    """YAML as plain data, within limits; an InputError is the ``complaint`` and the reason.

    Example:
        >>> parse_yaml("a: [1, x]", "")
        {'a': [1, 'x']}
        >>> parse_yaml("a: &a [*a]", "config.yaml is refused")
        Traceback (most recent call last):
        flashpoint.errors.InputError: config.yaml is refused: it is nested more than 50 deep.
    """
    if len(text) > MAX_YAML:
        raise InputError(f"{complaint}: it has {len(text)} letters, more than {MAX_YAML}.")
    try:
        return _construct(yaml.SafeLoader(text))
    except RecursionError:
        reason = f"it is nested more than {MAX_DEPTH} deep"
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # All but the first are what PyYAML raises on "!!int ''", "!!bool x" or "2026-99-99".
        reason = " ".join(str(error).split()).rstrip(".")
    raise InputError(f"{complaint}: {reason}.")


def _construct(loader: yaml.SafeLoader) -> Any:
    node = loader.get_single_node()
    if node is None:
        return None
    for count, inner in enumerate(_nodes(node, 0), start=1):
        if count > MAX_VALUES:
            raise InputError(f"it has more than {MAX_VALUES} values, aliases counted")
        if isinstance(inner, yaml.ScalarNode):
            inner.value.encode()  # halves of a pair, which no file and no terminal takes
            if inner.tag.endswith(":int"):
                _limit_digits(inner.value)  # also of 0x10, 0b1 and 1_000, which YAML reads
    return loader.construct_document(node)


def _nodes(node: yaml.Node, depth: int) -> Iterator[yaml.Node]:
    """All nodes below one, each as often as an alias brings it up."""
    if depth > MAX_DEPTH:
        raise RecursionError
    yield node
    if isinstance(node, yaml.CollectionNode):
        for item in node.value:
            for inner in item if isinstance(item, tuple) else (item,):
                yield from _nodes(inner, depth + 1)


def _advised(read: Callable[[], T], advice: str) -> T:
    try:
        return read()
    except InputError as error:
        raise InputError(f"{error} {advice}".rstrip()) from error
