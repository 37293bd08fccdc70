"""Each test has a cache folder of its own."""

from lab.data.conftest import _own_cache

__all__ = ["_own_cache"]
