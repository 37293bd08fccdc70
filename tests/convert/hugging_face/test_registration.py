"""Names under which transformers finds pointwise attention, and what is refused."""

import copy
import dataclasses
import logging
import warnings

import pytest
import torch
from hugging_face_models import make_call, make_model, make_padding, outputs_of

import flashpoint
from flashpoint import AttentionSpec
from flashpoint.convert.transformers import register
from flashpoint.errors import InputError, UnsupportedError
from flashpoint.ops import check
from flashpoint.ops.activation import NAMED, find_activation

SPEC = AttentionSpec(activation="relu2", normalize="sum", gain=0.5)


def test_all_words_have_names(transformers):
    names = register()
    assert {"pointwise_relu", "pointwise_relu4_sum", "pointwise_softmax"} <= set(names)
    assert "pointwise_gelu_sum" not in names
    for name in (*names, "pointwise"):
        assert name in transformers.AttentionInterface()
        assert name in transformers.AttentionMaskInterface()


def test_registering_again_changes_nothing(transformers):
    assert register() == register()
    assert register(SPEC, name="mine") == register(SPEC, name="mine") == "mine"


def test_a_word_has_its_name(transformers):
    assert register("relu4/sum") == register(AttentionSpec.parse("relu4/sum"))


@pytest.mark.parametrize("name", ["gpt2", "clip", "t5"])
def test_every_way_to_name_it_gives_the_same_model(transformers, tmp_path, name):
    attention = register(SPEC, name="mine")
    call = make_call(name)
    expected = outputs_of(make_model(transformers, name, attention), call)  # by the config
    changed = make_model(transformers, name)
    assert not torch.allclose(outputs_of(changed, call), expected)
    changed.set_attn_implementation(attention)
    torch.testing.assert_close(outputs_of(changed, call), expected)
    changed.save_pretrained(tmp_path)
    loaded = type(changed).from_pretrained(tmp_path, attn_implementation=attention)
    assert loaded.config._attn_implementation == attention
    torch.testing.assert_close(outputs_of(loaded, call), expected)
    loaded.save_pretrained(tmp_path / "again")
    again = type(changed).from_pretrained(tmp_path / "again", attn_implementation=attention)
    torch.testing.assert_close(outputs_of(again, call), expected)
    changed.set_attn_implementation("sdpa")
    own = outputs_of(make_model(transformers, name), call)
    torch.testing.assert_close(outputs_of(changed, call), own)


def test_parts_of_a_model_may_differ(transformers):
    register("relu")
    model = make_model(transformers, "clip")
    call = make_call("clip")
    before = model(**call)
    model.set_attn_implementation({"text_config": "pointwise_relu"})
    after = model(**call)
    assert not torch.allclose(after.text_embeds, before.text_embeds)
    torch.testing.assert_close(after.image_embeds, before.image_embeds, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("flashpoint_relu", "'flash' in it"),
        ("my_sdpa", "'sdpa' in it"),
        ("relu4/sum", "on the Hub"),
        ("", "on the Hub"),
        (3, "on the Hub"),
        ("pointwise", "stand for words"),
        ("pointwise_gelu", "stand for words"),
        ("taken", "another attention's already"),
    ],
)
def test_names_that_mean_something_else_are_refused(transformers, name, said):
    register("relu", name="taken")
    with pytest.raises(InputError, match=said):
        register("relu4/sum", name=name)


def test_activations_of_odd_names_are_registered_by_hand(transformers, monkeypatch):
    relu = find_activation("relu")
    monkeypatch.setitem(NAMED, "flashy", dataclasses.replace(relu, name="flashy"))
    assert not any("flashy" in name for name in register())
    with pytest.raises(InputError, match="'flash' in it"):
        register("flashy")
    assert register("flashy", name="bright") == "bright"


def test_names_of_others_are_not_taken(transformers):
    transformers.AttentionInterface.register("somebodys", lambda *_: None)
    with pytest.raises(InputError, match="registered already"):
        register("relu", name="somebodys")


