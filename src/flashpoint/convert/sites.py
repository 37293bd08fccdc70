"""Attention in somebody else's model: where it is, and how another one is put there.

Every library that is served has a subclass of ``Site`` and a function ``find(model) -> Found``.
Parameters stay those of the model, and so do the keys and shapes of its state dict.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from flashpoint.convert.substitute import Substitute

CHILD = "substitute"
"""The name under which a module holds what computes its attention now."""


class Site(ABC):
    """One module that computes attention.

    Attributes:
        name: the module's, dotted, as ``model.get_submodule`` takes it.
        module: the module itself.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module

    @property
    @abstractmethod
    def num_heads(self) -> int:
        """Query heads."""

    @abstractmethod
    def install(self, substitute: Substitute) -> None:
        """Let the module compute its attention by it, from the next call on."""

    @abstractmethod
    def restore(self) -> None:
        """Let the module compute what it did before ``install``."""

    @property
    def substitute(self) -> Substitute | None:
        """What was installed; None where the module computes its own attention."""
        found = getattr(self.module, CHILD, None)
        return found if isinstance(found, Substitute) else None

    @property
    def kind(self) -> str:
        """The module's class as its library names it, with where it is defined."""
        return path_of(original_class(self.module))

    @property
    def dropout(self) -> float:
        """The share of weights that the module drops while it trains."""
        return 0.0

    @property
    def dropout_advice(self) -> str:
        """How to set that share to 0, as a part of a sentence."""
        return "set its attention dropout to 0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a library's ``find`` saw in a model.

    Attributes:
        sites: that can be replaced, in the order of the model.
        left: names of modules that look like attention and cannot, each with the reason.
    """

    sites: tuple[Site, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict[str, str])


class Served(nn.Module):
    """First base of the classes that served modules have instead of their own.

    An instance is one of the original class too: parameters, hooks, ``isinstance`` and copies are
    as they were. It pickles as the original class and what stands before it, since a class made
    while running cannot be found by name.
    """

    original: ClassVar[type[nn.Module]]
    first: ClassVar[type["Served"]]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What ``pickle`` and ``copy`` make it again from."""
        return _blank, (self.first, self.original), self.__getstate__()


def serve(module: nn.Module, first: type[Served]) -> None:
    """Give a module a class in which ``first`` stands before its own."""
    module.__class__ = _served_class(first, original_class(module))


def unserve(module: nn.Module) -> None:
    """Give a module its own class again."""
    module.__class__ = original_class(module)


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class that a module had before any of it was served."""
    return module.original if isinstance(module, Served) else type(module)


def path_of(kind: type) -> str:
    """A class with its module, as Python finds it."""
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _served_class(first: type[Served], original: type[nn.Module]) -> type[nn.Module]:
    names = {"original": original, "first": first, "__doc__": first.__doc__}
    names["__module__"] = original.__module__  # by which torch.fx knows what it need not look into
    return type(f"Flashpoint{original.__name__}", (first, original), names)


def _blank(first: type[Served], original: type[nn.Module]) -> nn.Module:
    kind = _served_class(first, original)
    return kind.__new__(kind)


class ServedSite(Site):
    """A module that is replaced by standing before its class.

    Attributes:
        first: what stands before it; it computes by the module's child ``CHILD``.
    """

    first: type[Served]

    @property
    def num_heads(self) -> int:
        """Query heads, by the name that timm and torch.nn share."""
        return int(self.module.num_heads)  # pyright: ignore[reportArgumentType]

    def install(self, substitute: Substitute) -> None:
        """Put the child in and change the class."""
        setattr(self.module, CHILD, substitute)
        serve(self.module, self.first)

    def restore(self) -> None:
        """Take the child out and give the class back."""
        if self.substitute is not None:
            delattr(self.module, CHILD)
        unserve(self.module)
