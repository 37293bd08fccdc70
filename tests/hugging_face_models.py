"""Tiny models of transformers with random weights, and calls of them: by name, for tests."""

import torch

TEXT = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 4, "max_position_embeddings": 64}
TEXT |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
IMAGE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
IMAGE |= {"num_attention_heads": 4, "image_size": 16, "patch_size": 4}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = TEXT | {"num_key_value_heads": 2}
T5 = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
T5 |= {"dropout_rate": 0.0, "relative_attention_num_buckets": 8}
T5 |= {"relative_attention_max_distance": 16, "decoder_start_token_id": 0}
T5 |= {"pad_token_id": 0, "eos_token_id": 2}
WHISPER = {"vocab_size": 61, "d_model": 32, "num_mel_bins": 8, "max_source_positions": 12}
WHISPER |= {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
WHISPER |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
WHISPER |= {"max_target_positions": 32, "decoder_start_token_id": 1, "begin_suppress_tokens": None}
WHISPER |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

# name: (class of the config, class of the model, settings)
MODELS = {
    "bert": ("BertConfig", "BertForMaskedLM", TEXT | NO_DROPOUT),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "gpt2-scaled": (
        "GPT2Config",
        "GPT2LMHeadModel",
        GPT2 | {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "mistral": ("MistralConfig", "MistralForCausalLM", GROUPED | {"sliding_window": 4}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", GROUPED | {"head_dim": 8}),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", WHISPER),
    "vit": ("ViTConfig", "ViTForImageClassification", IMAGE | NO_DROPOUT | {"num_labels": 5}),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification", IMAGE | {"num_labels": 5}),
    "swin": (
        "SwinConfig",
        "SwinForImageClassification",
        {"image_size": 16, "patch_size": 2, "embed_dim": 32, "depths": [2], "num_heads": [4]}
        | {"window_size": 4, "drop_path_rate": 0.0, "num_labels": 5},
    ),
    "clip": (
        "CLIPConfig",
        "CLIPModel",
        {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 16},
    ),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", GROUPED | {"head_dim": 8}),
    "gpt-oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        GROUPED | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}
DECODERS = ("gpt2", "gpt2-scaled", "llama", "mistral", "qwen3")
IMAGES = ("vit", "dinov2", "swin")
SERVED = ("bert", *DECODERS, "t5", "whisper", *IMAGES, "clip")


def make_model(transformers, name, attention=None, **settings):
    """A model for evaluation, with the same weights for the same name."""
    config_kind, kind, usual = MODELS[name]
    config = getattr(transformers, config_kind)(**usual | settings)
    if attention is not None:
        config._attn_implementation = attention
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # scores of many sizes, so that attention matters
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def make_tokens(batch=2, length=7, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 60, (batch, length), generator=generator)


def make_padding(length=7, side="right", lengths=(7, 4)):
    """[B, L], 1 where a token is."""
    place = torch.arange(length)
    rows = [place < n if side == "right" else place >= length - n for n in lengths]
    return torch.stack(rows).long()


def make_call(name, side=None):
    """The arguments of one call; ``side``: where the second sample is padded, of texts."""
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    if name in IMAGES:
        return {"pixel_values": images}
    if name == "whisper":
        generator = torch.Generator().manual_seed(3)
        sound = torch.randn(2, 8, 24, generator=generator)
        return {"input_features": sound, "decoder_input_ids": make_tokens(length=5)}
    call = {"input_ids": make_tokens()}
    if side is not None:
        call["attention_mask"] = make_padding(side=side)
    if name == "t5":
        call["decoder_input_ids"] = make_tokens(length=5, seed=4)
    if name == "clip":
        call["pixel_values"] = images
    return call


def outputs_of(model, call):
    """What a model says: logits, or both embeddings of CLIP."""
    result = model(**call)
    if "logits" in result:
        return result.logits
    return torch.cat((result.text_embeds, result.image_embeds))
