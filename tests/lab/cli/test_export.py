"""``flashpoint export`` from the command line."""

import re
import sys

import pytest
import torch
from caches import new_cache
from lab.evaluation.trained import call, trained_run
from lab.training.text_runs import text_config, write_corpus

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.cli.export import export
from flashpoint.lab.training import loop
from flashpoint.lab.training.run_folder import open_run
from flashpoint.models.reluformer import ReLUFormer
from flashpoint.models.vit import ViT

DIFFERENCE = re.compile(r"largest difference from PyTorch: (\S+), where results are up to (\S+)")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ((), "relu_10.onnx"),
        (("--format", "pt2", "--checkpoint", "20", "--out", "a/b.pt2"), "a/b.pt2"),
    ],
)
def test_file_lies_where_it_is_said_and_was_compared(tmp_path, options, name):
    out, _ = call(export, trained_run(), *options)
    step = 20 if "20" in options else open_run(trained_run()).best_step
    assert out.startswith(f"{name}: the model of {trained_run()}, step {step}, ")
    difference, largest = map(float, DIFFERENCE.search(out).groups())
    assert difference <= 1e-5 * largest
    assert (tmp_path / name).stat().st_size > 1000


def test_pretrained_folder_has_a_card_of_the_record(tmp_path):
    run = open_run(trained_run("softmax"))
    out, _ = call(export, run.path, "--format", "pretrained", "--checkpoint", "last")
    assert "softmax_10-pretrained: the model of" in out
    folder = tmp_path / "softmax_10-pretrained"
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(ViT.from_pretrained(folder)(images), run.load_model("last")(images))
    card = (folder / "README.md").read_text()
    environment = run.record.environment
    for line in (
        "# ViT with softmax attention",
        "Step 60, on the validation data, `digits`.",
        f"| top-1 | {run.record.validation['top1']:.2%} |",
        "| data | `digits` |",
        "| batch size | 64 |",
        f"| torch | {environment['torch']} |",
        f"| device | {environment['device']} |",
    ):
        assert line in card.splitlines() or line in card


@pytest.mark.slow
def test_text_model_is_its_encoder_or_a_folder_with_its_pieces(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path / "cache"))
    (tmp_path / "corpus").mkdir()
    run = tmp_path / "text"
    loop.train(text_config(write_corpus(tmp_path / "corpus"), "steps=4"), run)
    out, _ = call(export, run, "--int8")
    assert out.startswith(f"text_int8.onnx: the encoder of {run}, step 4, ")
    difference, largest = map(float, DIFFERENCE.search(out).groups())
    assert 1e-4 < difference < 0.2 * largest
    call(export, run, "--format", "pretrained", "--out", "model")
    assert ReLUFormer.from_pretrained("model").config == open_run(run).load_model().config
    assert (tmp_path / "model/pieces.model").read_bytes() == (run / "pieces.model").read_bytes()
    card = (tmp_path / "model/README.md").read_text()
    assert "| data | `jsonl:corpus` |" in card
    assert str(tmp_path) not in card


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--format", "pt2", "--int8"), "--int8 is for --format onnx, and the format is pt2"),
        (("--checkpoint", "7"), "no checkpoint of step 7.*20, 40, 60"),
        (("--format", "pt2", "--out", "a.onnx"), r"a\.onnx must end in \.pt2"),
        (("--out", "."), "is a folder. Give the name of a file"),
    ],
)
def test_wrong_arguments_are_one_line(options, message):
    with pytest.raises(InputError, match=message) as caught:
        call(export, trained_run(), *options)
    assert "\n" not in str(caught.value)


def test_missing_packages_are_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\.\[onnx\]'"):
        call(export, trained_run())


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a run's folder"):
        call(export, tmp_path)


def test_pretrained_model_is_not_written_into_its_run():
    run = trained_run()
    before = {path.name for path in run.iterdir()}
    with pytest.raises(InputError, match=r"is the run itself\. Name a folder for the model"):
        call(export, run, "--format", "pretrained", "--out", f"{run}/.")
    assert {path.name for path in run.iterdir()} == before