def test_specs_that_need_more_are_refused(transformers):
    with pytest.raises(InputError, match="Pass name="):
        register(SPEC)
    with pytest.raises(InputError, match="names nothing"):
        register(name="mine")
    with pytest.raises(UnsupportedError, match=r"learns gain.*replace_attention"):
        register(AttentionSpec(gain="learned"), name="learner")


@pytest.mark.parametrize(("name", "said"), [("gemma2", "softcap"), ("gpt-oss", "s_aux")])
def test_caps_and_sinks_are_refused(transformers, name, said):
    logging.getLogger("transformers").setLevel(logging.ERROR)  # of YaRN, for gpt-oss
    model = make_model(transformers, name, register("relu"))
    with pytest.raises(UnsupportedError, match=rf"Attention .*{said}=.*attn_implementation"):
        model(**make_call(name))


def test_what_is_not_known_is_refused(transformers):
    model = make_model(transformers, "llama", register("relu"))
    with pytest.raises(UnsupportedError, match=r"LlamaAttention passes .*: temperature="):
        model(**make_call("llama"), temperature=2.0)
    with pytest.raises(UnsupportedError, match="head_mask"):
        model(**make_call("llama"), head_mask=torch.ones(2, 4))


@pytest.mark.parametrize(
    ("name", "field"),
    [("gpt2", "attn_pdrop"), ("bert", "attention_probs_dropout_prob"), ("t5", "dropout_rate")],
)
def test_dropout_is_refused_while_training(transformers, name, field):
    model = make_model(transformers, name, register("relu"), **{field: 0.1})
    call = make_call(name)
    assert outputs_of(model.eval(), call).isfinite().all()
    with pytest.raises(UnsupportedError, match=rf"p=0.1 while training.*{field}=0.0"):
        model.train()(**call)


def test_softmax_keeps_its_dropout(transformers):
    model = make_model(transformers, "gpt2", register("softmax"), attn_pdrop=0.5).train()
    call = make_call("gpt2")
    assert not torch.allclose(outputs_of(model, call), outputs_of(model, call))


def test_asking_for_weights_gives_what_sdpa_gives(transformers):
    model = make_model(transformers, "whisper", register("relu"))
    theirs = make_model(transformers, "whisper", "sdpa")
    call = make_call("whisper") | {"output_attentions": True}
    got, expected = (x(**call).cross_attentions for x in (model, theirs))
    assert got == expected


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_masks_of_a_users_own_serve(transformers, name):
    """Bool or added, and with the numbers that models write for "hidden"."""
    model = make_model(transformers, name, register("relu"))
    call = make_call(name, "right")
    expected = outputs_of(model, call)
    seen = make_padding(side="right").bool()[:, None, None] & torch.ones(7, 7).bool().tril()
    least = torch.finfo(torch.float32).min
    for mask in (seen, *(torch.where(seen, 0.0, x) for x in (least, -1e4, -1e9, -torch.inf))):
        got = outputs_of(model, call | {"attention_mask": mask})
        torch.testing.assert_close(got, expected)


@torch.no_grad()
def test_masks_for_a_whole_static_cache_are_cut(transformers):
    """As earlier versions of transformers make them."""
    module = make_model(transformers, "llama", register("relu")).model.layers[0].self_attn
    function = transformers.AttentionInterface()["pointwise_relu"]
    q, k, v = torch.randn(3, 1, 4, 5, 8)
    mask = torch.ones(1, 1, 5, 9, dtype=torch.bool).tril()
    got, weights = function(module, q, k, v, mask)
    torch.testing.assert_close(got, function(module, q, k, v, mask[..., :5])[0])
    assert weights is None


