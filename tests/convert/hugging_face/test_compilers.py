"""Models with pointwise attention compile, export, and run as the example shows."""

import runpy
from pathlib import Path

import pytest
import torch
from hugging_face_models import make_call, make_model, make_tokens, outputs_of

import flashpoint
from flashpoint import AttentionSpec
from flashpoint.convert.transformers import register

EXAMPLE = Path(__file__).parents[3] / "examples" / "hugging_face.py"


@pytest.mark.slow
def test_the_example_runs(transformers, capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    assert "2 of 4 attention modules replaced" in said
    assert "2 modules restored" in said


@pytest.mark.slow
@torch.no_grad()
def test_decoding_with_a_static_cache_compiles(transformers):
    model = make_model(transformers, "llama", register("relu4/sum"))
    tokens = make_tokens()
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    step = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    model(tokens[:, :5], past_key_values=cache)
    got = [step(tokens[:, i : i + 1], past_key_values=cache).logits for i in (5, 6)]
    expected = model(tokens).logits[:, 5:]
    torch.testing.assert_close(torch.cat(got, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "t5"])
def test_replaced_models_compile_as_one_graph(transformers, name):
    model, call = make_model(transformers, name), make_call(name)
    flashpoint.replace_attention(model, AttentionSpec(gain="learned_per_head"))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(outputs_of(compiled, call), outputs_of(model, call))


@pytest.mark.slow
@torch.no_grad()
def test_models_by_name_export_with_any_batch(transformers):
    model, call = make_model(transformers, "vit", register("relu")), make_call("vit")
    shapes = {"pixel_values": {0: torch.export.Dim("batch", min=1)}}
    program = torch.export.export(model, (), call, dynamic_shapes=shapes).module()
    images = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(program(pixel_values=images).logits, model(images).logits)
