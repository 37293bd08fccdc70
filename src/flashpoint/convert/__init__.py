"""Other people's models: read into ours, or with another attention inside."""

from flashpoint.convert import transformers
from flashpoint.convert.replace import replace_attention, restore_attention
from flashpoint.convert.timm_vit import load_timm_vit
from flashpoint.convert.transformers_vit import load_transformers_vit

__all__ = [
    "load_timm_vit",
    "load_transformers_vit",
    "replace_attention",
    "restore_attention",
    "transformers",
]
