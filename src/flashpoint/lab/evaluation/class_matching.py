"""Which output of a model means which class of other data: matched by name, not by number.

An ImageNet-21k model answers for ImageNet-1k by the outputs whose WordNet ids stand in both
lists. Where data have no names, only numbers, timm's lists of ids tell them by their count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashpoint.errors import InputError, UnsupportedError, how_to_install
from flashpoint.lab.data.labels import WORDNET_ID
from flashpoint.shapes import Float, Int

MAX_NAMED = 5
LEFT_OUT = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassMatch:
    """Classes that a model and data share.

    Attributes:
        columns: the model's outputs that count, in the order of the data's classes.
        new_labels: for each class of the data its place among them, or -1.
        unmatched: the data's classes that the model does not know.
    """

    columns: Int[Tensor, " matched"]
    new_labels: Int[Tensor, " classes"]
    unmatched: tuple[str, ...]

    def restrict(
        self, logits: Float[Tensor, "B K"], labels: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "b matched"], Int[Tensor, " b"]]:
        """Logits of the shared classes and labels among them; images of no such class left out."""
        places = self.new_labels.to(labels.device)[labels]
        kept = places != LEFT_OUT
        return logits[kept][:, self.columns.to(logits.device)], places[kept]


def match_classes(model_names: Sequence[str], data_names: Sequence[str]) -> ClassMatch:
    """Match by WordNet id where names hold one, else by the whole name.

    Example:
        >>> match = match_classes(["cat", "dog", "cow"], ["cow", "cat", "newt"])
        >>> match.columns.tolist(), match.new_labels.tolist(), match.unmatched
        ([2, 0], [0, 1, -1], ('newt',))
    """
    known = {_key(name): column for column, name in enumerate(_resolve(model_names))}
    names = _resolve(data_names)
    columns = [known.get(_key(name)) for name in names]
    matched = [column for column in columns if column is not None]
    if not matched:
        raise InputError(
            f"the model's {len(model_names)} classes ({some(model_names)}) and the data's "
            f"{len(data_names)} ({some(data_names)}) have no name in common. Name the data's in "
            "the model's words: --classes FILE, one a line in the order of their labels."
        )
    places = torch.full((len(names),), LEFT_OUT)
    places[[i for i, column in enumerate(columns) if column is not None]] = torch.arange(
        len(matched)
    )
    return ClassMatch(
        columns=torch.tensor(matched),
        new_labels=places,
        unmatched=tuple(n for n, c in zip(names, columns, strict=True) if c is None),
    )


def require_same_classes(model_names: Sequence[str], data_names: Sequence[str]) -> None:
    """Refuse data whose labels mean something else than the model's outputs."""
    if len(data_names) > len(model_names):
        raise InputError(
            f"the data have {len(data_names)} classes, the model {len(model_names)}. "
            "Pass --labels matching to compare by name those that both have."
        )
    pairs = zip(model_names, data_names, strict=False)
    differing = next((pair for pair in pairs if _key(pair[0]) != _key(pair[1])), None)
    if differing and not (is_numbered(model_names) or is_numbered(data_names)):
        raise InputError(
            f"class {model_names.index(differing[0])} is {differing[0]!r} for the model and "
            f"{differing[1]!r} in the data. Pass --labels matching to compare by name, or "
            "--classes FILE with the data's classes in the model's words."
        )


def is_numbered(names: Sequence[str]) -> bool:
    """Whether the names are just the numbers from 0: there are none."""
    return list(names) == [str(number) for number in range(len(names))]


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _key(name: str) -> str:
    """The WordNet id in a name, else the name."""
    found = WORDNET_ID.search(name)
    return found[0] if found else name


def _resolve(names: Sequence[str]) -> Sequence[str]:
    """Names as they are; for mere numbers, timm's WordNet ids of the ImageNet of that size."""
    return _imagenet_ids(len(names)) or names if is_numbered(names) else names


def _imagenet_ids(num_classes: int) -> list[str] | None:
    """The ids of the ImageNet with so many classes (1000, 21843, ...), or None."""
    if num_classes < 1000:
        return None
    try:
        from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset
    except (ImportError, RuntimeError) as error:  # a torchvision that does not fit torch
        raise UnsupportedError(
            f"the WordNet ids of {num_classes} numbered classes are in the package timm, which "
            f"cannot be imported ({' '.join(str(error).split())}). Install it: "
            f"{how_to_install('timm')}; or name the classes in a file: --classes."
        ) from error
    subset = infer_imagenet_subset({"num_classes": num_classes})
    return ImageNetInfo(subset).label_names() if subset else None
