"""What timm's tools ask of a vision transformer, beside calling it.

Names, arguments and results are those of ``timm.models.VisionTransformer``, so that timm's
training loops, layer decay, feature extraction and head replacement work on ours. timm itself is
not needed.

Shapes: B batch, C channels, S image side, L tokens, E width, G patches along a side.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flashpoint.errors import InputError, UnsupportedError, check_choice
from flashpoint.shapes import Float

if TYPE_CHECKING:
    from flashpoint.models.vit import ViTConfig

POOLS = {"avg": "gap", "token": "token", "map": "map"}
"""timm's words for pooling, and ours."""

Indices = int | Sequence[int] | None


class TimmMethods(nn.Module):
    """The part of ``ViT`` that timm's tools call.

    Attributes:
        global_pool: timm's word for what becomes of the tokens; "" leaves them as they are.
        grad_checkpointing: whether training computes the blocks again instead of keeping what
            they computed.
    """

    _beyond_config = ("global_pool",)
    config: "ViTConfig"
    blocks: nn.ModuleList
    norm: nn.Module
    fc_norm: nn.Module
    attn_pool: nn.Module | None
    cls_token: nn.Parameter | None
    pos_embed: Tensor
    head: nn.Module

    def __init__(self, config: "ViTConfig") -> None:
        super().__init__()
        self.config = config
        self.global_pool = next(word for word, pool in POOLS.items() if pool == config.pool)
        self.grad_checkpointing = False

    @property
    def num_classes(self) -> int:
        """Outputs of the head; 0 where there is none."""
        return self.config.num_classes

    @property
    def num_features(self) -> int:
        """E, the width of every token."""
        return self.config.width

    embed_dim = head_hidden_size = num_features

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before those of the patches."""
        return 0 if self.cls_token is None else 1

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """What ``forward_intermediates`` gives for each block."""
        shape = {"num_chs": self.config.width, "reduction": self.config.patch_size}
        return [{"module": f"blocks.{i}", **shape} for i in range(len(self.blocks))]

    def embed(self, images: Float[Tensor, "B C S S"]) -> Float[Tensor, "B L E"]:
        """What the first block reads."""
        raise NotImplementedError

    def reset_head(self) -> None:
        """The head's weights at their start."""
        raise NotImplementedError

    def run_block(
        self, index: int, x: Float[Tensor, "B L E"], attn_mask: Tensor | None, is_causal: bool
    ) -> Float[Tensor, "B L E"]:
        """One block, computed again in backward where checkpointing is on."""
        block = self.blocks[index]
        options: dict[str, Any] = {"attn_mask": attn_mask, "is_causal": is_causal}
        run = block if attn_mask is None and not is_causal else partial(block, **options)
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(run, x, use_reentrant=False)  # pyright: ignore[reportReturnType]
        return run(x)

    def forward_intermediates(
        self,
        x: Float[Tensor, "B C S S"],
        indices: Indices = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        """What blocks give, beside the features after the last of them.

        Args:
            x: images.
            indices: of blocks; a number means the last so many, None all.
            return_prefix_tokens: pair each result with the class token, if there is one.
            norm: pass each result through the last norm.
            stop_early: leave out the blocks behind the last one asked for.
            output_fmt: "NCHW" for [B, E, G, G], "NLC" for [B, L, E].
            intermediates_only: the list alone.
            output_dict: a dict with image_features, image_intermediates and, if asked for,
                image_intermediates_prefix.
            attn_mask, is_causal: of every block's attention, as timm's.

        Returns:
            (features, intermediates), or as the arguments say.
        """
        check_choice("output_fmt", output_fmt, ("NCHW", "NLC"))
        taken = take_indices(len(self.blocks), indices)
        x = self.embed(x)
        found: list[Tensor] = []
        for i in range(max(taken) + 1 if stop_early else len(self.blocks)):
            x = self.run_block(i, x, attn_mask, is_causal)
            if i in taken:
                found.append(self.norm(x) if norm else x)
        first = self.num_prefix_tokens
        prefix = [y[:, :first] for y in found] if first and return_prefix_tokens else None
        found = [y[:, first:] for y in found]
        if output_fmt == "NCHW":
            grid = self.config.grid
            found = [y.mT.unflatten(2, (grid, grid)).contiguous() for y in found]
        if output_dict:
            extra = {} if prefix is None else {"image_intermediates_prefix": prefix}
            features = {} if intermediates_only else {"image_features": self.norm(x)}
            return {"image_intermediates": found, **extra, **features}
        result = found if prefix is None else list(zip(found, prefix, strict=True))
        return result if intermediates_only else (self.norm(x), result)

    def prune_intermediate_layers(
        self, indices: Indices = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what ``forward_intermediates`` does not need for these; gives them counted from 0.

        The model then is one for features only.
        """
        taken = take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: max(taken) + 1]
        self.config = dataclasses.replace(self.config, depth=len(self.blocks))
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.fc_norm = nn.Identity()
            self.reset_classifier(0, "")
        return taken

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Put a new head in place of the head.

        Args:
            num_classes: its outputs; 0 for none.
            global_pool: other pooling of the tokens, in timm's words: "avg", "token", "map", or
                "" to leave them as they are. None: as it was.
        """
        config = dataclasses.replace(self.config, num_classes=num_classes)
        if global_pool is not None:
            self._change_pool(global_pool)
            config = dataclasses.replace(config, pool=self.config.pool)
        self.config = config
        head = nn.Linear(config.width, num_classes) if num_classes else nn.Identity()
        self.head = head.to(self.pos_embed).train(self.training)
        self.reset_head()

    def _change_pool(self, global_pool: str) -> None:
        """Pool otherwise, if the model has the parts for it; parts not needed go."""
        check_choice("global_pool", global_pool, (*POOLS, ""))
        has, wanted = self.config.pool, POOLS.get(global_pool)
        if wanted not in (None, has) and (has, wanted) != ("map", "gap"):
            raise UnsupportedError(
                f"global_pool={global_pool!r} needs parts that a model with pool={has!r} lacks. "
                f"Create one with pool={wanted!r}."
            )
        if has == "map" and wanted != "map":
            self.attn_pool = None
            self.config = dataclasses.replace(self.config, pool="gap")
        self.global_pool = global_pool

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Let training compute each block again in backward, for less memory; or stop doing so."""
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Parameters that are no kernels though they have two dims or more."""
        return {"pos_embed", "cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Which parameters stand at which depth, for layer-wise rates."""
        blocks = [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]
        return {"stem": r"^cls_token|pos_embed|patch_embed", "blocks": blocks}


def take_indices(count: int, indices: Indices) -> list[int]:
    """Indices of blocks, counted from 0: all, the last so many, or those given.

    Example:
        >>> take_indices(12, None)[-1], take_indices(12, 3), take_indices(12, [0, -1])
        (11, [9, 10, 11], [0, 11])
    """
    if isinstance(indices, int) or indices is None:
        last = count if indices is None else indices
        if not 0 < last <= count:
            raise InputError(f"indices={indices}: the last blocks must be 1 to {count}.")
        return list(range(count - last, count))
    taken = [i + count if i < 0 else i for i in indices]
    if not taken or not all(0 <= i < count for i in taken):
        raise InputError(
            f"indices={list(indices)} must be places of {count} blocks, from {-count} to "
            f"{count - 1}."
        )
    return taken
