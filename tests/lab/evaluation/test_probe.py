"""The few-shot probe from images to accuracies."""

import numpy as np
import pytest
import torch

from flashpoint.errors import InputError
from flashpoint.lab.data.batches import EvalBatches
from flashpoint.lab.data.config import DataConfig
from flashpoint.lab.data.image_kinds import open_sources
from flashpoint.lab.evaluation.few_shot import choose_shots, few_shot_accuracy
from flashpoint.lab.evaluation.probe import extract_features, probe, probe_config
from flashpoint.models.registry import create_model


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return create_model(
        "vit", width=32, depth=1, num_heads=2, mlp_dim=32, num_classes=3, image_size=8,
        patch_size=2, channels=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def config():
    data = DataConfig(train="digits", validation="digits", image_size=8, channels=1)
    return probe_config(data, "digits")


def test_probe_learns_from_the_seeds_images_and_tests_on_all(model, config):
    """As if features of the whole training split had been made."""
    result = probe(model, config, shots=5, seeds=(0, 3))
    train, test = open_sources(config)
    whole, tested = (
        extract_features(model, EvalBatches(source, config, batch_size=999))
        for source in (train, test)
    )
    assert (result.num_classes, result.num_test, result.shots) == (10, 360, 5)
    for seed, accuracy in zip(result.seeds, result.accuracies, strict=True):
        few = whole.take(choose_shots(train.labels, 10, 5, seed))
        assert accuracy == pytest.approx(few_shot_accuracy(few, tested, 10))
        assert 0.2 < accuracy < 1.0  # chance is 0.1


def test_more_shots_help(model, config):
    one, many = (probe(model, config, shots=n, seeds=(0, 1, 2)).mean for n in (1, 50))
    assert many > one + 0.1


def test_progress_counts_every_image(model, config):
    counted = []
    probe(
        model, config, shots=2, seeds=(0,), batch_size=100, on_count=lambda *c: counted.append(c)
    )
    assert counted[0] == (20, 380)
    assert counted[-1] == (380, 380)


def test_images_are_squashed_and_never_augmented():
    data = DataConfig(train="a", validation="b", labels="classes.txt", evaluation_view="crop")
    other, same = probe_config(data, "c"), probe_config(data, "a")
    assert (other.train, other.validation, other.evaluation_view) == ("c", "c", "squash")
    assert other.augmentation.crop == "none"
    assert (other.labels, same.labels) == (None, "classes.txt")
    assert [probe_config(data, where, "mine.txt").labels for where in "ac"] == ["mine.txt"] * 2


def test_features_are_of_the_frozen_model(model, config):
    train, _ = open_sources(config)
    model.train()
    features = extract_features(model, EvalBatches(train, config, batch_size=500))
    assert model.training
    assert not features.values.requires_grad
    images = torch.tensor(np.stack([np.asarray(train.read(i)[0]) for i in range(2)]))
    wanted = model.features(images[:, None].float() / 127.5 - 1.0)
    torch.testing.assert_close(features.values[:2], wanted.detach())


def test_broken_training_image_is_named(model, config, monkeypatch, tmp_path):
    from PIL import Image

    for split in ("train", "val"):
        for label in ("a", "b"):
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            for i in range(3):
                Image.new("L", (8, 8), 40 * i).save(folder / f"{i}.png")
    (tmp_path / "train" / "b" / "1.png").write_bytes(b"not an image")
    data = probe_config(
        DataConfig(train="x", validation="x", image_size=8, channels=1, workers=0,
                   max_broken_share=1.0),
        str(tmp_path),
    )  # fmt: skip
    with pytest.raises(InputError, match=r"1 of the 6 chosen training images .*1\.png"):
        probe(model, data, shots=3, seeds=(0,))
