"""Given weights in a model of other names, another head, another resolution, another size."""

from math import nan

import pytest
import torch

from flashpoint.convert import load_timm_vit, load_transformers_vit
from flashpoint.convert.fitting import fit
from flashpoint.errors import InputError
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.vit import ViT, ViTConfig

SMALL = ViTConfig(
    image_size=32, patch_size=8, width=48, depth=3, num_heads=4, mlp_dim=120, num_classes=7
)
SOFTMAX = AttentionSpec(activation="softmax")


def make(seed=0, **changes):
    """A small ViT with every parameter of its own."""
    torch.manual_seed(seed)
    fields = {name: getattr(SMALL, name) for name in SMALL.__slots__}
    model = ViT(ViTConfig(**fields | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def start(model, given):
    """Load what fits; gives what became of it."""
    fitted = fit(given, model.state_dict(), "weights 'x'")
    model.load_state_dict(fitted.weights, strict=False)
    return fitted


def make_images(size=32):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def test_own_weights_are_taken_whole():
    given, model = make(0), make(1)
    fitted = start(model, given.state_dict())
    assert (fitted.new, fitted.left_out, fitted.grids) == ((), (), None)
    assert model(make_images()).equal(given(make_images()))


def test_head_of_another_size_stays_new():
    given, model = make(0), make(1, num_classes=3)
    head = model.head.weight.clone()
    fitted = start(model, given.state_dict())
    assert fitted.new == ("head.weight", "head.bias")
    assert model.head.weight.equal(head)
    assert model.features(make_images()).equal(given.features(make_images()))


def test_positions_of_another_resolution_are_interpolated():
    given, model = make(0), make(1, image_size=48)
    fitted = start(model, given.state_dict())
    assert fitted.grids == (4, 6)
    images = make_images(48)
    assert model(images).equal(given.with_image_size(48)(images))


def test_missing_and_superfluous_weights_are_named():
    given = make(0, pool="token", qk_norm="none")
    model = make(1, positions="sine2d")
    fitted = start(model, given.state_dict())
    assert set(fitted.left_out) == {"cls_token", "pos_embed"}
    norms = [f"blocks.{i}.attn.{x}_norm.weight" for i in range(3) for x in "qk"]
    assert set(fitted.new) == set(norms)
    assert model.blocks[2].mlp.fc1.weight.equal(given.blocks[2].mlp.fc1.weight)


@pytest.mark.parametrize("size", [32, 48])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_timms_names_give_timms_logits(timm, size, dtype):
    torch.manual_seed(0)
    theirs = timm.models.VisionTransformer(
        img_size=32, patch_size=8, num_classes=7, embed_dim=48, depth=3, num_heads=4, mlp_ratio=2.5
    ).to(dtype)
    model = make(1, pool="token", qk_norm="none", attention=SOFTMAX, image_size=size)
    fitted = start(model, theirs.state_dict())
    assert (fitted.new, fitted.left_out) == ((), ())
    wanted = load_timm_vit(theirs, image_size=size).float()
    assert model(make_images(size)).equal(wanted(make_images(size)))


def test_hugging_faces_names_give_their_logits(transformers):
    torch.manual_seed(0)
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=32, patch_size=8, hidden_size=48, intermediate_size=120,
            num_hidden_layers=3, num_attention_heads=4, num_labels=7,
        )
    ).eval()  # fmt: skip
    model = make(1, pool="token", qk_norm="none", attention=SOFTMAX, norm_eps=1e-12)
    fitted = start(model, theirs.state_dict())
    assert (fitted.new, fitted.left_out) == ((), ())
    assert model(make_images()).equal(load_transformers_vit(theirs)(make_images()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 64}, r"has shape \[.*48.*\], the model's has \[.*64.*\]. Train a model of the"),
        ({"patch_size": 4}, r"patch_embed.proj.weight has shape \[48, 3, 8, 8\]"),
        ({"mlp_dim": 96}, r"blocks.0.mlp.fc1.weight has shape \[120, 48\], the model's has \[96"),
    ],
)
def test_other_sizes_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=rf"weights 'x' does not fit: .*{message}") as error:
        start(make(1, **changes), make(0).state_dict())
    assert "\n" not in str(error.value)


