"""The vision transformer of the paper (arXiv 2309.08586), after BigVision's, with timm's names.

Shapes: B batch, C channels, S image side, P patch side, N = (S / P) ** 2 patches, L tokens (N, or
N + 1 with a class token), E width, K classes.

    images [B, C, S, S] -> patches + positions [B, N, E] -> blocks [B, L, E] -> norm, pool [B, E]
    -> (tanh layer) -> head [B, K]

Where the two sources differ:
- GELU is exact by default, as timm's, so that timm's weights give timm's logits; BigVision's is
  the tanh approximation, ``gelu="tanh"``.
- Positions belong to patches only, as in BigVision; timm's extra one for the class token is a
  part of the token itself.
- gap normalizes, then averages, as BigVision does; timm's order is ``fc_norm=True``.
"""

import copy
import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.bounds import Bounds, Depth, Slots, Width, check_bounds
from flashpoint.errors import InputError, check_choice
from flashpoint.layers.attention import Attention
from flashpoint.layers.drop_path import DropPath
from flashpoint.layers.output import GATES, OUTPUT_NORMS, Gate, OutputNorm
from flashpoint.layers.positions import resize_positions, sine2d
from flashpoint.layers.qk_norm import QK_NORMS, QkNorm
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.pretrained import Pretrained
from flashpoint.models.timm_methods import TimmMethods
from flashpoint.ops.check import check_flag
from flashpoint.shapes import Float

Pool = Literal["gap", "token", "map"]
Positions = Literal["learned", "sine2d"]
Gelu = Literal["exact", "tanh"]
Side: TypeAlias = Annotated[int, Bounds(1, 65_536)]

_CHOICES = {
    "pool": ("gap", "token", "map"),
    "positions": ("learned", "sine2d"),
    "qk_norm": QK_NORMS,
    "gate": GATES,
    "output_norm": OUTPUT_NORMS,
    "gelu": ("exact", "tanh"),
}
_FLAGS = ("qkv_bias", "fc_norm", "pre_logits")


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTConfig:
    """A vision transformer; ``flashpoint.create_model`` fills in the usual sizes.

    Attributes:
        image_size, patch_size: sides in pixels; the patch divides the image.
        channels: of the images.
        num_classes: outputs of the head. 0: no head, the model returns its features.
        width, depth, num_heads, mlp_dim: E, blocks, heads, and units inside each MLP.
        pool: what becomes of the tokens: "gap" averages, "token" takes a class token, "map" lets a
            learned probe attend to them by softmax.
        positions: "learned", or sines of x and y ("sine2d").
        layer_scale: where a learned factor per channel on each branch starts. None: there is none.
        attention: the mathematics of every block's attention.
        qk_norm: of q and k in attention, "layer", "rms" or "none".
        gate: of the attention's output, "none", "sigmoid", "silu" or "identity".
        output_norm: of the same, before the gate: "none", "layer", "rms" or "gated_rms".
        qkv_bias: whether q, k and v have biases.
        gelu: "exact" or "tanh", its approximation.
        norm_eps: added to the variance in the norms.
        fc_norm: with gap, normalize after averaging, not before.
        pre_logits: one more layer with tanh before the head.
        head_bias: where the head's biases start; its kernel starts at zero.
        drop_path: how often training drops the last block's branches; the first block's never.
    """

    image_size: Side = 224
    patch_size: Side = 16
    channels: Annotated[int, Bounds(1, 4096)] = 3
    num_classes: Annotated[int, Bounds(0, 10_000_000)] = 1000
    width: Width
    depth: Depth
    num_heads: Width
    mlp_dim: Slots
    pool: Pool = "gap"
    positions: Positions = "learned"
    layer_scale: Annotated[float | None, Bounds(-1e6, 1e6)] = None
    attention: AttentionSpec = AttentionSpec()  # noqa: RUF009  frozen
    qk_norm: QkNorm = "layer"
    gate: Gate = "none"
    output_norm: OutputNorm = "none"
    qkv_bias: bool = True
    gelu: Gelu = "exact"
    norm_eps: Annotated[float, Bounds(0.0, 1.0, above=True)] = 1e-6
    fc_norm: bool = False
    pre_logits: bool = False
    head_bias: Annotated[float, Bounds(-1e6, 1e6)] = 0.0
    drop_path: Annotated[float, Bounds(0.0, 1.0, below=True)] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)
        for name, known in _CHOICES.items():
            check_choice(name, getattr(self, name), known)
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        object.__setattr__(self, "attention", AttentionSpec.parse(self.attention))
        if self.image_size % self.patch_size:
            raise InputError(
                f"image_size={self.image_size} is not a multiple of patch_size={self.patch_size}."
            )
        if self.width % self.num_heads:
            raise InputError(f"width={self.width} is not a multiple of {self.num_heads} heads.")
        if self.fc_norm and self.pool != "gap":
            raise InputError(f"fc_norm is an order of norm and averaging; pool={self.pool!r}.")

    @property
    def grid(self) -> int:
        """Patches along a side."""
        return self.image_size // self.patch_size


