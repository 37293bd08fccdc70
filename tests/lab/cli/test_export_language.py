"""``flashpoint export`` of language runs: every format, other sizes than traced, and back."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from caches import new_cache
from convert.test_export import assert_same, needs_compiler, open_onnx
from lab.evaluation.trained import call
from lab.training.language_runs import language_config, require_gpt2
from lab.training.runs import train_quietly

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.cli.export import export
from flashpoint.lab.training import config_file
from flashpoint.lab.training.adapting_recipe import adapting_values, folder_values
from flashpoint.lab.training.language_folder import save_language_model
from flashpoint.lab.training.language_model import LanguageModelConfig, build_language_model
from flashpoint.lab.training.run_folder import open_run

require_gpt2()

SHORT = ("steps=2", "evaluate_every=2", "checkpoint_every=2")
SIZES = {"width": 16, "depth": 2, "num_heads": 2, "length": 8, "vocabulary_size": 20}
OTHER_SIZES = ((3, 20), (1, 1), (5, 32))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs with relu, with softmax, and the last adapted: hybrid, calibrated, by low rank."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path_factory.mktemp("cache")))
        for word in ("relu", "softmax"):
            train_quietly(language_config(*SHORT, f"model.attention={word}"), folder / word)
        values = adapting_values(open_run(folder / "softmax"), 2, "relu4/sum", 2, "every_second")
        config = config_file.parse(values, ("adapt.match_steps=0", "adapt.rank=2", *SHORT))
        train_quietly(config, folder / "adapted")
    return folder


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(batch, length):
    return torch.randint(330, (batch, length), generator=torch.Generator().manual_seed(length))


def assert_serves_other_sizes(run, model):
    for sizes in OTHER_SIZES:
        assert_same(run(rows(*sizes)), model(rows(*sizes)).logits)


def test_onnx_file_of_a_relu_run_serves_any_batch_and_length(runs):
    out, _ = call(export, runs / "relu")
    assert out.startswith(f"relu.onnx: the model of {runs / 'relu'}, step 2, ")
    assert "largest difference from PyTorch: " in out
    run, operations, session = open_onnx("relu.onnx")
    assert (operations["Softmax"], operations["Relu"]) == (0, 2)
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape) == ("input_ids", ["batch", "length"])
    assert (made.name, made.shape) == ("logits", ["batch", "length", 330])
    assert_serves_other_sizes(lambda ids: run(ids)[0], open_run(runs / "relu").load_model())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # inside torch.export
def test_pt2_file_of_an_adapted_hybrid_serves_any_batch_and_length(runs):
    call(export, runs / "adapted", "--format", "pt2")
    model = open_run(runs / "adapted").load_model()
    assert_serves_other_sizes(torch.export.load("adapted.pt2").module(), model)


@pytest.mark.slow
def test_int8_file_of_an_adapted_hybrid_is_near_and_has_the_softmax_that_is_left(runs):
    call(export, runs / "adapted", "--int8")
    run, operations, _ = open_onnx("adapted_int8.onnx")
    assert [operations[name] for name in ("MatMulInteger", "Softmax", "Relu")] == [9, 1, 1]
    wanted = open_run(runs / "adapted").load_model()(rows(3, 20)).logits
    assert 1e-5 < (run(rows(3, 20))[0] - wanted).abs().max() < 0.1 * wanted.abs().max()


@pytest.mark.slow
@needs_compiler
def test_compiled_package_serves_any_batch_and_length(runs):
    call(export, runs / "adapted", "--format", "aoti")
    run = torch._inductor.aoti_load_package("adapted.aoti.pt2")
    assert_serves_other_sizes(run, open_run(runs / "adapted").load_model())


# A folder of transformers.


def load_as_the_card_says(folder):
    """The model that the card's code makes."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(code.replace("THIS_FOLDER", str(folder)), names)
    return names["model"]


