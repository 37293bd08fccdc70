"""Attention maps against the whole matrix of weights, and the pictures of them."""

import sys

import pytest
import torch
from PIL import Image

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.evaluation import attention_drawing
from flashpoint.lab.evaluation.attention_drawing import draw_maps, draw_statistics
from flashpoint.lab.evaluation.attention_maps import map_attention, spread_layers
from flashpoint.lab.evaluation.attention_statistics import measure_attention
from flashpoint.layers.attention import Attention
from flashpoint.models.registry import create_model


def make_model(pool="gap", attention="relu", image_size=8, **settings):
    torch.manual_seed(0)
    return create_model(
        "vit",
        **{
            **{"width": 32, "depth": 3, "num_heads": 2, "mlp_dim": 32, "num_classes": 10},
            **{"image_size": image_size, "patch_size": 2, "channels": 1},
            **settings,
        },
        pool=pool,
        attention=attention,
    )


def make_images(count=2, size=8, channels=1):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(1))


def whole_weights(model, images, layer):
    """[B, H, L, L] of one block, from what that block reads."""
    inputs = []
    hook = model.blocks[layer].attn.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    model(images)
    hook.remove()
    q, k, _ = model.blocks[layer].attn.project(inputs[0])
    return model.blocks[layer].attn.weights(q, k).detach()


@pytest.mark.parametrize("attention", ["relu", "softmax"])
@pytest.mark.parametrize("pool", ["gap", "map"])
def test_pooled_models_show_what_each_patch_receives(pool, attention):
    model, images = make_model(pool, attention), make_images()
    found = map_attention(model, images, [0, 2])
    assert (found.layers, found.reading) == ((0, 2), "received")
    for layer, maps in zip(found.layers, found.maps, strict=True):
        wanted = whole_weights(model, images, layer).mean((1, 2)).view(2, 4, 4)
        torch.testing.assert_close(maps, wanted)


def test_class_token_shows_its_own_row():
    model, images = make_model("token"), make_images()
    found = map_attention(model, images, [1])
    assert found.reading == "class token"
    wanted = whole_weights(model, images, 1)[:, :, 0, 1:].mean(1).view(2, 4, 4)
    torch.testing.assert_close(found.maps[0], wanted)


def test_rows_beyond_one_block_count(monkeypatch):
    """16 x 16 patches are two blocks of queries."""
    model, images = make_model(image_size=32), make_images(size=32)
    wanted = whole_weights(model, images, 0).mean((1, 2)).view(2, 16, 16)
    asked = []
    weights = Attention.weights
    monkeypatch.setattr(
        Attention,
        "weights",
        lambda self, q, k, rows, **o: asked.append(rows.stop) or weights(self, q, k, rows, **o),
    )
    (found,) = map_attention(model, images, [0]).maps
    torch.testing.assert_close(found, wanted)
    assert asked == [128, 256]


def test_softmax_attention_received_sums_to_one():
    found = map_attention(make_model(attention="softmax"), make_images())
    assert found.layers == (0, 1, 2)
    for maps in found.maps:
        torch.testing.assert_close(maps.sum((1, 2)), torch.ones(2))


def test_layers_count_from_either_end_and_once():
    assert map_attention(make_model(), make_images(), [-1, 2, 0]).layers == (2, 0)


@pytest.mark.parametrize("layer", [3, -4])
def test_layer_that_is_not_there_is_refused(layer):
    with pytest.raises(InputError, match=rf"layer {layer} .*has 3"):
        map_attention(make_model(), make_images(), [layer])


@pytest.mark.parametrize(
    ("count", "layers"), [(1, (2,)), (2, (0, 2)), (3, (0, 1, 2)), (9, (0, 1, 2))]
)
def test_layers_are_spread_evenly(count, layers):
    assert spread_layers(make_model(), count) == layers


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_drawn(tmp_path, channels):
    model, images = make_model(channels=channels), make_images(3, channels=channels)
    draw_maps(map_attention(model, images), tmp_path / "maps.png")
    with Image.open(tmp_path / "maps.png") as picture:
        assert picture.width > picture.height > 300
        assert len(picture.convert("RGB").resize((64, 64)).getcolors(4096)) > 50


def test_brightest_patch_of_the_picture_is_the_greatest_of_the_map(tmp_path):
    maps = map_attention(make_model(), make_images(1) * 0, [0])
    maps.maps[0].zero_()
    maps.maps[0][0, 3, 1] = 1.0  # last row, second column
    draw_maps(maps, tmp_path / "maps.png")
    with Image.open(tmp_path / "maps.png") as picture:
        half = picture.convert("L").crop((picture.width // 2, 50, picture.width, picture.height))
        cells = half.resize((4, 4), Image.Resampling.BOX).tobytes()
    assert max(range(16), key=lambda i: cells[i]) == 13


def test_statistics_are_drawn_with_dead_heads(tmp_path):
    model = make_model()
    with torch.no_grad():
        model.blocks[1].attn.q_norm.weight.zero_()  # every score of this layer is zero
    statistics = measure_attention(model, [make_images()])
    assert [h.layer for h in statistics.heads if h.is_dead] == [1, 1]
    draw_statistics(statistics, tmp_path / "statistics.png")
    with Image.open(tmp_path / "statistics.png") as picture:
        assert picture.width > picture.height


def test_missing_matplotlib_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\.\[lab\]'"):
        attention_drawing.draw_maps(map_attention(make_model(), make_images()), tmp_path / "a.png")


def test_unwritable_picture_is_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        draw_maps(map_attention(make_model(), make_images()), tmp_path / "none" / "a.png")
