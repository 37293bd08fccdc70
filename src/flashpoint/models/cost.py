"""What a model costs: parameters, tokens, and operations of its matrix products."""

from torch import nn

from flashpoint.models.reluformer import ReLUFormerConfig
from flashpoint.models.vit import ViTConfig

TRAINING_PASSES = 3.0
"""Forward, and backward for weights and for inputs."""


def num_parameters(model: nn.Module) -> int:
    """All that is learned."""
    return sum(parameter.numel() for parameter in model.parameters())


def num_tokens(config: ViTConfig) -> int:
    """L: the patches of an image, and the class token if there is one.

    Example:
        >>> from flashpoint.models.registry import model_config
        >>> num_tokens(model_config("vit_s16", pool="token"))
        197
    """
    return config.grid**2 + (config.pool == "token")


def forward_flops(config: ViTConfig) -> float:
    """Operations of all matrix products for one image, a multiply-add being two.

    The same for any activation, softmax too. Training takes about three times as many.

    Example:
        >>> from flashpoint.models.registry import model_config
        >>> f"{forward_flops(model_config('vit_s16')) / 1e9:.2f} GFLOPs"
        '9.15 GFLOPs'
    """
    width, tokens = config.width, num_tokens(config)
    patches = config.grid**2 * config.channels * config.patch_size**2 * width
    projections = (5 if config.gate != "none" else 4) * width  # q, k, v, proj, gate
    blocks = config.depth * tokens * width * (projections + 2 * config.mlp_dim)
    head = width * (config.num_classes + (width if config.pre_logits else 0))
    return 2.0 * (patches + blocks + _pool_products(config) + head) + attention_flops(config)


def attention_flops(config: ViTConfig) -> float:
    """The part of the blocks' scores and of their weights with v: quadratic in the tokens."""
    return 4.0 * config.depth * num_tokens(config) ** 2 * config.width


def _pool_products(config: ViTConfig) -> int:
    """Multiply-adds of the probe: q and proj of one token, k and v of all, and an MLP."""
    if config.pool != "map":
        return 0
    width, tokens = config.width, num_tokens(config)
    return width * (2 * width + 2 * tokens * width + 2 * tokens + 2 * config.mlp_dim)


def translation_flops(
    config: ReLUFormerConfig, source_tokens: float, target_tokens: float
) -> float:
    """The same for one document and its translation, as training sees them.

    Pairs that causality hides count too, as PyTorch counts them. The penalty is not part of it.

    Example:
        >>> from flashpoint.models.registry import text_model_config
        >>> f"{translation_flops(text_model_config('reluformer_base'), 512, 512) / 1e9:.1f} GFLOPs"
        '71.5 GFLOPs'
    """
    width, memory = config.width, 2 * config.mlp_dim
    gate = width if config.gate != "none" else 0  # one more projection of whoever looks
    encoder = config.encoder_depth * source_tokens * width * (4 * width + gate + memory)
    of_source = source_tokens * 2 * width  # k and v of cross-attention
    of_target = target_tokens * (6 * width + 2 * gate + memory)
    decoder = config.decoder_depth * width * (of_source + of_target)
    head = target_tokens * width * config.vocabulary_size
    attention = translation_attention_flops(config, source_tokens, target_tokens)
    return 2.0 * (encoder + decoder + head) + attention


def translation_attention_flops(
    config: ReLUFormerConfig, source_tokens: float, target_tokens: float
) -> float:
    """The part of scores and of weights with v, in encoder, decoder and between them."""
    encoder = config.encoder_depth * source_tokens**2
    decoder = config.decoder_depth * target_tokens * (target_tokens + source_tokens)
    return 4.0 * config.width * (encoder + decoder)
