"""Attention in somebody else's model: where it is, and how another one is put there.

Every library that is served has a subclass of ``Site`` and a function ``find(model) -> Found``.
Parameters stay those of the model, and so do the keys and shapes of its state dict.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a library's ``find`` saw in a model.

    Attributes:
        sites: that can be replaced, in the order of the model.
        left: names of modules that look like attention and cannot, each with the reason.
    """

    sites: tuple[Site, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict[str, str])
