"""What of a model is exported, and with which inputs: ours by themselves, others as they are told.

A ViT maps images to logits, for any number of images. A ReLUFormer's encoder maps tokens to the
vectors that a decoder reads, for any number of samples of any length. A causal language model of
transformers, converted or not, maps tokens to logits, likewise. Of any other module the caller
gives an example.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flashpoint.errors import InputError, describe
from flashpoint.models.reluformer import ReLUFormer
from flashpoint.models.vit import ViT
from flashpoint.shapes import Float, Int

BATCH, LENGTH = "batch", "length"
_SIZES = ((2, 7), (3, 12))  # samples and tokens of the example, and of another one to compare with


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A module and its inputs.

    Attributes:
        module: what is traced.
        args, kwargs: its example.
        shapes: axes that may change, as ``torch.export`` takes them, with names for its dims;
            None: none may.
        others: examples of other sizes that the program must serve, too.
        inputs, outputs: their names in an ONNX file; None: those of the module's arguments.
    """

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any]
    shapes: Any = None
    others: Sequence[tuple[Any, ...]] = ()
    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None


class Encoder(nn.Module):
    """The encoder of a ReLUFormer as a module of its own."""

    def __init__(self, model: ReLUFormer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, source: Int[Tensor, "B Ls"], source_lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B Ls E"]:
        """What cross-attention reads; tokens at or past a sample's length do not exist."""
        return self.model.encode(source, source_lengths)


class CausalLanguageModel(nn.Module):
    """A causal language model of transformers, of whole rows: no cache, logits alone.

    There is no mask of padding: a token sees those before it, so rows padded on the right have the
    same logits where they have tokens. An attention with ``length="keys"`` counts padding, too.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        """For every token the logits of the next one."""
        return self.model(input_ids=input_ids, use_cache=False).logits


def served(model: Any, example: Any = None, dynamic_shapes: Any = None) -> Served:
    """What a call of an export is about.

    Args:
        model: any module.
        example: its inputs: a tensor, a tuple of arguments, or a mapping of them by name. None:
            made here, for a ViT, a ReLUFormer or a causal language model of transformers.
        dynamic_shapes: axes that may change, as ``torch.export`` takes them; a word names an axis.
            Of an example made here they are known.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module. Got {describe(model)}.")
    if example is None:
        if dynamic_shapes is not None:
            raise InputError("dynamic_shapes are those of an example, and none is given.")
        return _ours(model)
    if isinstance(example, Tensor):
        example = (example,)
    if isinstance(example, Mapping):
        return Served(module=model, kwargs=dict(example), shapes=dynamic_shapes)
    if not isinstance(example, (tuple, list)):
        raise InputError(
            "example must be a tensor, a tuple of arguments or a mapping of them. "
            f"Got {describe(example)}."
        )
    return Served(module=model, args=tuple(example), kwargs={}, shapes=dynamic_shapes)


def _ours(model: nn.Module) -> Served:
    """With examples by a seed of their own; a seed of the caller's stays where it is."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, ViT):
        config, images = model.config, []
        device, dtype = model.pos_embed.device, model.pos_embed.dtype
        for batch, _ in _SIZES:
            shape = (batch, config.channels, config.image_size, config.image_size)
            images.append((torch.randn(shape, generator=generator).to(device, dtype),))
        return Served(
            module=model,
            args=images[0],
            kwargs={},
            shapes=({0: BATCH},),
            others=images[1:],
            inputs=("images",),
            outputs=("logits" if config.num_classes else "features",),
        )
    if isinstance(model, ReLUFormer):
        device, tokens = model.embed.weight.device, []
        for shape in _SIZES:
            source = torch.randint(model.config.vocabulary_size, shape, generator=generator)
            lengths = torch.arange(shape[1], shape[1] - shape[0], -1)  # of which the first is full
            tokens.append((source.to(device), lengths.to(device)))
        return Served(
            module=Encoder(model),
            args=tokens[0],
            kwargs={},
            shapes=({0: BATCH, 1: LENGTH}, {0: BATCH}),
            others=tokens[1:],
            inputs=("source", "source_lengths"),
            outputs=("encoded",),
        )
    if _is_causal_language_model(model):
        return _text(model, generator)
    raise InputError(
        f"the inputs of {type(model).__name__} are not known. Give an example of them: "
        "a tensor, a tuple of arguments or a mapping of them."
    )


def _is_causal_language_model(model: Any) -> bool:
    """Whether a model of transformers maps tokens, and nothing else, to logits."""
    loaded = sys.modules.get("transformers.modeling_utils")
    return (
        loaded is not None
        and isinstance(model, loaded.PreTrainedModel)
        and model.can_generate()
        and model.main_input_name == "input_ids"
        and not model.config.is_encoder_decoder
    )


def _text(model: Any, generator: torch.Generator) -> Served:
    table = model.get_input_embeddings()
    most = getattr(model.config, "max_position_embeddings", None) or _SIZES[-1][1]
    rows = [
        (
            torch.randint(
                table.num_embeddings, (batch, min(length, most)), generator=generator
            ).to(table.weight.device),
        )
        for batch, length in _SIZES
    ]
    return Served(
        module=CausalLanguageModel(model),
        args=rows[0],
        kwargs={},
        shapes=({0: BATCH, 1: LENGTH},),
        others=rows[1:],
        inputs=("input_ids",),
        outputs=("logits",),
    )
