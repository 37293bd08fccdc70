"""Models as folders: written, read, refused in one line."""

import json
import pickle

import pytest
import safetensors.torch
import torch

import flashpoint
from flashpoint.errors import InputError, UnsupportedError
from flashpoint.layers import Attention
from flashpoint.models import pretrained
from flashpoint.models.reluformer import ReLUFormer
from flashpoint.models.vit import ViT


def make_vit(**settings):
    sizes = {"image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2}
    sizes |= {"num_classes": 3, "attention": "relu4/sum"}
    return flashpoint.create_model("vit", **{**sizes, **settings}).eval()


def make_text_model(**settings):
    sizes = {"width": 16, "encoder_depth": 1, "decoder_depth": 1, "num_heads": 2, "mlp_dim": 32}
    return flashpoint.create_model("reluformer", vocabulary_size=50, **sizes, **settings).eval()


@pytest.fixture
def folder(tmp_path):
    return make_vit().save_pretrained(tmp_path / "model")


def change(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    "model",
    [
        make_vit(),
        make_vit(attention={"activation": "sigmoid", "alpha": "learned", "bias": -1.25}),
        make_vit(pool="token", positions="sine2d", layer_scale=0.1, num_classes=0),
        make_text_model(),
        make_text_model(cross_attention="softmax", tied_embeddings=False),
    ],
    ids=["sum", "learned", "token", "text", "cross"],
)
def test_loaded_model_is_the_saved_one(tmp_path, model):
    loaded = type(model).from_pretrained(model.save_pretrained(tmp_path / "a" / "b"))
    assert loaded.config == model.config
    assert not loaded.training
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=0, rtol=0)
    assert {file.name for file in (tmp_path / "a" / "b").iterdir()} == {
        *("config.json", "model.safetensors", "README.md")
    }


def test_dtype_is_kept(tmp_path):
    folder = make_vit().bfloat16().save_pretrained(tmp_path)
    assert {p.dtype for p in ViT.from_pretrained(folder).parameters()} == {torch.bfloat16}


def test_card_says_what_it_is_and_how_to_load_it(folder, tmp_path):
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: flashpoint\n")
    assert "# ViT with relu4/sum attention" in card
    assert "AttentionSpec(activation='relu4', normalize='sum')" in card
    assert "| image_size | 8 |" in card
    code = card.partition("```python\n")[2].partition("```")[0]
    scope = {}
    exec(code.replace("THIS_FOLDER", str(folder)), scope)
    assert isinstance(scope["model"], ViT)
    make_vit().save_pretrained(tmp_path / "own", card="# Mine\n")
    assert (tmp_path / "own" / "README.md").read_text() == "# Mine\n"


def test_model_of_a_derived_class_loads_as_either(tmp_path):
    class Mine(ViT):
        pass

    folder = Mine(make_vit().config).save_pretrained(tmp_path)
    assert type(Mine.from_pretrained(folder)) is Mine
    assert type(ViT.from_pretrained(folder)) is ViT


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"library_name": "timm"}, "is not Flashpoint's.*load_timm_vit"),
        ({"model": "ReLUFormer"}, "holds a 'ReLUFormer', not a ViT"),
        ({"config": [1]}, r"config must be an object. Got \[1\]"),
        ({"config": {"widht": 4}}, "ViTConfig has no field 'widht'. Did you mean 'width'"),
        ({"config": {"width": 4}}, "missing .* required"),
        ({"format": None}, "has format None"),
    ],
)
def test_other_configs_are_one_line(folder, values, message):
    change(folder, **values)
    with pytest.raises((InputError, UnsupportedError), match=message) as caught:
        ViT.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_settings_that_break_a_rule_name_the_file(folder):
    config = json.loads((folder / "config.json").read_text())["config"]
    change(folder, config={**config, "num_heads": 3})
    with pytest.raises(InputError, match=r"config\.json: width=16 is not a multiple of 3 heads"):
        ViT.from_pretrained(folder)


