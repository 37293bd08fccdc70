"""Mixup: every image and target blended with the neighbour's, by one share for the batch."""

from torch import Tensor, cat

from flashpoint.lab.data.order import Purpose, generator
from flashpoint.shapes import Float


def mixup_share(p: float, seed: int, step: int) -> float:
    """The share l of the image itself: max(l, 1 - l) with l ~ Beta(p, p); 1 if p is 0.

    Example:
        >>> mixup_share(0.2, seed=0, step=7) == mixup_share(0.2, seed=0, step=7) >= 0.5
        True
    """
    if p == 0.0:
        return 1.0
    share = float(generator(seed, Purpose.MIXUP, step).beta(p, p))
    return max(share, 1.0 - share)


def mixup(
    images: Float[Tensor, "B C S S"],
    targets: Float[Tensor, "B K"],
    p: float,
    seed: int,
    step: int,
    *,
    neighbour: tuple[Float[Tensor, "1 C S S"], Float[Tensor, "1 K"]] | None = None,
) -> tuple[Float[Tensor, "B C S S"], Float[Tensor, "B K"]]:
    """Both blended: ``l * x + (1 - l) * x rolled by one``, where l follows from (seed, step).

    Args:
        images, targets: of one rank, on any device; targets one-hot.
        p: of Beta(p, p); 0 gives back what came in.
        seed, step: of the run and the batch.
        neighbour: image and target that stand before the first in the global batch, from
            ``Batch.neighbour``. None: the last of this batch, which is right on one rank.

    Example:
        >>> import torch
        >>> images, targets = torch.zeros(2, 1, 1, 1), torch.eye(2)
        >>> mixup(images, targets, 0.5, seed=0, step=0)[1].sum(1)
        tensor([1., 1.])
    """
    share = mixup_share(p, seed, step)
    if share == 1.0:
        return images, targets
    first = (images[-1:], targets[-1:]) if neighbour is None else neighbour
    mixed = [
        share * own + (1.0 - share) * cat((before, own[:-1]))
        for own, before in zip((images, targets), first, strict=True)
    ]
    return mixed[0], mixed[1]
