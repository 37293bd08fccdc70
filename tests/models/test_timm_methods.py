"""timm's methods on our ViT, beside timm's own model with the same weights."""

import dataclasses
import itertools
import random

import pytest
import torch
from torch import nn

from flashpoint import InputError, UnsupportedError
from flashpoint.convert.timm_vit import load_timm_vit
from flashpoint.models.vit import ViT, ViTConfig

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 4}
SMALL |= {"num_classes": 5, "in_chans": 2}
OURS = {"image_size": 16, "patch_size": 4, "channels": 2, "num_classes": 5, "width": 32}
OURS |= {"depth": 3, "num_heads": 4, "mlp_dim": 64}
POOLS = ["token", "avg", "map"]
IMAGES = torch.randn(3, 2, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def pairs(timm):
    """timm's models and ours with their weights, by timm's word for pooling."""
    made = {}
    for pool in POOLS:
        torch.manual_seed(0)
        settings = SMALL | {"global_pool": pool, "class_token": pool == "token"}
        theirs = timm.models.VisionTransformer(**settings).eval()
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, std=0.2)
        made[pool] = theirs, load_timm_vit(theirs).eval()
    return made


def make(**fields):
    torch.manual_seed(0)
    return ViT(ViTConfig(**OURS | fields))


def assert_alike(got, expected):
    """Of nested lists, tuples and dicts of tensors."""
    assert type(got) is type(expected)
    if isinstance(got, dict):
        assert got.keys() == expected.keys()
        got, expected = list(got.values()), list(expected.values())
    if isinstance(got, torch.Tensor):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    else:
        assert len(got) == len(expected)
        for pair in zip(got, expected, strict=True):
            assert_alike(*pair)


