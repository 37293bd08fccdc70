"""flashpoint.replace_attention on models of transformers."""

from types import MethodType

import pytest
import torch
from hugging_face_models import SERVED, TEXT, make_call, make_model, make_padding, make_tokens
from hugging_face_models import outputs_of as outputs

import flashpoint
from flashpoint import AttentionSpec
from flashpoint.convert.substitute import HIDES_FROM, Substitute
from flashpoint.convert.transformers import register
from flashpoint.errors import UnsupportedError

EXPONENTIAL = AttentionSpec(activation="exp", normalize="sum", floor=0.0)


@pytest.mark.parametrize("name", SERVED)
def test_models_are_replaced_and_restored(transformers, name):
    model, call = make_model(transformers, name), make_call(name)
    own, keys = outputs(model, call), list(model.state_dict())
    report = flashpoint.replace_attention(model, EXPONENTIAL)
    assert report.replaced
    assert not report.left
    torch.testing.assert_close(outputs(model, call), own, rtol=1e-5, atol=1e-5)
    flashpoint.replace_attention(model, "relu4/sum")
    assert not torch.allclose(outputs(model, call), own)
    assert list(model.state_dict()) == keys
    assert flashpoint.restore_attention(model) == len(report.replaced)
    torch.testing.assert_close(outputs(model, call), own, rtol=0, atol=0)


@pytest.mark.parametrize("name", SERVED)
def test_masks_hide_by_numbers_that_are_known(transformers, name, monkeypatch):
    """What softmax gives no weight must not count here: no mask has numbers between."""
    least = []
    usual = Substitute.forward

    def look(self, query, key, value, attn_mask=None, **options):
        if attn_mask is not None and attn_mask.is_floating_point():
            shown = attn_mask[attn_mask > HIDES_FROM]
            least.append(shown.min().item())
        return usual(self, query, key, value, attn_mask, **options)

    monkeypatch.setattr(Substitute, "forward", look)
    model = make_model(transformers, name)
    flashpoint.replace_attention(model, "relu")
    outputs(model, make_call(name))
    assert all(number > -30 for number in least)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("activation", ["relu", "sigmoid", "relu4/sum"])
def test_shifted_windows_hide_keys_and_do_not_count_them(transformers, activation, by_name):
    """Swin adds -100 for them: as if it were -inf."""

    def run(lowest):
        model = make_model(transformers, "swin")
        for module in model.modules():
            if isinstance(mask := getattr(module, "get_attn_mask", None), MethodType):
                module.get_attn_mask = lambda *sizes, mask=mask, **options: hide(
                    mask(*sizes, **options), lowest
                )
        if by_name:
            model.set_attn_implementation(register(activation))
        else:
            flashpoint.replace_attention(model, activation)
        return outputs(model, make_call("swin"))

    def hide(mask, lowest):
        return None if mask is None else mask.masked_fill(mask < 0, lowest)

    torch.testing.assert_close(run(-100.0), run(-torch.inf), rtol=0, atol=0)


def test_layers_choose_by_name(transformers):
    model = make_model(transformers, "whisper")
    report = flashpoint.replace_attention(model, "relu", layers="*.encoder_attn")
    assert [entry.name for entry in report.replaced] == [
        f"model.decoder.layers.{i}.encoder_attn" for i in range(2)
    ]
    assert "WhisperAttention" in report.replaced[0].kind
    assert len(report.left) == 4