def test_later_format_is_refused_with_its_version(folder):
    change(folder, format=2, flashpoint_version="9.0")
    with pytest.raises(UnsupportedError, match=r"format 2, written by Flashpoint '9\.0'.*reads f"):
        ViT.from_pretrained(folder)


def test_missing_parts_are_named(folder, tmp_path):
    with pytest.raises(InputError, match=r"is no model that save_pretrained.*no such folder"):
        ViT.from_pretrained(tmp_path / "none")
    (folder / "config.json").write_bytes(b"\xff{")
    with pytest.raises(InputError, match=r"config\.json is no JSON"):
        ViT.from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"There is: README\.md, model\.safetensors"):
        ReLUFormer.from_pretrained(folder)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def test_nothing_is_unpickled(folder):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="safetensors only; nothing is unpickled"):
        ViT.from_pretrained(folder)
    (folder / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InputError, match=r"model\.safetensors is damaged"):
        ViT.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change_weights", "message"),
    [
        (lambda w: w.pop("norm.bias"), r"lacks norm\.bias"),
        (lambda w: w.update(extra=torch.ones(1)), "has too much: extra"),
        (lambda w: w.update({"norm.bias": torch.ones(3)}), r"norm\.bias has shape \[3\].*\[16\]"),
    ],
)
def test_weights_of_another_model_are_one_line(folder, change_weights, message):
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    change_weights(weights)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    with pytest.raises(InputError, match=message):
        ViT.from_pretrained(folder)


def test_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        make_vit().save_pretrained(tmp_path / "file")


def test_files_of_others_stay_as_they_are(folder, tmp_path):
    make_vit(width=32).save_pretrained(folder)
    assert ViT.from_pretrained(folder).config.width == 32
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(InputError, match=r"has README\.md and no model of Flashpoint's"):
        make_vit().save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["README.md"]


def test_model_that_its_config_does_not_say_is_not_saved(tmp_path):
    pooled, pruned, changed = make_vit(), make_vit(), make_vit()
    pooled.reset_classifier(3, "")
    pruned.prune_intermediate_layers(1, prune_norm=True, prune_head=False)
    changed.blocks[0].attn = Attention(16, 2, "relu", qk_norm="layer")
    for model, message in (
        (pooled, "global_pool of the ViT differ from what its config says"),
        (pruned, r"norm\.bias, norm\.weight of the ViT"),
        (changed, r"blocks\.0\.attn of the ViT"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            model.save_pretrained(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_save_that_fails_leaves_the_old_model(folder, monkeypatch):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    written, write = [], pretrained.write_atomically

    def write_one(file, content):
        if written:
            raise OSError(28, "No space left on device")
        written.append(file)
        write(file, content)

    monkeypatch.setattr(pretrained, "write_atomically", write_one)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        make_vit(attention="relu").save_pretrained(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_huge_model_of_a_damaged_config_is_not_built(folder):
    config = json.loads((folder / "config.json").read_text())["config"]
    change(folder, config={**config, "width": 65_536, "mlp_dim": 2**20, "depth": 256})
    with pytest.raises(InputError, match="lacks blocks"):
        ViT.from_pretrained(folder)


def test_nested_config_is_one_line(folder):
    (folder / "config.json").write_text("[" * 200_000)
    with pytest.raises(InputError, match=r"config\.json is no JSON"):
        ViT.from_pretrained(folder)


@pytest.mark.parametrize(
    ("model", "has_tag", "words"),
    [
        (make_vit(), True, "Attention: `AttentionSpec(activation='relu4', normalize='sum')`.\n"),
        (make_vit(attention="softmax"), False, "AttentionSpec(activation='softmax')"),
        (make_vit(pool="map"), False, "ViT with relu4/sum attention"),
        (
            make_text_model(cross_attention="softmax"),
            False,
            "Cross-attention: `AttentionSpec(activation='softmax')`",
        ),
    ],
)
def test_card_names_every_attention(model, has_tag, words):
    card = pretrained.model_card(model)
    assert ("- attention-without-softmax" in card) == has_tag
    assert words in card