@pytest.mark.parametrize("pool", POOLS)
def test_features_and_head_are_timms(pairs, pool):
    theirs, ours = pairs[pool]
    x = ours.forward_features(IMAGES)
    assert_alike(x, theirs.forward_features(IMAGES))
    for pre_logits in (False, True):
        expected = theirs.forward_head(x, pre_logits=pre_logits)
        assert_alike(ours.forward_head(x, pre_logits=pre_logits), expected)
    assert torch.equal(ours.forward_head(x), ours(IMAGES))
    assert torch.equal(ours.forward_head(x, pre_logits=True), ours.features(IMAGES))
    names = ("num_features", "head_hidden_size", "embed_dim", "num_classes", "global_pool")
    for name in (*names, "num_prefix_tokens", "feature_info"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.get_classifier() is ours.head


def test_masks_reach_every_block(pairs):
    theirs, ours = pairs["token"]
    generator = torch.Generator().manual_seed(2)
    seen = (torch.rand(17, 17, generator=generator) < 0.6) | torch.eye(17, dtype=torch.bool)
    added = torch.randn(3, 1, 17, 17, generator=generator).masked_fill(~seen, -torch.inf)
    for options in ({"attn_mask": seen}, {"attn_mask": added}, {"is_causal": True}):
        assert_alike(ours(IMAGES, **options), theirs(IMAGES, **options))
        assert_alike(
            ours.forward_intermediates(IMAGES, **options),
            theirs.forward_intermediates(IMAGES, **options),
        )


FLAGS = ("return_prefix_tokens", "norm", "stop_early", "intermediates_only", "output_dict")


@pytest.mark.parametrize("seed", range(24))
def test_intermediates_are_timms(pairs, seed):
    rng = random.Random(seed)
    theirs, ours = pairs[rng.choice(POOLS)]
    options = {name: rng.random() < 0.5 for name in FLAGS}
    options["output_fmt"] = rng.choice(["NCHW", "NLC"])
    options["indices"] = rng.choice([None, 1, 2, 3, [0], [0, 2], [-1], (1, -1), [2, 0]])
    expected = theirs.forward_intermediates(IMAGES, **options)
    assert_alike(ours.forward_intermediates(IMAGES, **options), expected)


@pytest.mark.parametrize("indices", [1, 2, [0, 1]])
@pytest.mark.parametrize("prune_norm", [False, True])
def test_pruned_model_gives_timms_intermediates(timm, indices, prune_norm):
    torch.manual_seed(0)
    theirs = timm.models.VisionTransformer(**SMALL).eval()
    ours = load_timm_vit(theirs).eval()
    taken = [m.prune_intermediate_layers(indices, prune_norm=prune_norm) for m in (ours, theirs)]
    assert taken[0] == taken[1]
    assert len(ours.blocks) == len(theirs.blocks) == ours.config.depth
    assert_alike(
        ours.forward_intermediates(IMAGES, taken[0]),
        theirs.forward_intermediates(IMAGES, taken[0]),
    )
    assert_alike(ours(IMAGES), theirs(IMAGES))


CHANGES = [("token", "token"), ("avg", "avg"), ("map", "map"), ("map", "avg")]
CHANGES += [(pool, "") for pool in POOLS] + [("token", None)]


@pytest.mark.parametrize(("pool", "after"), CHANGES)
@pytest.mark.parametrize("classes", [0, 7])
def test_new_head_is_timms_but_for_its_start(timm, pool, after, classes):
    torch.manual_seed(0)
    settings = SMALL | {"global_pool": pool, "class_token": pool == "token"}
    theirs = timm.models.VisionTransformer(**settings).eval()
    ours = load_timm_vit(theirs).eval()
    for model in (theirs, ours):
        model.reset_classifier(classes, after)
    assert ours.num_classes == ours.config.num_classes == classes
    assert ours.global_pool == theirs.global_pool
    if classes:
        assert not ours.head.weight.any()
        assert not ours.head.training
        ours.head.load_state_dict(theirs.head.state_dict())
    assert_alike(ours(IMAGES), theirs(IMAGES))
    assert {n: p.shape for n, p in ours.head.named_parameters()} == {
        n: p.shape for n, p in theirs.head.named_parameters()
    }
    bigger = ours.with_image_size(24)
    assert bigger(torch.randn(2, 2, 24, 24)).shape[-1] == (classes or 32)


def test_new_head_has_the_models_dtype_and_pooling_can_come_back():
    model = make(pool="token").bfloat16()
    model.reset_classifier(3, "")
    assert model.head.weight.dtype == torch.bfloat16
    assert model.float()(IMAGES).shape == (3, 17, 3)
    model.reset_classifier(4, "token")
    assert model(IMAGES).shape == (3, 4)


def test_wrong_use_is_one_line():
    for pool, word in (("token", "avg"), ("gap", "token"), ("gap", "map")):
        model = make(pool=pool)
        before = model.config, model.global_pool
        with pytest.raises(UnsupportedError, match=f"a model with pool='{pool}' lacks"):
            model.reset_classifier(3, word)
        assert before == (model.config, model.global_pool)
    model = make()
    for call, message in (
        (lambda: model.reset_classifier(3, "agv"), "global_pool='agv' is unknown. Did you mean"),
        (lambda: model.reset_classifier(-1), "num_classes=-1 must be a whole number from 0"),
        (lambda: model.forward_intermediates(IMAGES, 4), "the last blocks must be 1 to 3"),
        (lambda: model.forward_intermediates(IMAGES, [3]), r"places of 3 blocks, from -3 to 2"),
        (lambda: model.forward_intermediates(IMAGES, []), r"places of 3 blocks"),
        (lambda: model.forward_intermediates(IMAGES, output_fmt="NHWC"), "output_fmt='NHWC'"),
        (lambda: make(drop_path=1.0), "drop_path=1.0 must be"),
    ):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("pool", POOLS)
def test_drop_path_is_timms_number_for_number(timm, pool):
    torch.manual_seed(0)
    settings = SMALL | {"global_pool": pool, "class_token": pool == "token"}
    theirs = timm.models.VisionTransformer(**settings, drop_path_rate=0.6)
    plain = load_timm_vit(theirs)
    ours = ViT(dataclasses.replace(plain.config, drop_path=0.6))
    ours.load_state_dict(plain.state_dict())
    images, drawn = torch.randn(32, 2, 16, 16), []
    for model in (ours, theirs, plain):
        torch.manual_seed(5)
        drawn.append(model.train()(images))
    assert_alike(drawn[0], drawn[1])
    assert not torch.allclose(drawn[0], drawn[2])
    assert_alike(ours.eval()(images), plain.eval()(images))


def gradients(model):
    torch.manual_seed(4)
    model.zero_grad()
    model(IMAGES).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("drop_path", [0.0, 0.5])
def test_checkpointed_blocks_have_the_same_gradients(drop_path):
    model, calls = make(drop_path=drop_path), []
    nn.init.normal_(model.head.weight)
    plain = gradients(model)
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model.set_grad_checkpointing()
    again = gradients(model)
    assert len(calls) == 2
    assert all(torch.equal(again[name], plain[name]) for name in plain)
    model.set_grad_checkpointing(False)
    with torch.no_grad():
        model(IMAGES)
    assert len(calls) == 3


def test_parameters_are_grouped_as_timms(timm):
    from timm.optim import param_groups_layer_decay, param_groups_weight_decay

    torch.manual_seed(0)
    theirs = timm.models.VisionTransformer(**SMALL)
    ours = load_timm_vit(theirs)
    for split in (param_groups_weight_decay, param_groups_layer_decay):
        found = []
        for model in (ours, theirs):
            skip = {} if split is param_groups_layer_decay else model.no_weight_decay()
            options = {"no_weight_decay_list": skip}
            names = {id(p): name for name, p in model.named_parameters()}
            groups = split(model, weight_decay=0.1, **options)
            found.append(
                {
                    names[id(p)]: (group["weight_decay"], group.get("lr_scale"))
                    for group in groups
                    for p in group["params"]
                }
            )
        assert found[0] == found[1]


def test_old_configs_have_no_drop_path():
    old = dataclasses.asdict(ViTConfig(**OURS))
    del old["drop_path"]
    assert ViTConfig(**old) == ViTConfig(**OURS)
    kinds = {type(m).__name__ for m in make().modules()}
    assert "DropPath" not in kinds
    rates = [block.drop_path1 for block in make(drop_path=0.5).blocks]
    assert isinstance(rates[0], nn.Identity)
    assert [round(m.rate, 6) for m in itertools.islice(rates, 1, 3)] == [0.25, 0.5]


@pytest.mark.parametrize("positions", ["learned", "sine2d"])
def test_other_image_size_keeps_what_was_changed(positions):
    class Mine(ViT):
        pass

    model = Mine(ViTConfig(**OURS | {"positions": positions, "pool": "gap", "fc_norm": True}))
    model.set_grad_checkpointing()
    model.prune_intermediate_layers(2)
    model.eval().requires_grad_(False)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    side = model.config.image_size
    for size in (side, 2 * side):
        other = model.with_image_size(size)
        assert type(other) is Mine
        assert other.grad_checkpointing
        assert not any(p.requires_grad for p in other.parameters())
        assert other.config == dataclasses.replace(model.config, image_size=size)
        assert other(torch.randn(1, 2, size, size)).shape == (1, other.config.grid**2, 32)
        other.pos_embed.zero_()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
