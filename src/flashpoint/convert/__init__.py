"""Other people's models, read into ours; models as files for other runtimes."""

from flashpoint.convert.export import Exported, export_onnx, export_program, export_pt2
from flashpoint.convert.timm_vit import load_timm_vit
from flashpoint.convert.transformers_vit import load_transformers_vit

__all__ = [
    "Exported",
    "export_onnx",
    "export_program",
    "export_pt2",
    "load_timm_vit",
    "load_transformers_vit",
]
