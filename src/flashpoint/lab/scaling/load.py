"""What a model asks of a GPU: operations, bytes that pass by, and bytes that are kept.

E width, M units of an MLP. Steps are those of ``flashpoint train``: compiled, in bf16 autocast,
the residual stream and AdamW in fp32. Bytes are counted for what a compiler leaves: an elementwise
chain reads its inputs once and writes its outputs once.
"""

from dataclasses import dataclass

import torch

from flashpoint.models.cost import num_parameters
from flashpoint.models.registry import image_model_config, sizes_of
from flashpoint.models.vit import ViT, ViTConfig

OPTIMIZER_BYTES = 32
"""Read and written for each parameter: weight, gradient and two moments; the norm for clipping."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A model as numbers; those of a token are for one block.

    Attributes:
        num_kv_heads: heads of keys and values, which groups of query heads may share.
        is_causal: whether a token sees only those before it.
        num_parameters: without positions, which are not learned at such lengths.
        token_flops: of the matrix products of all blocks and of the patches, forward.
        sample_flops: of the head.
        input_bytes: of a token's pixels.
    """

    name: str
    width: int
    depth: int
    num_heads: int
    num_kv_heads: int
    mlp_dim: int
    has_qk_norm: bool
    is_causal: bool
    num_parameters: int
    token_flops: float
    sample_flops: float
    input_bytes: int

    @property
    def head_dim(self) -> int:
        """D."""
        return self.width // self.num_heads

    @property
    def kv_width(self) -> int:
        """Of a token's keys, and of its values."""
        return self.num_kv_heads * self.head_dim

    def matrix_flops(self, tokens: int) -> float:
        """Of a sample's matrix products but attention's, forward."""
        return tokens * self.token_flops + self.sample_flops

    def attention_flops(self, tokens: int) -> float:
        """Of one block's scores and weights with v, forward: 4 L^2 E, half of it if causal."""
        return (2.0 if self.is_causal else 4.0) * tokens**2 * self.width

    def passed_bytes(self, *, has_fused_norm: bool) -> tuple[int, int]:
        """Read and written elementwise for a token, forward and backward.

        Two norms with the residual beside them, GELU, and the sums that biases' gradients are. A
        norm of q and k costs its own bytes where it is not a part of the kernel.
        """
        E, M = self.width, self.mlp_dim
        own = self.has_qk_norm and not has_fused_norm
        return 24 * E + 4 * M + 8 * E * own, 38 * E + 8 * M + 12 * E * own

    def kept_bytes(self, *, has_fused_norm: bool) -> int:
        """That forward keeps of a token for backward.

        The residual twice in fp32; in bf16 both norms' outputs, q, k, v and o, and the MLP before
        and behind GELU.
        """
        own = self.has_qk_norm and not has_fused_norm
        return 20 * self.width + 4 * self.mlp_dim + 4 * self.width * own

    @property
    def boundary_bytes(self) -> int:
        """That checkpointing keeps of a token: a block's input, in fp32."""
        return 4 * self.width

    @property
    def working_bytes(self) -> int:
        """Of a token's gradients inside the block that is differentiated."""
        return 8 * self.width + 4 * self.mlp_dim


def load_of(name: str) -> Load:
    """Of a model of images by its name, with its usual settings.

    Example:
        >>> load_of("vit_l16").head_dim
        64
    """
    patch = sizes_of(name)["patch_size"]
    config = image_model_config(name, positions="sine2d", image_size=patch)
    with torch.device("meta"):
        parameters = num_parameters(ViT(config))
    pixels = config.channels * config.patch_size**2
    return Load(
        name=name,
        width=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        num_kv_heads=config.num_heads,
        mlp_dim=config.mlp_dim,
        has_qk_norm=config.qk_norm != "none",
        is_causal=False,
        num_parameters=parameters,
        token_flops=2.0 * config.width * (pixels + _block_products(config)),
        sample_flops=2.0 * config.width * config.num_classes,
        input_bytes=4 * pixels,
    )


def _block_products(config: ViTConfig) -> int:
    """Multiply-adds of all blocks for a token and a channel: q, k, v, proj and the MLP."""
    return config.depth * (4 * config.width + 2 * config.mlp_dim)
