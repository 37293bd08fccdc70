"""Ways in which a stored file can be broken; tests of every reader walk over them."""

import copy
import json
import os
from pathlib import Path

from hypothesis import strategies as st

DEEP = 100_000
OTHERS = (
    None,
    True,
    3,
    -1,
    2.5,
    1e300,
    "text",
    "",
    [],
    [1, [2]],
    {},
    {"a": {"b": 1}},
    float("nan"),
)
"""Values of every JSON type; some field of a valid file refuses each."""


def places(value, path=()):
    """The paths of all values inside a value, itself too."""
    yield path
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, member in inner:
            yield from places(member, (*path, key))


def replaced(value, path, new):
    """A copy with another value at a path; without it where ``new`` is Ellipsis."""
    new = copy.deepcopy(new)  # it may be changed further
    if not path:
        return copy.deepcopy(new)
    result = copy.deepcopy(value)
    target = result
    for key in path[:-1]:
        target = target[key]
    if new is Ellipsis:
        del target[path[-1]]
    else:
        target[path[-1]] = new
    return result


@st.composite
def changed(draw, value):
    """JSON with one value of another type, one missing, or one more."""
    where = draw(st.sampled_from(list(places(value))))
    new = draw(st.sampled_from((*OTHERS, Ellipsis)))
    if not where and new is Ellipsis:
        new = None
    result = replaced(value, where, new)
    if isinstance(result, dict) and draw(st.booleans()):
        result[draw(st.text(max_size=80))] = draw(st.sampled_from(OTHERS))
    return json.dumps(result).encode()


@st.composite
def damaged(draw, value):
    """Bytes that are a cut, a garbled or an oversized form of a JSON value."""
    text = json.dumps(value)
    place = draw(st.integers(0, len(text) - 1))
    garbage = draw(
        st.sampled_from(
            (
                *(b"", b"\xff", b"\xed\xa0\x80", b"\0", b'"', b"}", b"\\ud800", b"NaN", b"1e999"),
                *(b"9" * 5_000, b"-" + b"9" * 4_000, b"[" * DEEP, b'{"a":' * DEEP),
                b"[" * DEEP + b"]" * DEEP,
            )
        )
    )
    rest = draw(st.sampled_from(("", text[place:], text[place + 1 :])))
    return text[:place].encode() + garbage + rest.encode()


def broken(value):
    """Bytes that may stand where a JSON value was written."""
    return changed(value) | damaged(value) | st.binary(max_size=50)


def put_folder(file):
    file.unlink()
    file.mkdir()


def put_fifo(file):
    file.unlink()
    os.mkfifo(file)


def put_loop(file):
    file.unlink()
    file.symlink_to(file.name)


def put_socket(file):
    import socket

    file.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(file.parent, os.O_RDONLY)
        try:  # a socket's path has at most 107 bytes
            listener.bind(f"/proc/self/fd/{folder}/{file.name}")
        finally:
            os.close(folder)


def put_sparse(file):
    with file.open("wb") as handle:
        handle.truncate(2**40)


NO_FILES = (put_folder, put_fifo, put_loop, put_socket, put_sparse)
"""What else can lie where a plain file was."""


def unreadable(monkeypatch, error, *names):
    """Let opening files or folders fail, by name or by path, as modes do not stop root."""
    import builtins
    import io

    def failing(original):
        def attempt(path, *arguments, **options):
            is_path = isinstance(path, str | os.PathLike)
            if is_path and (os.path.basename(path) in names or Path(path) in names):
                raise OSError(error, os.strerror(error), str(path))
            return original(path, *arguments, **options)

        return attempt

    for module, name in ((os, "open"), (os, "scandir"), (os, "listdir"), (io, "open")):
        monkeypatch.setattr(module, name, failing(getattr(module, name)))
    monkeypatch.setattr(builtins, "open", io.open)
