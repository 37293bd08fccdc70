"""Other people's models: read into ours, or with another attention inside; models as files."""

from flashpoint.convert import transformers
from flashpoint.convert.export import Exported, export_onnx, export_program, export_pt2
from flashpoint.convert.replace import replace_attention, restore_attention
from flashpoint.convert.timm_vit import load_timm_vit
from flashpoint.convert.transformers_vit import load_transformers_vit

__all__ = [
    "Exported",
    "export_onnx",
    "export_program",
    "export_pt2",
    "load_timm_vit",
    "load_transformers_vit",
    "replace_attention",
    "restore_attention",
    "transformers",
]
