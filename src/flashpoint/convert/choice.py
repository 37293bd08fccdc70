"""Which of a model's attention modules are meant: indices, a slice, a pattern or a function."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from flashpoint.errors import InputError, describe, show_names

Layers: TypeAlias = Sequence[int] | slice | str | Callable[[str], bool] | None


def choose(names: Sequence[str], layers: Layers) -> tuple[list[int], Callable[[str], bool]]:
    """The chosen indices, ascending, and whether another module of some name was left out.

    Indices and slices choose among ``names`` alone, so every other module is left out by them.

    Example:
        >>> names = ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]
        >>> choose(names, [0, -1])[0], choose(names, "blocks.[12].*")[0]
        ([0, 2], [1, 2])
    """
    if layers is None:
        return list(range(len(names))), lambda _: False
    if isinstance(layers, slice):
        chosen = list(range(len(names))[layers])
        if names and not chosen:
            raise InputError(f"layers: {layers} chooses none of {len(names)} attention modules.")
        return chosen, lambda _: True
    if isinstance(layers, str):
        return _choose_by_name(names, lambda name: fnmatchcase(name, layers), repr(layers))
    if callable(layers):
        return _choose_by_name(names, lambda name: bool(layers(name)), "the function")
    return _choose_by_index(len(names), layers), lambda _: True


def _choose_by_name(
    names: Sequence[str], is_meant: Callable[[str], bool], what: str
) -> tuple[list[int], Callable[[str], bool]]:
    chosen = [i for i, name in enumerate(names) if is_meant(name)]
    if names and not chosen:
        raise InputError(f"layers: {what} chooses none of {show_names(names)}.")
    return chosen, lambda name: not is_meant(name)


def _choose_by_index(count: int, layers: Sequence[int]) -> list[int]:
    if not isinstance(layers, Sequence) or any(
        isinstance(i, bool) or not isinstance(i, int) for i in layers
    ):
        raise InputError(
            "layers must be None, indices, a slice, a pattern of names or a function of a name. "
            f"Got {describe(layers)}."
        )
    wrong = [i for i in layers if not -count <= i < count]
    if wrong:
        raise InputError(
            f"layers has {wrong[0]}, and the model has {count} attention modules that can be "
            f"replaced: indices go from {-count} to {count - 1}."
        )
    if not layers:
        raise InputError("layers is empty: nothing would be replaced. Pass None for all.")
    return sorted({i % count for i in layers})
