"""Cross-entropies of predicted tokens, in training and in validation; padding has none."""

import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.lab.data.text.pieces import PAD
from flashpoint.lab.training.ranks import Ranks
from flashpoint.shapes import Float, Int


def sum_losses(
    logits: Float[Tensor, "B L V"], targets: Int[Tensor, "B L"], smoothing: float
) -> Float[Tensor, ""]:
    """The smoothed cross-entropy of all tokens together, in fp32; padding has none."""
    return F.cross_entropy(
        logits.float().flatten(0, 1),
        targets.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )


class TokenSums:
    """Right tokens and losses, summed over batches.

    Example:
        >>> sums = TokenSums()
        >>> logits = torch.tensor([[[0.0, 0.0, 9.0], [0.0, 9.0, 0.0], [9.0, 0.0, 0.0]]])
        >>> sums.add(logits, torch.tensor([[2, 2, PAD]]))
        >>> sums.numbers()["token_accuracy"]
        0.5
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    def add(self, logits: Float[Tensor, "B L V"], targets: Int[Tensor, "B L"]) -> None:
        """Count a batch; does not wait for the device."""
        exists = targets != PAD
        losses = sum_losses(logits, targets, smoothing=0.0)
        right = (logits.argmax(-1) == targets) & exists
        self._sums += torch.stack([x.double() for x in (losses, right.sum(), exists.sum())])

    def numbers(self, ranks: Ranks = Ranks()) -> dict[str, float]:  # noqa: B008  frozen
        """The mean cross-entropy, not smoothed, and the share of right guesses."""
        loss, right, count = ranks.sum_(self._sums.clone()).tolist()
        return {"loss": loss / count, "token_accuracy": right / count}
