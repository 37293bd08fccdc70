"""Our models by timm's create_model, in what timm's scripts do with them."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from flashpoint import InputError, UnsupportedError, list_models
from flashpoint.models.registry import model_config
from flashpoint.models.timm_registry import register_with_timm
from flashpoint.models.vit import ViT

TINY = {"depth": 2, "width": 32, "num_heads": 4, "img_size": 32, "num_classes": 10}


@pytest.fixture(scope="module")
def registered(timm):
    register_with_timm()
    return timm


def test_every_listed_vit_has_a_name_of_timms(registered):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # timm warns of names that are registered again
        names = register_with_timm()
    assert names == [f"flashpoint_{name}" for name in list_models("vit_*")]
    assert set(names) <= set(registered.list_models("flashpoint_*"))


def test_timms_settings_reach_the_config(registered):
    model = registered.create_model(
        "flashpoint_vit_s16",
        **TINY | {"in_chans": 1},
        global_pool="token",
        drop_path_rate=0.2,
        drop_rate=0.0,
        attention="relu4/sum",
    )
    assert isinstance(model, ViT)
    sizes = {"depth": 2, "width": 32, "num_heads": 4, "num_classes": 10, "attention": "relu4/sum"}
    ours = {"image_size": 32, "channels": 1, "pool": "token", "drop_path": 0.2}
    assert model.config == model_config("vit_s16", **sizes, **ours)
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 10)
    assert model.pretrained_cfg["input_size"] == (1, 32, 32)
    assert registered.data.resolve_data_config({}, model=model)["input_size"] == (1, 32, 32)


def test_any_patch_size_can_be_registered(registered):
    assert register_with_timm("vit_ti2") == ["flashpoint_vit_ti2"]
    model = registered.create_model("flashpoint_vit_ti2", **TINY | {"img_size": 4})
    assert model.config.patch_size == 2
    with pytest.raises(InputError, match="model 'vit_x2' is unknown"):
        register_with_timm("vit_x2")


def test_name_alone_is_our_model(registered):
    with torch.device("meta"):
        model = registered.create_model("flashpoint_vit_ti8")
    assert model.config == model_config("vit_ti8")


@pytest.mark.parametrize("pool", ["", "avg", "map"])
def test_backbone_has_no_head(registered, pool):
    sizes = TINY | {"num_classes": 0}
    model = registered.create_model("flashpoint_vit_ti16", **sizes, global_pool=pool)
    shape = (2, 32) if pool else (2, 4, 32)
    assert model(torch.randn(2, 3, 32, 32)).shape == shape


@pytest.mark.parametrize("out_indices", [None, (0,), (-2, -1)])
def test_features_only_are_maps_of_blocks(registered, out_indices):
    options = {} if out_indices is None else {"out_indices": out_indices}
    sizes = TINY | {"depth": 4}
    model = registered.create_model(
        "flashpoint_vit_ti8", **sizes, features_only=True, global_pool="token", **options
    )
    maps = model(torch.randn(2, 3, 32, 32))
    assert [tuple(x.shape) for x in maps] == [(2, 32, 4, 4)] * (len(out_indices or (1, 2, 3)))
    assert model.feature_info.channels() == [32] * len(maps)
    assert model.feature_info.reduction() == [8] * len(maps)


def test_timms_training_loop_learns(registered):
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import ModelEmaV3

    torch.manual_seed(0)
    model = registered.create_model("flashpoint_vit_ti8", **TINY, drop_path_rate=0.1)
    model.set_grad_checkpointing()
    optimizer = create_optimizer_v2(
        model, opt="adamw", lr=8e-3, weight_decay=0.05, layer_decay=0.9
    )
    schedule = CosineLRScheduler(optimizer, t_initial=50, warmup_t=3, warmup_lr_init=1e-5)
    average, loss_of = ModelEmaV3(model, decay=0.9), SoftTargetCrossEntropy()
    mixup = Mixup(mixup_alpha=0.1, num_classes=10)
    images, labels = torch.randn(20, 3, 32, 32), torch.arange(20) % 10
    before = F.cross_entropy(model(images), labels)
    for step in range(50):
        mixed, targets = mixup(images.clone(), labels)  # it mixes in place
        loss = loss_of(model(mixed), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step(step)
        average.update(model)
    assert F.cross_entropy(model.eval()(images), labels) < 0.3 * before
    assert average.module(images).shape == (20, 10)


def test_timms_checkpoint_is_read_again(registered, tmp_path):
    model = registered.create_model("flashpoint_vit_ti16", **TINY)
    torch.nn.init.normal_(model.head.weight)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "model.pth")
    again = registered.create_model(
        "flashpoint_vit_ti16", **TINY, checkpoint_path=str(tmp_path / "model.pth")
    )
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(images), model(images))


def test_what_we_have_not_is_one_line(registered):
    for settings, error, message in (
        ({"pretrained": True}, UnsupportedError, "flashpoint_vit_s16 has no pretrained weights"),
        ({"drop_rate": 0.1}, UnsupportedError, r"drop_rate=0\.1: flashpoint_vit_s16 drops whole"),
        ({"reg_tokens": 4}, InputError, "vit_s16 has no setting 'reg_tokens'"),
        ({"img_size": (32, 64)}, InputError, r"img_size=\(32, 64\): images must be square"),
        ({"img_size": (32,)}, InputError, r"img_size=\(32,\): images must be square"),
    ):
        with pytest.raises(error, match=message):
            registered.create_model("flashpoint_vit_s16", **settings)
