"""One attention module of a model of transformers at a time."""

import copy
import io

import pytest
import torch
from hugging_face_models import SERVED, make_call, make_model, outputs_of
from torch import nn

from flashpoint import AttentionSpec
from flashpoint.convert.substitute import Substitute
from flashpoint.convert.transformers import find, register

SITES = {"t5": 6, "whisper": 6, "clip": 4}


def install(sites, attention="relu4/sum", **options):
    for site in sites:
        site.install(Substitute(attention, site.num_heads, **options))


@pytest.mark.parametrize("name", SERVED)
def test_every_attention_is_found(transformers, name):
    model = make_model(transformers, name)
    found = find(model)
    assert len(found.sites) == SITES.get(name, 2)
    assert not found.left
    for site in found.sites:
        assert model.get_submodule(site.name) is site.module
        assert site.num_heads == 4
        assert site.substitute is None


@pytest.mark.parametrize("name", SERVED)
def test_all_replaced_are_the_model_by_name(transformers, name):
    expected = make_model(transformers, name, register("relu4/sum"))
    model = make_model(transformers, name)
    own = outputs_of(model, make_call(name))
    keys = list(model.state_dict())
    install(find(model).sites)
    got = outputs_of(model, make_call(name))
    torch.testing.assert_close(got, outputs_of(expected, make_call(name)))
    assert list(model.state_dict()) == keys
    for site in find(model).sites:  # found anew, as by somebody who comes later
        assert isinstance(site.substitute, Substitute)
        site.restore()
        site.restore()
    torch.testing.assert_close(outputs_of(model, make_call(name)), own, rtol=0, atol=0)
    assert all(site.substitute is None for site in find(model).sites)


@pytest.mark.parametrize("before", ["sdpa", "eager"])
def test_other_layers_stay_as_they_were(transformers, before):
    """A hybrid: what reaches the second layer is the model's own, what leaves it is not."""
    model = make_model(transformers, "llama", before)
    call = make_call("llama", "left") | {"output_hidden_states": True}
    own = model(**call).hidden_states
    install(find(model).sites[1:])
    hybrid = model(**call).hidden_states
    torch.testing.assert_close(hybrid[1], own[1], rtol=0, atol=0)
    assert not torch.allclose(hybrid[2], own[2])
    assert model.config._attn_implementation == before


def test_hybrids_generate(transformers):
    model = make_model(transformers, "gpt2")
    install(find(model).sites[1:], "relu")
    call = make_call("gpt2", "left") | {"max_new_tokens": 4, "do_sample": False}
    whole, cached = (model.generate(**call, use_cache=use) for use in (False, True))
    assert cached.tolist() == whole.tolist()


def test_replacing_twice_keeps_the_last(transformers):
    model = make_model(transformers, "vit")
    call = make_call("vit")
    own = outputs_of(model, call)
    install(find(model).sites, "relu")
    install(find(model).sites, "relu4/sum")
    expected = make_model(transformers, "vit", register("relu4/sum"))
    torch.testing.assert_close(outputs_of(model, call), outputs_of(expected, call))
    for site in find(model).sites:
        site.restore()
    torch.testing.assert_close(outputs_of(model, call), own, rtol=0, atol=0)


def test_learned_numbers_train_with_the_model(transformers):
    model = make_model(transformers, "bert").train()
    spec = AttentionSpec(gain="learned_per_head", alpha="learned")
    install(find(model).sites, spec, learns_scale=True)
    outputs_of(model, make_call("bert", "right")).square().sum().backward()
    learned = {name: p for name, p in model.named_parameters() if "substitute" in name}
    assert len(learned) == 6
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learned.values())


def test_replaced_models_are_copied_and_stored(transformers):
    model = make_model(transformers, "gpt2")
    install(find(model).sites, AttentionSpec(gain="learned_per_head", gain_start=0.5))
    call = make_call("gpt2")
    expected = outputs_of(model, call)
    torch.testing.assert_close(outputs_of(copy.deepcopy(model), call), expected, rtol=0, atol=0)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    torch.testing.assert_close(outputs_of(loaded, call), expected, rtol=0, atol=0)


def test_models_inside_other_modules_are_found(transformers):
    whole = nn.Sequential(nn.Identity(), make_model(transformers, "vit").vit)
    assert [site.name.split(".")[0] for site in find(whole).sites] == ["1", "1"]


@pytest.mark.parametrize(
    ("name", "said"), [("gemma2", "softcap=50"), ("gpt-oss", "s_aux: it has sinks")]
)
def test_modules_that_do_more_are_left(transformers, name, said):
    found = find(make_model(transformers, name))
    assert not found.sites
    assert len(found.left) == 2
    assert all(said in reason for reason in found.left.values())


def test_masks_of_flash_kernels_are_left(transformers):
    model = make_model(transformers, "llama")
    model.config._attn_implementation_internal = "flash_attention_2"  # not installed here
    found = find(model)
    assert not found.sites
    assert "set_attn_implementation('sdpa') first" in found.left["model.layers.0.self_attn"]


def test_attention_of_unknown_kinds_is_left(transformers):
    config = transformers.MobileViTConfig(
        hidden_sizes=[8, 8, 8],
        neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 8],
        image_size=32,
        num_attention_heads=2,
    )
    found = find(transformers.MobileViTModel(config))
    assert not found.sites
    assert found.left
    for name, reason in found.left.items():
        assert name.endswith("attention.attention")
        assert "MobileViTSelfAttention does not compute by transformers' Att" in reason


def test_models_that_ask_for_no_name_are_told_by_find(transformers):
    """transformers takes the name for them too, and they compute softmax."""
    sizes = {"vocab_size": 16, "hidden_size": 32, "n_head": 4, "n_layer": 1}
    config = transformers.BloomConfig(**sizes)
    model = transformers.AutoModel.from_config(config, attn_implementation=register("relu"))
    assert model.config._attn_implementation == "pointwise_relu"
    found = find(model)
    assert list(found.left) == ["h.0.self_attention"]
    assert not found.sites


def test_nothing_is_found_where_nothing_is():
    found = find(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert not found.sites
    assert not found.left


def test_parts_of_a_shared_config_stay_as_they_were(transformers):
    """A module may hold the config of a whole model, whose parts are other modules'."""
    model = make_model(transformers, "clip")
    site = find(model).sites[0]
    site.module.config = model.config
    install([site])
    assert site.module.config._attn_implementation == "pointwise"
    assert model.config._attn_implementation == "sdpa"
    assert model.config.text_config._attn_implementation == "sdpa"
    assert model.config.vision_config._attn_implementation == "sdpa"
