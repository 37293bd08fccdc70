"""The kernel in C++ as tests know it: whether there is one, and a shape that it serves."""

import pytest

from flashpoint.ops.cpu.native import build

needs_kernel = pytest.mark.skipif(
    build.why_not() is not None, reason=f"no kernel in C++ here: {build.why_not()}"
)
SHAPE = (2, 4, 2, 70, 150, 24, 40)
