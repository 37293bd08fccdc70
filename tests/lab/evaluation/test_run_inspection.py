"""Which images are looked at, and how many at a time."""

import numpy as np
import pytest
import torch
from lab.evaluation.trained import trained_run

from flashpoint.errors import InputError
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.evaluation.run_inspection import (
    batch_size_for,
    inspect_model,
    one_per_class,
    spread_samples,
)
from flashpoint.lab.training.run_folder import open_run
from flashpoint.models.registry import model_config


def test_samples_are_spread_over_the_data():
    assert spread_samples(1000, 5).tolist() == [0, 250, 500, 749, 999]
    assert spread_samples(3, 256).tolist() == [0, 1, 2]
    assert spread_samples(1, 1).tolist() == [0]


def test_images_are_of_different_classes():
    digits = open_source("digits", "validation")
    chosen = one_per_class(digits, 13)
    assert digits.labels[chosen].tolist() == [*range(10), 0, 1, 2]
    assert len(np.unique(chosen)) == 13
    for label in range(10):
        assert chosen[label] == np.flatnonzero(digits.labels == label)[0]


def test_fewer_images_than_asked_for_are_all():
    digits = open_source("digits", "validation")
    assert sorted(one_per_class(digits, 10_000)) == list(range(360))


@pytest.mark.parametrize(
    ("name", "image_size", "batch"),
    [("vit_s16", 224, 64), ("vit_l4", 512, 2), ("vit_l2", 1024, 1)],
)
def test_blocks_of_weights_stay_small(name, image_size, batch):
    assert batch_size_for(model_config(name, image_size=image_size)) == batch


def test_model_that_diverged_is_refused_before_anything_is_written(tmp_path):
    run = open_run(trained_run())
    model = run.load_model(60)
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight.fill_(1e30)
    with pytest.raises(InputError, match="the model of step 60 diverged"):
        inspect_model(model, run.config.data, tmp_path / "attention", step=60, num_samples=4)
    assert not (tmp_path / "attention").exists()
