"""A model size is one row of a table: everything that takes a model's name takes the new one."""

import pytest
from typer.testing import CliRunner

from flashpoint import create_model
from flashpoint.lab.bench import models as bench_models
from flashpoint.lab.cli.main import app
from flashpoint.lab.training import config_file
from flashpoint.lab.training.recipes import recipe
from flashpoint.models import registry

TEXT_SIZE = registry.SIZES["reluformer_tiny"] | {"width": 32, "num_heads": 2}


@pytest.fixture(autouse=True)
def _new_sizes(monkeypatch):
    monkeypatch.setitem(registry.SIZES, "vit_xs", {"width": 48, "depth": 2, "num_heads": 3})
    monkeypatch.setitem(registry.SIZES, "reluformer_small", TEXT_SIZE)


def test_models_are_made_by_the_new_names():
    image, text = create_model("vit_xs7", image_size=28), create_model("reluformer_small")
    assert (image.config.width, image.config.mlp_dim, image.config.patch_size) == (48, 192, 7)
    assert (text.config.width, text.config.mlp_dim) == (32, 128)


def test_models_are_listed_and_named_in_messages():
    result = CliRunner().invoke(app, ["models"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "vit_xs16" in result.output
    assert "reluformer_small" in result.output
    assert "vit_l and vit_xs with a patch size" in registry.known_models()
    assert registry.known_models().endswith("reluformer_base, reluformer_small.")


@pytest.mark.parametrize(
    ("name", "data", "task"), [("vit_xs2", "digits", "vision"), ("reluformer_small", "d", "text")]
)
def test_training_has_a_recipe_by_the_new_name(name, data, task):
    config = config_file.parse(recipe(name, data))
    assert (config.model.name, config.task) == (name, task)


def test_bench_times_a_step_by_the_new_name():
    case = bench_models.ModelCase(model="vit_xs8", batch=2, image_size=16, device="cpu")
    bench_models.make_step(case, "relu")()
