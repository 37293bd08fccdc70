"""timm, as the tests of conversion load it."""

from convert.conftest import timm, torchvision  # noqa: F401  fixtures
