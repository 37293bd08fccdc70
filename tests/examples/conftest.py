"""timm and transformers, as the tests of conversion load them."""

from convert.conftest import timm, torchvision, transformers  # noqa: F401  fixtures