@pytest.mark.parametrize("name", ["relu", "softmax", "adapted"])
def test_card_of_a_folder_loads_the_runs_model(runs, tmp_path, name):
    from transformers import GPT2LMHeadModel

    out, _ = call(export, runs / name, "--format", "pretrained", "--out", "model")
    assert out.startswith(f"model: the model of {runs / name}, step 2, ")
    assert "load it as model/README.md says; its weights and results are equal" in out
    folder = tmp_path / "model"
    model, ids = open_run(runs / name).load_model(), rows(3, 20)
    assert torch.equal(load_as_the_card_says(folder)(ids).logits, model(ids).logits)
    plain = GPT2LMHeadModel.from_pretrained(folder)  # softmax, whatever the run's was
    assert torch.equal(plain(ids).logits, model(ids).logits) == (name == "softmax")
    assert (folder / "pieces.model").read_bytes() == (runs / name / "pieces.model").read_bytes()
    card = (folder / "README.md").read_text()
    assert "| perplexity | " in card
    assert ("attention-without-softmax" in card) == (name == "relu")
    assert ("alone it gives softmax" in card) == (name != "softmax")


@pytest.mark.parametrize(
    "settings",
    [
        {"attention": {"activation": "sigmoid", "alpha": "learned", "bias": "-log_length"}},
        {"attention": {"gain": "learned", "length": "keys"}, "layers": "every_second"},
        {
            "attention": {"bias": "-log_length", "gain": "learned_per_head"},
            "scale": "learned_per_head",
        },
    ],
    ids=["alpha", "gain", "calibrated with -log_length"],
)
def test_what_layers_learned_comes_back(tmp_path, settings):
    config = LanguageModelConfig(**SIZES, **settings)
    model = build_language_model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    save_language_model(model, config, tmp_path / "model")
    ids = torch.arange(8)[None]
    got = load_as_the_card_says(tmp_path / "model")(ids).logits
    assert torch.equal(got, model(ids).logits)


def test_folder_is_written_again_and_nobody_elses_is(runs, tmp_path):
    words = (runs / "relu", "--format", "pretrained", "--out", "model")
    call(export, *words)
    call(export, *words)
    for content in ("{}", "3", "no JSON"):
        (tmp_path / "model/config.json").write_text(content)
        with pytest.raises(InputError, match=r"model has .* and no model of a run") as caught:
            call(export, *words)
        assert "\n" not in str(caught.value)
        assert (tmp_path / "model/config.json").read_text() == content


def test_tokenizer_of_an_adapted_folder_has_the_name_that_transformers_wants(runs, tmp_path):
    shutil.copytree(runs / "relu", "run")
    (tmp_path / "run/pieces.model").write_text('{"version": "1.0"}')
    call(export, "run", "--format", "pretrained", "--out", "model")
    assert (tmp_path / "model/tokenizer.json").read_text() == '{"version": "1.0"}'
    assert not (tmp_path / "model/pieces.model").exists()


def test_exported_model_without_softmax_is_no_teacher(runs):
    for name, said in (("relu", "with 'relu' attention, and only softmax"), ("softmax", "has no")):
        call(export, runs / name, "--format", "pretrained", "--out", name)
        with pytest.raises(InputError, match=said) as caught:
            folder_values(Path(name), "words:60", "relu", 5)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (("--format", "pt2", "--int8"), InputError, "--int8 is for --format onnx"),
        (("--checkpoint", "7"), InputError, "no checkpoint of step 7"),
        (("--format", "pt2", "--out", "a.onnx"), InputError, r"must end in \.pt2"),
        (("--format", "pretrained", "--out", "RUN"), InputError, "is the run itself"),
        (("--format", "pretrained", "--out", "file"), InputError, "cannot be written"),
    ],
)
def test_wrong_arguments_are_one_line(runs, tmp_path, options, error, said):
    (tmp_path / "file").touch()
    words = [str(runs / "relu") if word == "RUN" else word for word in options]
    with pytest.raises(error, match=said) as caught:
        call(export, runs / "relu", *words)
    assert "\n" not in str(caught.value)


def test_attention_that_no_line_puts_back_is_refused(tmp_path):
    config = LanguageModelConfig(**SIZES, attention="relu", scale="learned_per_head")
    with pytest.raises(UnsupportedError, match=r"not both gain and bias.*onnx or pt2") as caught:
        save_language_model(build_language_model(config), config, tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()
