"""timm and transformers import torchvision, whose wheels lack operators beside a CPU torch.

Where its import fails for that, operators of the names that it asks for are enough for them.
"""

import importlib
import warnings

import pytest
import torch


def import_quietly(name):
    """A foreign package, or a skip where it is missing; deprecations inside it are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return pytest.importorskip(name)


@pytest.fixture(scope="session")
def torchvision():
    try:
        return import_quietly("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    for name in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", schema)
    return importlib.import_module("torchvision")


@pytest.fixture(scope="session")
def timm(torchvision):
    return import_quietly("timm")


@pytest.fixture(scope="session")
def transformers(torchvision):
    package = import_quietly("transformers")
    import_quietly("transformers.models.vit.modeling_vit")
    return package
