"""Generation with caches gives what the whole text gives without one, padded or not."""

import pytest
import torch
from hugging_face_models import DECODERS, make_call, make_model, make_padding, make_tokens

from flashpoint.convert.transformers import register

NEW = 4
# attention, cache, padding: all pairs meet
CASES = [
    ("relu", "dynamic", None),
    ("relu", "static", "left"),
    ("relu4/sum", "dynamic", "left"),
    ("relu4/sum", "static", None),
]


def logits_without_cache(model, tokens, padding):
    """Logits of each sample alone, cut to its tokens: no padding and no cache at all."""
    rows = [t[p.bool()] for t, p in zip(tokens, padding, strict=True)]
    return [model(row[None], use_cache=False).logits[0] for row in rows]


def named(transformers, name, attention):
    return make_model(transformers, name, register(attention))


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(("attention", "cache", "side"), CASES, ids=str)
@torch.no_grad()
def test_greedy_generation_is_that_of_whole_texts(transformers, name, attention, cache, side):
    model = named(transformers, name, attention)
    tokens = make_tokens()
    padding = torch.ones_like(tokens) if side is None else make_padding(side=side)
    result = model.generate(
        tokens,
        attention_mask=padding,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        cache_implementation=cache,
        disable_compile=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    got = torch.stack(result.logits, 1)  # [B, NEW, V]
    seen = torch.cat((padding, padding.new_ones(2, NEW)), 1)
    expected = logits_without_cache(model, result.sequences, seen)
    for row, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(row, wanted[-NEW - 1 : -1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "mistral", "t5", "whisper"])
@torch.no_grad()
def test_beams_are_those_without_a_cache(transformers, name):
    model = named(transformers, name, "relu4/sum")
    call = make_call(name, "left" if name != "whisper" else None)
    call.pop("decoder_input_ids", None)
    call |= {"max_new_tokens": NEW, "num_beams": 3, "do_sample": False, "num_return_sequences": 2}
    call |= {"return_dict_in_generate": True, "output_scores": True}
    cached, whole = (model.generate(**call, use_cache=use) for use in (True, False))
    assert cached.sequences.tolist() == whole.sequences.tolist()
    torch.testing.assert_close(cached.sequences_scores, whole.sequences_scores)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@torch.no_grad()
def test_chunks_of_a_prompt_are_the_whole_prompt(transformers, name, cache):
    model = named(transformers, name, "relu")
    tokens = make_tokens(length=9)
    if cache == "dynamic":
        past = transformers.DynamicCache(config=model.config)
    else:
        past = transformers.StaticCache(config=model.config, max_cache_len=16)
    chunks = [
        model(chunk, past_key_values=past, use_cache=True).logits
        for chunk in tokens.split((4, 3, 1, 1), dim=1)
    ]
    expected = model(tokens, use_cache=False).logits
    torch.testing.assert_close(torch.cat(chunks, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "whisper"])
@pytest.mark.parametrize("attention", ["relu", "relu4/sum"])
@torch.no_grad()
def test_encoder_decoders_generate_alike_with_all_caches(transformers, name, attention):
    model = named(transformers, name, attention)
    call = make_call(name, "left" if name == "t5" else None)
    tokens = call.pop("decoder_input_ids")[:, :3]  # several, so that the first call is a prefill
    call |= {"decoder_input_ids": tokens, "max_new_tokens": NEW, "min_new_tokens": NEW}
    call |= {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    whole = model.generate(**call, use_cache=False)
    for cache in ("dynamic", "static"):
        got = model.generate(**call, cache_implementation=cache, disable_compile=True)
        assert got.sequences.tolist() == whole.sequences.tolist()
        torch.testing.assert_close(got.logits, whole.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "whisper"])
@torch.no_grad()
def test_encoder_decoders_continue_their_caches(transformers, name):
    model = named(transformers, name, "relu")
    call = make_call(name, "right" if name == "t5" else None)
    expected = model(**call, use_cache=False).logits
    tokens = call.pop("decoder_input_ids")
    first = model(**call, decoder_input_ids=tokens[:, :3], use_cache=True)
    rest = model(
        **call | {"decoder_input_ids": tokens[:, 3:]},
        past_key_values=first.past_key_values,
        use_cache=True,
    )
    got = torch.cat((first.logits, rest.logits), 1)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
