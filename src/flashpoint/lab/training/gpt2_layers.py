"""The replaced layers of a GPT-2, as adaptation compares, calibrates and matches them."""

from typing import Any

from torch import Tensor, nn

from flashpoint.convert.calibrate import fit_numbers
from flashpoint.lab.training.language_model import WHICH, logits_of, replaced_sites, without_cache
from flashpoint.lab.training.matching import Part


class GPT2Layers:
    """As ``matching.Layers`` wants it.

    Args:
        layers: which of the blocks are replaced, as a config says it.
    """

    def __init__(self, layers: str) -> None:
        self._which = WHICH[layers]

    def of(self, model: Any) -> list[nn.Module]:
        """The attention of those blocks."""
        return [block.attn for block in model.transformer.h][self._which]

    def call(self, model: Any, inputs: Tensor) -> None:
        """Let the model read rows of tokens."""
        logits_of(model, inputs, logits_to_keep=1)

    def parts(self, layer: Any) -> list[Part]:
        """q and k, which are the first columns, and what is learned for each head."""
        columns = 2 * layer.embed_dim
        found = [Part(layer.c_attn.weight, 1, columns), Part(layer.c_attn.bias, 0, columns)]
        return found + [Part(number) for number in layer.substitute.parameters()]


def calibrate_gpt2(student: Any, batches: list[Tensor]) -> None:
    """Give every replaced head the numbers with which it follows softmax best.

    Args:
        student: has the teacher's weights; gain, bias and scale are learned per head.
        batches: rows of tokens, on the model's device.
    """
    substitutes = {site: site.substitute for site in replaced_sites(student)}
    calls = [{"input_ids": ids, "logits_to_keep": 1, **without_cache()} for ids in batches]
    fit_numbers(student, {s: x for s, x in substitutes.items() if x is not None}, calls)
