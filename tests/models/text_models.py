"""Small translation models and tokens for them."""

import dataclasses
import math

import torch

from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.reluformer import RELU_ATTENTION, ReLUFormer, ReLUFormerConfig

V = 50
SMALL = {"vocabulary_size": V, "width": 32, "encoder_depth": 2, "decoder_depth": 3}
SMALL |= {"num_heads": 4, "mlp_dim": 48}
SOFTMAX = AttentionSpec(activation="softmax")
PER_HEAD = dataclasses.replace(RELU_ATTENTION, gain="learned_per_head")
NUMBER = AttentionSpec(alpha=0.5, gain=math.sqrt(2) / 1.2)


def make(seed=0, **fields):
    torch.manual_seed(seed)
    return ReLUFormer(ReLUFormerConfig(**SMALL | fields)).eval()


def make_tokens(*shape, seed=1):
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed))
