"""``flashpoint models`` from the command line."""

import pytest
from lab.evaluation.trained import call

from flashpoint.errors import InputError
from flashpoint.lab.cli.models import models
from flashpoint.models.registry import list_models


def run(*arguments, columns=100):
    """What the verb prints."""
    return call(models, *arguments, columns=columns)[0]


def rows_of(out):
    """The cells of the table by name of the model."""
    rows = [line.replace("│", " ").split() for line in out.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in rows}


def test_all_models_are_listed_with_their_costs():
    rows = rows_of(run())
    assert list(rows) == list_models()
    assert rows["vit_s16"] == ["384", "12", "6", "22.1", "M", "196", "9.15", "8%"]
    assert rows["reluformer_base"] == ["512", "6+6", "8", "2048", "60.5", "M", "71.54"]


def test_image_size_changes_tokens_and_costs():
    rows = rows_of(run("s16", "--image-size", "384", "--attention", "softmax"))
    assert list(rows) == ["vit_s16"]
    assert rows["vit_s16"][5] == "576"


def test_tokens_change_the_costs_of_text():
    out = run("base", "--tokens", "2048", "--attention", "softmax")
    assert rows_of(out)["reluformer_base"][-1] == "402.12"
    assert "softmax attention, documents of 2048 tokens" in out
    assert "images" not in out


def test_tables_fit_a_usual_terminal():
    assert "…" not in run(columns=80)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("reluformer", ["reluformer_tiny", "reluformer_iwslt", "reluformer_base"]),
        ("*16", ["vit_ti16", "vit_s16", "vit_b16", "vit_l16"]),
        ("vit_b", ["vit_b32", "vit_b16", "vit_b8"]),
        ("vit_b14", ["vit_b14"]),
    ],
)
def test_filter_is_a_part_a_pattern_or_a_name(pattern, names):
    assert list(rows_of(run(pattern))) == names


def test_models_that_do_not_fit_the_images_are_named():
    out = run("vit_s", "--image-size", "40")
    assert list(rows_of(out)) == ["vit_s8"]
    assert "Not for 40 pixels: vit_s32, vit_s16." in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vit_x16"], "no model fits 'vit_x16'. Did you mean 'vit_"),
        (
            ["s16", "--image-size", "100"],
            "image size 100 is not a multiple of any patch of vit_s16",
        ),
        (["--attention", "rellu"], "Did you mean 'relu'"),
        (["tiny", "--attention", "rellu"], "Did you mean 'relu'"),
        (["relufomer_tiny"], "no model fits 'relufomer_tiny'. Did you mean 'reluformer_tiny'"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(InputError) as error:
        run(*arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_no_weights_are_allocated(monkeypatch):
    import torch

    made = []
    reset = torch.nn.Linear.reset_parameters

    def watch(self):
        made.append(self.weight.device.type)
        reset(self)

    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", watch)
    run()
    assert set(made) == {"meta"}


def test_help_says_what_to_type():
    out = run("--help")
    assert "flashpoint models s16 --image-size 384" in out
    assert all(option in out for option in ("FILTER", "--image-size", "--tokens", "--attention"))
