"""Attention of Hugging Face's models: by ``attn_implementation=``, or module by module."""

from flashpoint.convert.transformers.registration import register
from flashpoint.convert.transformers.sites import find

__all__ = ["find", "register"]
