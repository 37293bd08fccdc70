"""Models of Hugging Face's with our attention as ONNX and .pt2 files."""

import pytest
import torch
from convert.exported_files import assert_same, needs_compiler, open_onnx
from hugging_face_models import make_call, make_model, make_padding, make_tokens

import flashpoint
from flashpoint.convert import export_onnx, export_program, export_pt2
from flashpoint.errors import InputError


@pytest.fixture
def converted(transformers):
    """A model of Hugging Face's with our attention, and how its batches vary."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(
        **sizes, intermediate_size=32, image_size=8, patch_size=4, num_labels=3
    )
    model = transformers.ViTForImageClassification(config).eval()
    flashpoint.replace_attention(model, "relu")
    return model, {"pixel_values": {0: "batch"}}


@pytest.mark.slow
def test_converted_vit_in_onnx_serves_any_batch(tmp_path, converted):
    model, shapes = converted
    images = {"pixel_values": torch.randn(2, 3, 8, 8)}
    export_onnx(model, tmp_path / "hf.onnx", images, dynamic_shapes=shapes)
    run, operations, _ = open_onnx(tmp_path / "hf.onnx")
    assert (operations["Softmax"], operations["Relu"]) == (0, 1)
    images = torch.randn(5, 3, 8, 8)
    logits = model(pixel_values=images).logits
    assert_same(run(images)[0], logits)
    program = export_program(model, {"pixel_values": images}, dynamic_shapes=shapes)
    assert_same(program.module()(pixel_values=images).logits, logits)


def test_converted_gpt2_in_onnx_serves_any_batch_and_length(tmp_path, transformers):
    model = make_model(transformers, "gpt2", n_layer=1)
    flashpoint.replace_attention(model, "relu")
    result = export_onnx(model, tmp_path / "text.onnx")
    run, operations, session = open_onnx(result.path)
    assert (operations["Softmax"], operations["Relu"]) == (0, 1)
    (ids,) = session.get_inputs()
    assert (ids.name, ids.shape) == ("input_ids", ["batch", "length"])
    for sizes in ((5, 20), (1, 1)):
        assert_same(run(make_tokens(*sizes))[0], model(make_tokens(*sizes)).logits)
    padded, shorter = make_tokens(2, 9), make_tokens(2, 9)[:, :4]
    assert_same(run(padded)[0][:, :4], model(shorter).logits)


def test_converted_llama_in_onnx_takes_padding_of_any_batch_and_length(tmp_path, transformers):
    model = make_model(transformers, "llama", num_hidden_layers=1)
    flashpoint.replace_attention(model, "relu")
    axes = {0: "batch", 1: "length"}
    export_onnx(
        model,
        tmp_path / "text.onnx",
        {**make_call("llama", "right"), "use_cache": False},
        dynamic_shapes={"input_ids": axes, "attention_mask": axes, "use_cache": None},
    )
    run, operations, _ = open_onnx(tmp_path / "text.onnx")
    assert (operations["Softmax"], operations["Relu"]) == (0, 1)
    ids, padding = make_tokens(3, 12), make_padding(12, "left", (12, 5, 9))
    wanted = model(input_ids=ids, attention_mask=padding).logits
    exists = padding.bool()
    assert_same(run(ids, padding)[0][exists], wanted[exists])


def test_model_of_transformers_that_is_not_causal_wants_an_example(tmp_path, transformers):
    for name in ("bert", "t5", "vit"):
        with pytest.raises(InputError, match=r"inputs of \w+ are not known\. Give an example"):
            export_onnx(make_model(transformers, name), tmp_path / "a.onnx")


@pytest.mark.slow
@needs_compiler
def test_compiled_package_of_a_converted_vit_serves_any_batch(tmp_path, converted):
    model, shapes = converted
    images = {"pixel_values": torch.randn(2, 3, 8, 8)}
    path = tmp_path / "hf.pt2"
    export_pt2(model, path, images, dynamic_shapes=shapes, compiled=True)
    run = torch._inductor.aoti_load_package(str(path))
    images = torch.randn(5, 3, 8, 8)
    assert_same(run(pixel_values=images).logits, model(pixel_values=images).logits)
