"""Which function a function is, told by its code and values: the same in every process.

An exported program knows a user's activation by such a name. Another process must find that very
function under it, or none.
"""

import dis
import functools
import hashlib
import operator
import sys
from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

# whose functions are the same wherever their names are
KNOWN_PACKAGES = frozenset(
    ("builtins", "functools", "math", "numpy", "operator", "torch", "triton")
)
PYTORCHS_OPERATORS = ("aten", "prims")  # any other namespace is a library's own
DIGITS = 16  # of the hash: 64 bits
# exactly these types: a subclass may have methods, and write itself as it likes
_VALUES = frozenset(
    (
        *(type(None), bool, int, float, complex, str, bytes, type(...)),
        *(torch.dtype, torch.device, torch.memory_format),
    )
)
_IN_C = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
# what finds values that the code does not name
_LOOKS_UP = frozenset(
    (
        *("eval", "exec", "getattr", "attrgetter", "globals", "locals", "vars"),
        *("__import__", "__builtins__", "__globals__", "__dict__"),
        "ops",  # torch.ops has what any library registers there
    )
)


class _UnknownError(Exception):
    """Something among a function's parts may become another later, or differ elsewhere."""


def digest_of(*functions: object) -> str | None:
    """A hash of functions; None where it could not tell them from others.

    A function written in Python is its code, its defaults, what its closure holds and the globals
    that it reads. Tensors, modules of torch.nn, lists, other objects and attributes of functions
    may change, and modules outside of torch may have another content elsewhere: nothing can stand
    for them, nor for what code looks up by ``eval``, ``globals``, ``getattr`` and the like, nor
    for operators that a library registers. Globals count with the values that they have now.

    Example:
        >>> digest_of(torch.sin) == digest_of(torch.cos)
        False
        >>> digest_of(torch.nn.ReLU()) is None
        True
    """
    try:
        told = "".join(_tell((sys.version_info[:2], *functions), {}))
    except _UnknownError:
        return None
    return hashlib.sha256(told.encode()).hexdigest()[:DIGITS]


def _tell(x: Any, seen: dict[int, int]) -> Iterator[str]:
    """Something part by part; ``seen`` numbers functions, which may call themselves."""
    kind: type = type(x)
    if kind in _VALUES or kind in _numpys():
        yield f"{kind.__name__} {x!r};"
    elif kind is tuple:
        yield f"{len(x)}("
        for part in x:
            yield from _tell(part, seen)
    elif kind is frozenset:
        yield from _tell(tuple(sorted("".join(_tell(part, seen)) for part in x)), seen)
    elif isinstance(x, CodeType):
        yield from _tell_code(x, seen)
    elif kind is functools.partial and not x.__dict__:
        yield from _tell(("partial", x.func, x.args, tuple(sorted(x.keywords.items()))), seen)
    elif (name := _known_name(x)) is not None:
        yield f"{kind.__name__} {name};"
    elif isinstance(x, FunctionType) and not x.__dict__:
        yield from _tell_function(x, seen)
    else:
        raise _UnknownError


def _numpys() -> frozenset[type]:
    """The types of NumPy's scalars; whoever has one has loaded it."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return frozenset()
    return frozenset(numpy.sctypeDict.values()) - {numpy.void, numpy.object_}


def _known_name(x: Any) -> str | None:
    """What a package that everybody has calls it: a module, class or function of its own."""
    if getattr(x, "__name__", None) in _LOOKS_UP:
        return None
    if isinstance(x, ModuleType):
        return x.__name__ if _is_known(x.__name__) else None
    if isinstance(x, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(x) if str(x).partition(".")[0] in PYTORCHS_OPERATORS else None
    if isinstance(x, _IN_C):
        owner = getattr(x, "__self__", getattr(x, "__objclass__", None))
        home = owner.__name__ if isinstance(owner, ModuleType) else _home(x) or _home(owner)
        is_bound = not (owner is None or isinstance(owner, (ModuleType, type)))
        return f"{home}.{x.__qualname__}" if _is_known(home) and not is_bound else None
    if not isinstance(x, (FunctionType, type)) or not _is_known(x.__module__):
        return None
    try:  # a wrapper may carry another's name
        found = operator.attrgetter(x.__qualname__)(sys.modules[x.__module__])
    except (AttributeError, KeyError):
        return None
    return f"{x.__module__}.{x.__qualname__}" if found is x else None


def _home(x: object) -> str | None:
    return getattr(x, "__module__", None)


def _is_known(module: str | None) -> bool:
    return (module or "").partition(".")[0] in KNOWN_PACKAGES


def _tell_function(function: FunctionType, seen: dict[int, int]) -> Iterator[str]:
    if id(function) in seen:
        yield f"function {seen[id(function)]};"
        return
    seen[id(function)] = len(seen)
    code, scope = function.__code__, function.__globals__
    yield from _tell(code, seen)
    yield from _tell((function.__defaults__, _pairs(function.__kwdefaults__)), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _tell(cell.cell_contents, seen)
        except ValueError as error:  # the cell is still empty
            raise _UnknownError from error
    for name in sorted(_globals_of(code)):
        yield from _tell((name, scope[name]) if name in scope else (name,), seen)


def _pairs(values: dict[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((values or {}).items()))


def _tell_code(code: CodeType, seen: dict[int, int]) -> Iterator[str]:
    """What runs; not where it was written, nor how its variables are called."""
    if not _LOOKS_UP.isdisjoint(code.co_names):
        raise _UnknownError
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    yield from _tell((counts, code.co_code, code.co_exceptiontable, code.co_names), seen)
    yield from _tell(code.co_consts, seen)


def _globals_of(code: CodeType) -> set[str]:
    """The globals that code reads, that of functions inside it too."""
    names: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME" and not _is_known(step.argval):
            raise _UnknownError
        if step.opname in _READS_GLOBAL:
            names.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= _globals_of(inner)
    return names
