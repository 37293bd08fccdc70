"""Models as ONNX and .pt2 files: the model's own results, for any batch and any length."""

import io
import sys

import pytest
import torch
from convert.exported_files import assert_same, needs_compiler, open_onnx
from convert.test_replace_examples import run as run_example
from torch import nn

import flashpoint
from flashpoint.convert import export, export_onnx, export_program, export_pt2
from flashpoint.convert.export import ExportError
from flashpoint.errors import InputError, UnsupportedError
from flashpoint.layers import Attention, MultiheadAttention
from flashpoint.ops.activation import BUILTIN

MASKED = {
    "bool": {"activation": "silu"},
    "causal": {"causal": True, "activation": "relu4", "normalize": "sum"},
    "window": {"window": (2, 1), "activation": "softplus", "length": "keys"},
    "float": {"activation": "sigmoid", "alpha": 0.5},
    "lengths": {"normalize": "sum", "causal": True},
}


def make_vit(attention="relu", **settings):
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2}
    model = flashpoint.create_model("vit", **{**sizes, **settings}, attention=attention)
    if isinstance(model.head, nn.Linear):
        nn.init.normal_(model.head.weight)
    return model


def make_text_model(attention="relu", **settings):
    torch.manual_seed(0)
    sizes = {"width": 16, "encoder_depth": 1, "decoder_depth": 1, "num_heads": 2, "mlp_dim": 32}
    sizes["vocabulary_size"] = 50
    return flashpoint.create_model("reluformer", **sizes, **settings, attention=attention).eval()


class Every(nn.Module):
    """Attention with every activation, some of them by the sum."""

    def forward(self, q, k, v):
        calls = [*((name, "length") for name in BUILTIN), ("relu4", "sum"), ("exp", "sum")]
        return [
            flashpoint.attention(q, k, v, activation=name, normalize=normalize)
            for name, normalize in calls
        ]


class Masked(nn.Module):
    """Attention with everything that hides keys."""

    def forward(self, q, k, v, mask, factors, lengths):
        tensors = {"bool": {"mask": mask}, "float": {"mask": factors}}
        tensors["lengths"] = {"key_lengths": lengths}
        return [
            flashpoint.attention(q, k, v, **options, **tensors.get(name, {}))
            for name, options in MASKED.items()
        ]


def heads(B, Lq, Lk):
    return torch.randn(B, 4, Lq, 8), torch.randn(B, 2, Lk, 8), torch.randn(B, 2, Lk, 8)


def masked(B, Lq, Lk):
    masks = (torch.rand(B, 1, Lq, Lk) > 0.4, torch.rand(B, 1, Lq, Lk))
    return *heads(B, Lq, Lk), *masks, torch.randint(1, Lk + 1, (B,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "make", "more"),
    [
        (Every(), heads, ()),
        (Masked(), masked, ({0: "B", 2: "Lq", 3: "Lk"},) * 2 + ({0: "B"},)),
    ],
    ids=["activations", "masks"],
)
def test_attention_in_onnx_is_ours_at_every_length(tmp_path, module, make, more):
    torch.manual_seed(0)
    axes = ({0: "B", 2: "Lq"}, {0: "B", 2: "Lk"}, {0: "B", 2: "Lk"}, *more)
    export_onnx(module, tmp_path / "a.onnx", make(2, 5, 7), dynamic_shapes=axes)
    run, operations, _ = open_onnx(tmp_path / "a.onnx")
    assert "Softmax" not in operations
    for sizes in ((2, 5, 7), (3, 9, 11), (1, 1, 6)):
        inputs = make(*sizes)
        for got, wanted in zip(run(*inputs), module(*inputs), strict=True):
            assert_same(got, wanted)


@pytest.mark.parametrize(
    ("attention", "settings"),
    [
        ("relu", {"num_classes": 3}),
        pytest.param("relu4/sum", {"pool": "token", "num_classes": 0}, marks=pytest.mark.slow),
        pytest.param("softmax", {"pool": "map", "num_classes": 3}, marks=pytest.mark.slow),
    ],
)
def test_vit_in_onnx_serves_any_batch(tmp_path, attention, settings):
    model = make_vit(attention, **settings)
    result = export_onnx(model, tmp_path / "vit.onnx")
    assert result.path == tmp_path / "vit.onnx"
    assert result.num_bytes == result.path.stat().st_size
    assert result.max_difference <= 1e-5 * result.largest
    run, operations, session = open_onnx(result.path)
    assert (operations["Softmax"] > 0) == (attention == "softmax")
    if attention == "relu":
        assert operations["Relu"] == model.config.depth
    name = "logits" if settings["num_classes"] else "features"
    assert [given.name for given in session.get_inputs()] == ["images"]
    assert [(out.name, out.shape[0]) for out in session.get_outputs()] == [(name, "batch")]
    for batch in (1, 4):
        images = torch.randn(batch, 3, 8, 8)
        assert_same(run(images)[0], model.eval()(images))


