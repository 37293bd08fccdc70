"""A run that goes on must find the data it began with."""

import numpy as np
import pytest
from lab.training.runs import assert_same_run, tiny_config, train_quietly
from PIL import Image

from flashpoint.errors import InputError
from flashpoint.lab.runs.beginning import read_data
from flashpoint.lab.runs.failure import Preempted
from flashpoint.lab.training import loop
from flashpoint.lab.training.run_folder import open_run


@pytest.fixture
def images(tmp_path):
    """Two class folders with ten images each, for training and validation."""
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("ant", "bee"):
            place = tmp_path / "images" / split / name
            place.mkdir(parents=True)
            for number in range(10):
                pixels = generator.integers(0, 255, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return tmp_path / "images"


def config_of(images, *changes):
    places = (f"data.train={images}/train", f"data.validation={images}/val")
    return tiny_config(*places, "data.workers=0", "data.augmentation.crop=none", *changes)


def begin(config, out, monkeypatch):
    """A run that was stopped behind its first step; gives its folder."""

    def stop(self, step, wish):
        self._save(step)
        raise Preempted("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "_after", stop)
        with pytest.raises(Preempted):
            train_quietly(config, out)
    return out


@pytest.fixture
def begun(tmp_path, images, monkeypatch):
    """A run that was stopped in the middle."""
    return begin(config_of(images), tmp_path / "run", monkeypatch)


def test_run_keeps_what_it_began_with(begun):
    assert read_data(begun)["classes"] == ["ant", "bee"]
    assert read_data(begun)["samples"] == 20


def test_same_data_go_on(begun, images):
    _, text = train_quietly(config_of(images), begun)
    assert "going on from step 1 of 12" in text


def test_renamed_class_is_refused(begun, images):
    for split in ("train", "val"):
        (images / split / "ant").rename(images / split / "zebra")
    with pytest.raises(InputError, match=r"classes was \['ant', 'bee'\], is \['bee', 'zebra'\]"):
        train_quietly(config_of(images), begun)


def test_missing_image_is_refused(begun, images):
    (images / "train" / "ant" / "3.png").unlink()
    with pytest.raises(InputError, match=r"begun with other data: samples was 20, is 19"):
        train_quietly(config_of(images), begun)


def flat_config(images):
    """A run on one folder without splits."""
    return config_of(images, f"data.train={images}/train", f"data.validation={images}/train")


def test_folder_without_splits_goes_on_with_the_same_images(tmp_path, images, monkeypatch):
    whole, text = tmp_path / "whole", f"{images}/train has no folders train and val: 2 of its 20"
    assert text in train_quietly(flat_config(images), whole)[1]
    parts = begin(flat_config(images), tmp_path / "parts", monkeypatch)
    stored = open_run(parts).config.data
    assert (stored.train, stored.validation) == (
        f"{images}/train:fit",
        f"{images}/train:held-out",
    )
    assert "going on from step 1 of 12" in train_quietly(flat_config(images), parts)[1]
    assert_same_run(whole, parts)


def test_other_images_held_out_are_refused(tmp_path, images, monkeypatch):
    begun = begin(flat_config(images), tmp_path / "run", monkeypatch)
    for file in (images / "train" / "ant").iterdir():
        file.rename(file.with_stem(f"x{file.stem}"))
    with pytest.raises(InputError, match=r"begun with other data: held_out was '\w+', is '\w+'"):
        train_quietly(flat_config(images), begun)