def test_weights_of_something_else_are_refused_in_one_line():
    given = {f"conv{i}.weight": torch.zeros(3) for i in range(9)}
    with pytest.raises(InputError, match=r"fits nothing: none of its 9 weights \(conv0.weight, "):
        start(make(), given)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("blocks.1.mlp.fc1.bias", lambda w: w.int(), r"fc1.bias is int32, but weights are floa"),
        ("norm.weight", lambda w: w * 1j, r"norm.weight is complex64, but weights are floating"),
        (
            "pos_embed",
            lambda w: w.index_fill(1, torch.tensor([3]), nan),
            "48 of the 768 values of",
        ),
        ("head.bias", lambda w: w.double() + 1e300, "7 of the 7 values of head.bias are not fin"),
    ],
)
def test_what_is_no_number_is_refused_in_one_line(name, change, message):
    given = make(0).state_dict()
    given[name] = change(given[name])
    with pytest.raises(InputError, match=rf"^weights 'x': .*{message}") as error:
        start(make(1), given)
    assert "\n" not in str(error.value)


HF_QKV = {
    part: f"vit.encoder.layer.1.attention.attention.{name}.bias"
    for part, name in {"q": "query", "k": "key", "v": "value"}.items()
}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"q": (48,)}, r"q \[48\]"),
        ({"k": (48,), "v": (48,)}, r"k \[48\], v \[48\]"),
        ({"q": (48,), "k": (48,), "v": (24, 2)}, r"q \[48\], k \[48\], v \[24, 2\]"),
        ({"q": (), "k": (), "v": ()}, r"q \[\], k \[\], v \[\]"),
    ],
)
def test_part_of_a_projection_is_refused_in_one_line(given, said):
    weights = make(0).state_dict() | {HF_QKV[part]: torch.ones(x) for part, x in given.items()}
    message = rf"^weights 'x': of q, k and v, .* blocks\.1\.attn\.\*\.bias has only {said}\. Give"
    with pytest.raises(InputError, match=message) as error:
        start(make(1), {n: w for n, w in weights.items() if n != "blocks.1.attn.qkv.bias"})
    assert "\n" not in str(error.value)


def test_what_is_left_out_may_hold_anything():
    given = make(0).state_dict() | {"embeddings.position_ids": torch.arange(3)}
    assert start(make(1), given).left_out == ("embeddings.position_ids",)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("pos_embed", (768,), r": pos_embed has shape \[768\], expected \[1, N, E\] with a pos"),
        ("pos_embed", (1, 0, 48), r": pos_embed has shape \[1, 0, 48\], expected \[1, N, E\]"),
        ("pos_embed", (2, 9, 48), r": pos_embed has shape \[2, 9, 48\], expected \[1, N, E\]"),
        ("pos_embed", (1, 12, 48), " has 11 positions of patches, which are no square grid. Give"),
        ("pos_embed", (1, 19, 48), " has 18 positions of patches, which are no square grid. Give"),
        ("cls_token", (1, 1, 7), r": cls_token has shape \[1, 1, 7\], expected \[1, 1, 48\]"),
    ],
)
def test_odd_positions_are_refused_in_one_line(name, shape, message):
    """Beside a class token that has a position of its own, as timm's."""
    given = make(0, pool="token").state_dict()
    given["pos_embed"] = torch.zeros(1, 17, 48)
    given[name] = torch.zeros(shape)
    with pytest.raises(InputError, match=f"^weights 'x'{message}") as error:
        start(make(1, pool="token"), given)
    assert "\n" not in str(error.value)