@pytest.mark.slow
def test_encoder_in_onnx_serves_any_batch_and_length(tmp_path):
    model = make_text_model()
    export_onnx(model, tmp_path / "encoder.onnx")
    run, operations, session = open_onnx(tmp_path / "encoder.onnx")
    assert "Softmax" not in operations
    assert [given.shape for given in session.get_inputs()] == [["batch", "length"], ["batch"]]
    for lengths in ([4], [15, 1, 9]):
        source = torch.randint(50, (len(lengths), max(lengths)))
        lengths = torch.tensor(lengths)
        assert_same(run(source, lengths)[0], model.encode(source, lengths))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # inside torch.export
@pytest.mark.parametrize(
    "attention",
    [
        {"activation": "sigmoid", "alpha": 0, "bias": "-log_length"},
        {"activation": "relu2", "alpha": "learned", "length": "keys", "gain": "learned_per_head"},
    ],
    ids=["log_length", "learned"],
)
def test_length_is_no_constant_of_the_program(attention):
    model = make_text_model(attention)
    source, lengths = torch.randint(50, (3, 15)), torch.tensor([15, 1, 9])
    got = export_program(model).module()(source, lengths)
    assert_same(got, model.encode(source, lengths))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # inside torch.export
@pytest.mark.parametrize("length", ["visible", "keys"])
def test_length_is_no_constant_where_all_keys_are_seen(length):
    spec = {"activation": "sigmoid", "alpha": 0, "bias": "-log_length", "length": length}
    layer = Attention(8, 2, spec)
    program = export_program(layer, torch.randn(2, 5, 8), dynamic_shapes=({1: "length"},))
    for tokens in (1, 9):
        x = torch.randn(2, tokens, 8)
        assert_same(program.module()(x), layer(x))


@pytest.mark.slow
def test_int8_is_smaller_and_near(tmp_path):
    model = make_vit(width=64, num_classes=3)
    files = [
        export_onnx(model, tmp_path / f"{int8}.onnx", int8=int8) for int8 in ("linear", "all")
    ]
    in_fp32 = sum(4 * parameter.numel() for parameter in model.parameters())
    for file, products in zip(files, (6, 8), strict=True):
        assert file.num_bytes < 0.6 * in_fp32
        assert 1e-4 < file.max_difference / file.largest < 0.1
        assert open_onnx(file.path)[1]["MatMulInteger"] == products


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.filterwarnings("ignore::FutureWarning")  # inside torch.export
def test_pt2_file_is_a_program_of_plain_operations_or_of_ours(tmp_path, fused):
    model = make_vit("relu4/sum", num_classes=3)
    result = export_pt2(model, tmp_path / "vit.pt2", fused=fused)
    program = torch.export.load(io.BytesIO(result.path.read_bytes()))
    assert ("flashpoint" in str(program.graph)) == fused
    images = torch.randn(7, 3, 8, 8)
    assert_same(program.module()(images), model(images))


@pytest.mark.slow
@needs_compiler
def test_compiled_package_serves_any_batch_and_length(tmp_path):
    model = make_text_model("relu")
    export_pt2(model, tmp_path / "encoder.pt2", compiled=True)
    run = torch._inductor.aoti_load_package(str(tmp_path / "encoder.pt2"))
    source, lengths = torch.randint(50, (3, 9)), torch.tensor([9, 4, 1])
    assert_same(run(source, lengths), model.encode(source, lengths))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_model_stays_in_the_mode_that_it_was_in():
    model = make_text_model(dropout=0.5).train()
    model.encoder.eval()
    program = export_program(model)
    assert model.training
    assert not model.encoder.training
    assert "dropout" not in str(program.graph)


class Twice(nn.Module):
    """A program that is traced otherwise than it runs."""

    def forward(self, x):
        return 2 * x if torch.compiler.is_compiling() else 3 * x


@pytest.mark.parametrize("write", [export_onnx, export_pt2])
def test_another_result_is_an_error_and_no_file(tmp_path, write):
    with pytest.raises(ExportError, match=r"differs from the model by 1\.0e\+00.*3\.0e\+00.*No f"):
        write(Twice(), tmp_path / "a.pt2", torch.ones(2, 2))
    assert not list(tmp_path.iterdir())


