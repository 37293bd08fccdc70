"""Our vision transformers among timm's models: ``timm.create_model("flashpoint_vit_s16")``."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from torch import nn

from flashpoint.errors import UnsupportedError
from flashpoint.models.registry import create_model, list_models, sizes_of
from flashpoint.models.vit import ViT

PREFIX = "flashpoint_"


def register_with_timm(*names: str) -> list[str]:
    """Make ViTs known to timm, and give their names there; a second call changes nothing.

    ``timm.create_model`` then takes timm's settings (num_classes, in_chans, img_size,
    global_pool, drop_path_rate, features_only, out_indices) and ours (attention, qk_norm, ...).
    There are no pretrained weights.

    Args:
        names: as for ``flashpoint.create_model``, with any patch size. None: all that
            ``list_models`` names.

    Example:
        >>> import timm  # doctest: +SKIP
        >>> register_with_timm()  # doctest: +SKIP
        >>> timm.create_model("flashpoint_vit_s16", attention="relu4/sum")  # doctest: +SKIP
    """
    from timm.models import is_model, register_model

    names = names or tuple(list_models("vit_*"))
    for name in names:
        sizes_of(name)  # refuse what is no model's name now, not when it is created
        if not is_model(PREFIX + name):
            register_model(_entry_of(name))
    return [PREFIX + name for name in names]


def _entry_of(name: str) -> Any:
    """What timm calls for a model; it reads the name and the module of a function."""

    def entry(pretrained: bool = False, **settings: Any) -> nn.Module:
        return _build(name, pretrained, **settings)

    entry.__name__ = entry.__qualname__ = PREFIX + name
    entry.__doc__ = f"Flashpoint's {name}."
    return entry


def _build(name: str, pretrained: bool, **settings: Any) -> nn.Module:
    """A model as timm builds its own, wrapped where features only are asked for."""
    from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
    from timm.models import build_model_with_cfg

    if pretrained:
        raise UnsupportedError(
            f"{PREFIX}{name} has no pretrained weights. Pass pretrained=False, and "
            "checkpoint_path for weights of your own."
        )
    for word in ("drop_rate", "attn_drop_rate", "proj_drop_rate", "pos_drop_rate"):
        share = settings.pop(word, 0.0)
        if share:
            raise UnsupportedError(
                f"{word}={share:g}: {PREFIX}{name} drops whole branches only. Give drop_path_rate."
            )
    about = {
        "architecture": PREFIX + name,
        "input_size": _input_size(settings),
        "fixed_input_size": True,
        "num_classes": 1000,
        "mean": IMAGENET_INCEPTION_MEAN,
        "std": IMAGENET_INCEPTION_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    settings["pretrained_cfg"] = settings.get("pretrained_cfg") or about
    features = {"out_indices": 3, "feature_cls": "getter"}
    make = partial(_make, name)
    return build_model_with_cfg(make, PREFIX + name, False, feature_cfg=features, **settings)


def _input_size(settings: Mapping[str, Any]) -> tuple[int, int, int]:
    """Channels and sides of the images that a model with these settings reads."""
    side = settings.get("img_size", settings.get("image_size", 224))
    sides = cast("list[Any]", side if isinstance(side, (tuple, list)) else [side, side])
    rows, columns = sides if len(sides) == 2 else (0, 0)  # which the model refuses
    return settings.get("in_chans", settings.get("channels", 3)), rows, columns


def _make(name: str, **settings: Any) -> ViT:
    """The model; timm's global_pool="" leaves all tokens to the head."""
    pools = settings.get("global_pool") != ""
    if not pools:
        del settings["global_pool"]
    model = create_model(name, **settings)
    assert isinstance(model, ViT)
    if not pools:
        model.reset_classifier(model.num_classes, "")
    return model