class PatchEmbed(nn.Module):
    """Patches as tokens: a convolution whose stride is its kernel, done as a linear layer.

    So tokens lie one after another, where a convolution leaves channels; all that follows would
    read them with strides, or copy them. And matrix products are faster than cuDNN here.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patch_size = side = config.patch_size
        self.proj = nn.Conv2d(config.channels, config.width, kernel_size=side, stride=side)

    def reset_parameters(self) -> None:
        """Flax's default for a convolution, which BigVision leaves as it is."""
        _lecun_normal_(self.proj.weight)
        _zero_bias(self.proj)

    def forward(self, images: Float[Tensor, "B C S S"]) -> Float[Tensor, "B N E"]:
        """Tokens row by row."""
        sides = (-1, self.patch_size)
        patches = images.unflatten(3, sides).unflatten(2, sides)  # [B, C, S/P, P, S/P, P]
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # [B, N, C P P]
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class Mlp(nn.Module):
    """Two layers with GELU between them."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.approximate = "tanh" if config.gelu == "tanh" else "none"
        self.fc1 = nn.Linear(config.width, config.mlp_dim)
        self.fc2 = nn.Linear(config.mlp_dim, config.width)

    def reset_parameters(self) -> None:
        """Xavier kernels, biases next to zero."""
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)

    def forward(self, x: Float[Tensor, "B L E"]) -> Float[Tensor, "B L E"]:
        """Token by token."""
        return self.fc2(F.gelu(self.fc1(x), approximate=self.approximate))


class LayerScale(nn.Module):
    """A learned factor per channel."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.gamma = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        """Every factor at its start."""
        nn.init.constant_(self.gamma, self.start)

    def forward(self, x: Float[Tensor, "B L E"]) -> Float[Tensor, "B L E"]:
        """Channels, each by its factor."""
        return x * self.gamma


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + mlp(norm(x)); training drops some of both."""

    def __init__(self, config: ViTConfig, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm1 = _norm(config)
        self.attn = Attention(
            config.width,
            config.num_heads,
            config.attention,
            qk_norm=config.qk_norm,
            gate=config.gate,
            output_norm=config.output_norm,
            qkv_bias=config.qkv_bias,
        )
        self.ls1 = _layer_scale(config)
        self.drop_path1 = DropPath(drop_path) if drop_path else nn.Identity()
        self.norm2 = _norm(config)
        self.mlp = Mlp(config)
        self.ls2 = _layer_scale(config)
        self.drop_path2 = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(
        self, x: Float[Tensor, "B L E"], attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Float[Tensor, "B L E"]:
        """Tokens in, tokens out; attn_mask and is_causal as for ``Attention``."""
        y = self.attn(self.norm1(x), attn_mask=attn_mask, is_causal=is_causal)
        x = x + self.drop_path1(self.ls1(y))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class AttentionPool(nn.Module):
    """BigVision's MAP head: a learned probe attends to the tokens, then a residual MLP."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads = config.num_heads
        self.latent = nn.Parameter(torch.empty(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = _norm(config)
        self.mlp = Mlp(config)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Xavier kernels, those of k and v apart, and a xavier probe."""
        nn.init.xavier_uniform_(self.latent.view(1, -1))
        for kernel in (self.q.weight, *self.kv.weight.chunk(2), self.proj.weight):
            nn.init.xavier_uniform_(kernel)
        for layer in (self.q, self.kv, self.proj):
            _zero_bias(layer)

    def forward(self, x: Float[Tensor, "B L E"]) -> Float[Tensor, "B E"]:
        """All tokens as one."""
        heads = (self.num_heads, -1)
        q = self.q(self.latent).expand(x.shape[0], -1, -1).unflatten(-1, heads)  # [B, 1, H, D]
        k, v = (t.unflatten(-1, heads) for t in self.kv(x).chunk(2, dim=-1))  # [B, L, H, D]
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        x = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return (x + self.mlp(self.norm(x)))[:, 0]  # [B, 1, E] -> [B, E]


class ViT(TimmMethods, Pretrained, config=ViTConfig):
    """A vision transformer with pointwise or softmax attention, and timm's methods.

    Example:
        >>> config = ViTConfig(image_size=32, patch_size=8, width=64, depth=2, num_heads=4,
        ...                    mlp_dim=128, num_classes=10)
        >>> ViT(config)(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        width, token = config.width, config.pool == "token"
        self.patch_embed = PatchEmbed(config)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width)) if token else None
        positions = torch.empty(1, config.grid**2, width)
        if config.positions == "learned":
            self.pos_embed = nn.Parameter(positions)
        else:
            self.register_buffer("pos_embed", positions, persistent=False)
        rates = torch.linspace(0.0, config.drop_path, config.depth, device="cpu").tolist()
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm = nn.Identity() if config.fc_norm else _norm(config)
        self.attn_pool = AttentionPool(config) if config.pool == "map" else None
        self.fc_norm = _norm(config) if config.fc_norm else nn.Identity()
        self.pre_logits = nn.Linear(width, width) if config.pre_logits else None
        self.head = nn.Linear(width, config.num_classes) if config.num_classes else nn.Identity()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start anew, as BigVision does."""
        parts = (PatchEmbed, Attention, LayerScale, Mlp, AttentionPool, nn.LayerNorm)
        for module in self.modules():
            if isinstance(module, parts):
                module.reset_parameters()
        if self.cls_token is not None:
            nn.init.zeros_(self.cls_token)
        if self.config.positions == "learned":
            nn.init.normal_(self.pos_embed, std=1.0 / math.sqrt(self.config.width))
        else:
            self.pos_embed.copy_(sine2d(self.config.grid, self.config.width))
        if self.pre_logits is not None:
            _lecun_normal_(self.pre_logits.weight)
            _zero_bias(self.pre_logits)
        self.reset_head()

    def reset_head(self) -> None:
        """The head's weights at their start: all classes get the same."""
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.constant_(self.head.bias, self.config.head_bias)

    def forward(
        self,
        images: Float[Tensor, "B C S S"],
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "B ..."]:
        """Logits; without a head, the features. Masks are those of every block's attention."""
        return self.forward_head(self.forward_features(images, attn_mask, is_causal))

    def features(self, images: Float[Tensor, "B C S S"]) -> Float[Tensor, "B ..."]:
        """What the head reads, and few-shot probes too."""
        return self.forward_head(self.forward_features(images), pre_logits=True)

    def forward_features(
        self,
        x: Float[Tensor, "B C S S"],
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "B L E"]:
        """Tokens after all blocks and the norm that follows them."""
        x = self.embed(x)
        for index in range(len(self.blocks)):
            x = self.run_block(index, x, attn_mask, is_causal)
        return self.norm(x)

    def forward_head(
        self, x: Float[Tensor, "B L E"], pre_logits: bool = False
    ) -> Float[Tensor, "B ..."]:
        """Logits of what ``forward_features`` gave; pre_logits: what the head reads."""
        x = self.fc_norm(self._pool(x))  # [B, E]
        x = x if self.pre_logits is None else self.pre_logits(x).tanh()
        return x if pre_logits else self.head(x)

    def embed(self, images: Float[Tensor, "B C S S"]) -> Float[Tensor, "B L E"]:
        """What the first block reads: patches with positions, behind the class token if any."""
        _check_images(images, self.config)
        x = self.patch_embed(images) + self.pos_embed  # [B, N, E]
        if self.cls_token is None:
            return x
        return torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)  # [B, N + 1, E]

    def _pool(self, x: Float[Tensor, "B L E"]) -> Float[Tensor, "B ..."]:
        if not self.global_pool:
            return x
        if self.attn_pool is not None:
            return self.attn_pool(x)
        return x.mean(1) if self.cls_token is None else x[:, 0]

    def with_image_size(self, image_size: int) -> "ViT":
        """A model for images of another size with these weights, learned positions interpolated.

        Example:
            >>> config = ViTConfig(image_size=32, patch_size=8, width=64, depth=1, num_heads=4,
            ...                    mlp_dim=128)
            >>> ViT(config).with_image_size(48).pos_embed.shape
            torch.Size([1, 36, 64])
        """
        config = dataclasses.replace(self.config, image_size=image_size)
        model = copy.deepcopy(self)  # with whatever was pruned, frozen or switched on
        model.config, old, grid = config, self.pos_embed.detach(), config.grid
        is_learned = config.positions == "learned"
        new = resize_positions(old, grid) if is_learned else sine2d(grid, config.width)
        model.pos_embed.data = new.to(old, copy=True)
        return model


def _check_images(images: Tensor, config: ViTConfig) -> None:
    channels, side = config.channels, config.image_size
    if images.dim() != 4 or images.shape[1:] != (channels, side, side):
        advice = " Resize them, or take model.with_image_size(...)."
        raise InputError(
            f"images have shape {list(images.shape)}, expected [B, {channels}, {side}, {side}]."
            + advice * (images.dim() == 4 and images.shape[1] == channels)
        )


def _norm(config: ViTConfig) -> nn.Module:
    return nn.LayerNorm(config.width, eps=config.norm_eps)


def _layer_scale(config: ViTConfig) -> nn.Module:
    if config.layer_scale is None:
        return nn.Identity()
    return LayerScale(config.width, config.layer_scale)


def _lecun_normal_(weight: Tensor) -> None:
    """A normal, cut at two deviations, that gives inputs of variance one outputs of it."""
    fan_in = weight[0].numel()
    std = fan_in**-0.5 / 0.87962566103423978  # the deviation of a normal that was cut so
    nn.init.trunc_normal_(weight, std=std, a=-2.0 * std, b=2.0 * std)


def _zero_bias(layer: nn.Linear | nn.Conv2d) -> None:
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