@torch.no_grad()
def test_packed_sequences_see_their_own_tokens(transformers):
    model = make_model(transformers, "llama", register("relu"))
    tokens = make_call("llama")["input_ids"]
    places = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    packed = model(tokens[:1], position_ids=places, use_cache=False).logits
    alone = [model(part).logits for part in tokens[:1].split((3, 4), dim=1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-5)


def test_masks_of_other_kinds_are_refused(transformers):
    model = make_model(transformers, "bert", register("relu"))
    call = make_call("bert")
    whole = torch.ones(2, 1, 7, 7)
    with pytest.raises(InputError, match="mask is int64, expected bool"):
        model(**call, attention_mask=whole.long())
    module = model.bert.encoder.layer[0].attention.self
    with pytest.raises(UnsupportedError, match=r"shape \[2, 7\], expected \[B, H, Lq=7, Lk=7\]"):
        module(torch.randn(2, 7, 32), attention_mask=torch.ones(2, 7))


def test_nobody_is_told_of_the_layout(transformers, monkeypatch):
    """More heads than tokens are usual in a model's first tokens."""
    monkeypatch.setattr(check, "_told_of_layout", False)
    model = make_model(transformers, "llama", register("relu"), num_key_value_heads=4)
    q = torch.randn(1, 4, 3, 8)
    module = model.model.layers[0].self_attn
    function = transformers.AttentionInterface()["pointwise_relu"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(module, q, q, q, None)
    assert not check._told_of_layout


def test_models_can_be_copied(transformers):
    model = make_model(transformers, "t5", register("relu"))
    call = make_call("t5")
    got = outputs_of(copy.deepcopy(model), call)
    torch.testing.assert_close(got, outputs_of(model, call), rtol=0, atol=0)


def test_masks_for_eager_say_everything(transformers):
    """Eager attention never looks at ``is_causal``: without a mask all keys are seen."""
    model = make_model(transformers, "llama", "eager")
    flashpoint.replace_attention(model, "relu")
    module = model.model.layers[0].self_attn
    function = transformers.AttentionInterface()["pointwise"]
    q, k, v = torch.randn(3, 1, 4, 5, 8)
    whole = flashpoint.attention(q, k, v).transpose(1, 2)
    torch.testing.assert_close(function(module, q, k, v, None)[0], whole)
    model.set_attn_implementation("sdpa")
    causal = flashpoint.attention(q, k, v, causal=True).transpose(1, 2)
    torch.testing.assert_close(function(module, q, k, v, None)[0], causal)
    torch.testing.assert_close(function(module, q, k, v, None, is_causal=False)[0], whole)


@pytest.mark.parametrize("word", ["softmax", "relu", "exp/sum"])
def test_queries_that_see_nothing_spoil_no_others(transformers, word):
    """T5's decoder padded on the left: the bias and the mask come together."""
    model = make_model(transformers, "t5", register(word)).train()
    call = make_call("t5", "left") | {"decoder_attention_mask": make_padding(5, "left", (5, 2))}
    padded = outputs_of(model, call)
    padded.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    other = call["decoder_input_ids"].clone()
    other[1, :3] = 7  # at padding
    again = outputs_of(model, call | {"decoder_input_ids": other})
    torch.testing.assert_close(again[1, 3:], padded[1, 3:])


@torch.no_grad()
def test_bf16_errs_as_sdpa_does(transformers):
    call = make_call("llama", "right")
    seen = call["attention_mask"].bool()
    exact = outputs_of(make_model(transformers, "llama"), call)[seen]
    spec = AttentionSpec(activation="exp", normalize="sum", floor=0.0)
    errors = []
    for attention in (register(spec, name="exponential"), "sdpa"):
        model = make_model(transformers, "llama", attention).bfloat16()
        got = outputs_of(model, call)[seen]
        assert got.dtype == torch.bfloat16
        errors.append((got.float() - exact).square().mean().sqrt().item())
    assert errors[0] <= 1.5 * errors[1]


def test_order_is_asked_of_pytorch(transformers):
    """A model that asks for it is not served in silence by kernels that add in any order."""
    attend = transformers.AttentionInterface()[register("relu")]
    q = torch.randn(1, 2, 3, 8)
    expected, _ = attend(torch.nn.Module(), q, q, q, None, deterministic=False)
    with pytest.raises(UnsupportedError, match=r"use_deterministic_algorithms\(True\)"):
        attend(torch.nn.Module(), q, q, q, None, deterministic=True)
    torch.use_deterministic_algorithms(mode=True)
    try:
        found, _ = attend(torch.nn.Module(), q, q, q, None, deterministic=True)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert torch.equal(found, expected)
