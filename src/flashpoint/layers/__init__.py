"""Building blocks of models, one family of modules a file."""

from flashpoint.layers.attention import Attention
from flashpoint.layers.cache import KeyValueCache
from flashpoint.layers.drop_path import DropPath
from flashpoint.layers.memory import KeyValueMemory
from flashpoint.layers.multihead import MultiheadAttention
from flashpoint.layers.named import NamedAttention

__all__ = [
    "Attention",
    "DropPath",
    "KeyValueCache",
    "KeyValueMemory",
    "MultiheadAttention",
    "NamedAttention",
]
