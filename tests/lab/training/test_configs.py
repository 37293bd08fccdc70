"""The published configs: what they say, and that they train."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from lab.training.runs import curve, train_quietly

from flashpoint.lab.training import config_file
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.vision import VisionTask

CONFIGS = Path(__file__).parents[3] / "configs"
PAPER = ("vit_i21k", "vit_i1k")
SMALLER = (
    *("data.image_size=32", "batch_size=8", "epochs=null", "steps=3", "schedule.warmup_steps=1"),
    *("compile=none", "device=cpu", "data.workers=2", "log_every=1", "evaluate_every=3"),
)


def load(name, *changes):
    return config_file.load(CONFIGS / f"{name}.yaml", changes)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_config_is_read_and_its_head_says_what_it_takes(path):
    config_file.load(path)
    text = path.read_text()
    head = text[: text.index("\nmodel:")]
    assert f"flashpoint train configs/{path.name}" in head
    assert "# Cost" in head
    assert "# Result" in head


@pytest.mark.parametrize(
    ("name", "classes", "bias", "epochs", "pool", "pre_logits", "randaug", "mixup"),
    [
        ("vit_i21k", 21843, -10.0, 30, "gap", False, 0.0, 0.0),
        ("vit_i1k", 1000, -6.9, 300, "token", True, 15.0, 0.5),
    ],
)
def test_paper_configs_hold_the_paper_s_numbers(
    name, classes, bias, epochs, pool, pre_logits, randaug, mixup
):
    config = load(name)
    model = config.model.settings
    assert (config.model.name, model["num_classes"]) == ("vit_s16", classes)
    assert (model["head_bias"], model["pool"]) == (bias, pool)
    assert model.get("pre_logits", False) is pre_logits
    assert (config.loss, config.epochs, config.batch_size) == ("sigmoid", epochs, 4096)
    assert (config.optimizer.lr, config.optimizer.betas) == (1e-3, (0.9, 0.999))
    assert (config.optimizer.weight_decay, config.optimizer.clip) == (0.1, 1.0)
    assert config.schedule.warmup_steps == 10_000
    augmentation = config.data.augmentation
    assert (augmentation.crop, augmentation.min_area, augmentation.flip) == (
        "inception",
        0.05,
        True,
    )
    assert (augmentation.randaug_ops, augmentation.randaug_magnitude) == (2, randaug)
    assert augmentation.mixup == mixup


@pytest.fixture
def shards(tmp_path):
    """Two training shards and one to validate, of JPEGs of several sizes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, count in (("train-0000", 12), ("train-0001", 12), ("val-0000", 6)):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as archive:
            for number in range(count):
                pixels = rng.integers(0, 256, (40 + number, 60, 3), dtype=np.uint8)
                image = io.BytesIO()
                Image.fromarray(pixels).save(image, "JPEG")
                label = str(number % 3).encode()
                for suffix, content in (("jpg", image.getvalue()), ("cls", label)):
                    info = tarfile.TarInfo(f"{name}-{number:06}.{suffix}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return (
        f"data.train=shards:{tmp_path}/train-{{0000..0001}}.tar",
        f"data.validation=shards:{tmp_path}/val-0000.tar",
    )


@pytest.mark.slow  # the loader's processes
@pytest.mark.parametrize("name", PAPER)
def test_paper_config_trains_on_shards_through_the_real_loader(tmp_path, shards, name):
    config = load(name, *shards, *SMALLER)
    record, _ = train_quietly(config, tmp_path / "run")
    assert record.steps == 3
    assert record.skipped == 0
    assert record.notes["broken_images"] == []
    losses = [line["loss"] for line in curve(tmp_path / "run") if line["kind"] == "train"]
    # With a zero kernel every class starts at the head's bias: a sum of softplus over classes.
    classes, bias = config.model.settings["num_classes"], config.model.settings["head_bias"]
    start = classes * np.log1p(np.exp(bias)) - bias
    assert losses[0] == pytest.approx(start, rel=1e-2)
    assert losses[2] < losses[0]


def test_digits_config_is_as_long_as_it_says():
    config = load("digits", "device=cpu")
    assert config.total_steps(VisionTask(config, Ranks()).steps_per_epoch) == 674


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["relu", "softmax"])
def test_digits_config_learns_with_either_attention(tmp_path, attention):
    """A third of it, which suffices for 93%; the whole reaches 97%."""
    config = load("digits", "device=cpu", "epochs=10", f"model.attention={attention}")
    record, _ = train_quietly(config, tmp_path / "run")
    assert record.validation["top1"] > 0.93


def test_cifar_config_has_twins_and_two_patch_sizes():
    config = load("cifar10")
    assert (config.compile, config.data.resident, config.precision) == ("graphs", "yes", "bf16")
    for change in ("model.attention=softmax", "model.patch_size=2"):
        load("cifar10", change)