def test_hybrids_are_stored_as_their_model(transformers, tmp_path):
    model = make_model(transformers, "llama")
    call = make_call("llama", "left")
    flashpoint.replace_attention(model, "relu4/sum", layers=slice(1, None, 2))
    hybrid = outputs(model, call)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    own = make_model(transformers, "llama")
    torch.testing.assert_close(outputs(loaded, call), outputs(own, call), rtol=0, atol=0)
    flashpoint.replace_attention(loaded, "relu4/sum", layers=slice(1, None, 2))
    torch.testing.assert_close(outputs(loaded, call), hybrid, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "said"), [("gemma2", "softcap=50"), ("gpt-oss", "s_aux: it has sinks")]
)
def test_modules_that_do_more_are_refused_by_name(transformers, name, said):
    model = make_model(transformers, name)
    with pytest.raises(UnsupportedError, match=rf"model\.layers\.0\.self_attn .*{said}"):
        flashpoint.replace_attention(model, "relu")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gpt2", "attn_pdrop", 0.1),
        ("bert", "attention_probs_dropout_prob", 0.2),
        ("t5", "dropout_rate", 0.1),
        ("llama", "attention_dropout", 0.1),
        ("whisper", "attention_dropout", 0.1),
        ("dinov2", "attention_probs_dropout_prob", 0.1),
    ],
)
def test_dropout_is_told_before_training(transformers, name, field, value):
    model = make_model(transformers, name, **{field: value}).train()
    with pytest.raises(UnsupportedError, match=rf"drops {value} .*{field}=0\.0"):
        flashpoint.replace_attention(model, "relu")
    flashpoint.replace_attention(model.eval(), "relu")
    with pytest.raises(UnsupportedError, match=rf"p={value} while training.*{field}=0\.0"):
        model.train()(**make_call(name))


def test_masks_may_become_eager_but_not_those_of_others(transformers):
    model, call = make_model(transformers, "llama"), make_call("llama", "left")
    flashpoint.replace_attention(model, "relu")
    seen = make_padding(side="left").bool()
    expected = outputs(model, call)[seen]
    model.set_attn_implementation("eager")
    torch.testing.assert_close(outputs(model, call)[seen], expected)
    model.config._attn_implementation_internal = "flash_attention_2"  # not installed here
    with pytest.raises(UnsupportedError, match=r"'flash_attention_2'.*set_attn_implementation"):
        model(**call)


def test_two_models_in_one_are_replaced(transformers):
    """BERT as encoder and as decoder: the latter's cross-attention too."""
    configs = [transformers.BertConfig(**TEXT) for _ in range(2)]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*configs)
    torch.manual_seed(0)
    model = transformers.EncoderDecoderModel(config=config).eval()
    call = {"input_ids": make_tokens(), "attention_mask": make_padding()}
    call["decoder_input_ids"] = make_tokens(length=5)
    own = outputs(model, call)
    assert len(flashpoint.replace_attention(model, EXPONENTIAL).replaced) == 6
    torch.testing.assert_close(outputs(model, call), own, rtol=1e-5, atol=1e-5)


def test_values_may_be_wider_than_keys(transformers):
    """DeepSeek's latent attention."""
    settings = TEXT | {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16}
    settings |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 24}
    settings |= {"first_k_dense_replace": 2}
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**settings)).eval()
    own = outputs(model, make_call("llama"))
    assert len(flashpoint.replace_attention(model, EXPONENTIAL).replaced) == 2
    torch.testing.assert_close(outputs(model, make_call("llama")), own, rtol=1e-5, atol=1e-5)


def test_torchs_own_modules_in_a_model_are_replaced_too(transformers):
    """SigLIP pools by torch.nn.MultiheadAttention."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "image_size": 16, "patch_size": 4}
    torch.manual_seed(0)
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**sizes)).eval()
    call = make_call("vit")
    own = model(**call).pooler_output
    report = flashpoint.replace_attention(model, EXPONENTIAL)
    assert len(report.replaced) == 2
    torch.testing.assert_close(model(**call).pooler_output, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_steps_that_are_computed_again_give_the_same_gradients(transformers, name):
    model, call = make_model(transformers, name).train(), make_call(name)
    model.config.use_cache = False
    flashpoint.replace_attention(model, "relu4/sum")
    gradients = []
    for again in (False, True):
        if again:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        outputs(model, call).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