class NotFinite(nn.Module):
    """Results that are NaN, infinite and finite; traced, the finite ones are others."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        x = self.factor * x if torch.compiler.is_compiling() else x
        return torch.stack([x, x.log(), x / 0.0])


def test_results_that_are_not_finite_hide_no_difference(tmp_path):
    x = torch.tensor([-2.0, 0.0, 3.0])
    made = export_pt2(NotFinite(1.0), tmp_path / "a.pt2", x)
    assert (made.max_difference, made.largest) == (0.0, 3.0)
    with pytest.raises(ExportError, match=r"by 1\.5e\+00, where its results are up to 3\.0e\+00"):
        export_pt2(NotFinite(1.5), tmp_path / "b.pt2", x)


class Index(nn.Module):
    def forward(self, x):
        return (-x if torch.compiler.is_compiling() else x).argmax(-1)


class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


def test_whole_numbers_are_compared_too(tmp_path):
    with pytest.raises(ExportError, match="differs from the model by"):
        export_pt2(Index(), tmp_path / "a.pt2", torch.arange(4.0))


def test_model_that_cannot_be_traced_is_one_line():
    for model, x, shapes in (
        (Branch(), torch.ones(2, 3), None),
        (nn.Linear(3, 3), torch.ones(1, 3), ({0: "batch"},)),
    ):
        with pytest.raises(UnsupportedError, match=r"torch\.export cannot trace") as caught:
            export_program(model, x, dynamic_shapes=shapes)
        assert "\n" not in str(caught.value)


def test_dtype_that_onnxruntime_has_not_is_one_line(tmp_path):
    with pytest.raises(UnsupportedError, match=r"no kernels.*Erf.*Export model\.float\(\)"):
        export_onnx(nn.GELU(), tmp_path / "a.onnx", torch.ones(2, dtype=torch.float64))


def test_multihead_attention_serves_any_batch():
    class Self(MultiheadAttention):
        def forward(self, x, hidden):
            return super().forward(x, x, x, key_padding_mask=hidden, need_weights=False)[0]

    layer = Self(8, 2, "relu", batch_first=True)
    axes = ({0: "batch", 1: "length"}, {0: "batch", 1: "length"})
    example = (torch.randn(2, 5, 8), torch.rand(2, 5) > 0.5)
    program = export_program(layer, example, dynamic_shapes=axes)
    inputs = torch.randn(3, 7, 8), torch.rand(3, 7) > 0.5
    assert_same(program.module()(*inputs), layer(*inputs))


@pytest.mark.parametrize(
    ("model", "path", "options", "message"),
    [
        (nn.Linear(2, 2), "a.onnx", {}, "inputs of Linear are not known"),
        (nn.Linear(2, 2), "a.onnx", {"example": 3}, "example must be a tensor.* Got 3"),
        (torch.relu, "a.onnx", {}, "model must be a torch.nn.Module"),
        (make_vit(), "a.onnx", {"dynamic_shapes": ({0: "B"},)}, "none is given"),
        (make_vit(), ".", {}, "is a folder"),
        (make_vit(), "a.onnx", {"int8": True}, "int8=True is unknown.*none, linear, all"),
    ],
)
def test_wrong_arguments_are_one_line(tmp_path, model, path, options, message):
    with pytest.raises(InputError, match=message) as caught:
        export_onnx(model, tmp_path / path, **options)
    assert "\n" not in str(caught.value)


def test_pt2_files_are_named_so(tmp_path):
    with pytest.raises(InputError, match=r"a\.onnx must end in \.pt2"):
        export_pt2(make_vit(), tmp_path / "a.onnx")


def test_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"a\.pt2 cannot be written: "):
        export_pt2(nn.Identity(), tmp_path / "file" / "a.pt2", torch.ones(2))


def test_missing_onnx_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\.\[onnx\]'"):
        export_onnx(make_vit(), tmp_path / "a.onnx")


def test_bf16_is_refused_before_it_is_traced(tmp_path):
    with pytest.raises(UnsupportedError, match=r"is in bfloat16.*model\.float\(\)"):
        export_onnx(make_vit().bfloat16(), tmp_path / "a.onnx")


def test_too_large_a_model_is_refused_before_it_is_traced(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "LARGEST_ONNX", 1000)
    with pytest.raises(UnsupportedError, match=r"at most 1,000\. Export it as pt2"):
        export_onnx(make_vit(), tmp_path / "a.onnx")


@pytest.mark.slow
def test_example_prints_what_it_wrote(tmp_path):
    lines = run_example("export_onnx.py", str(tmp_path))
    assert any("Softmax 0" in line for line in lines)
    assert sum("as PyTorch's: True" in line for line in lines) == 2
    assert {file.name for file in tmp_path.iterdir()} == {"vit.onnx", "vit.pt2"}
