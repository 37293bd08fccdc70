"""Building blocks of models, one family of modules a file."""

from flashpoint.layers.attention import Attention
from flashpoint.layers.memory import KeyValueMemory
from flashpoint.layers.named import NamedAttention

__all__ = ["Attention", "KeyValueMemory", "NamedAttention"]
