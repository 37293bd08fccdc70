"""Views, crops, flips and randaug on decoded images; mixup of batches."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from lab.data.pictures import noise
from PIL import Image

from flashpoint.lab.data.config import AugmentationConfig
from flashpoint.lab.data.randaug import OPERATIONS, randaug
from flashpoint.lab.data.transforms import (
    Augmenter,
    crop_boxes,
    flips,
    mixup,
    mixup_share,
    pad_shifts,
    take_view,
    view_box,
)

SHAPES = [(500, 375), (375, 500), (32, 32), (300, 200)]


def boxes_of(width, height, min_area=0.05, count=20_000):
    draws = np.random.default_rng(0).random((count, 4))
    return crop_boxes(draws, width, height, min_area)


@pytest.mark.parametrize(("width", "height"), SHAPES)
@pytest.mark.parametrize("min_area", [0.05, 0.25, 0.8])
def test_inception_crops_keep_area_and_ratio_in_range(width, height, min_area):
    left, top, w, h = boxes_of(width, height, min_area).T
    area, ratio = w * h / (width * height), w / h
    assert area.min() >= min_area * (1 - 1e-9)
    assert area.max() <= 1 + 1e-9
    assert ratio.min() >= 3 / 4 - 1e-9
    assert ratio.max() <= 4 / 3 + 1e-9
    assert left.min() >= 0
    assert top.min() >= 0
    assert (left + w).max() <= width + 1e-9
    assert (top + h).max() <= height + 1e-9


def test_inception_crops_use_the_whole_range():
    left, top, w, h = boxes_of(100, 100).T
    area, ratio = w * h / 1e4, w / h
    assert area.min() < 0.06
    assert area.max() > 0.95
    assert ratio.min() < 0.76
    assert ratio.max() > 1.32
    assert left.min() < 0.1
    assert (left + w).max() > 99.9
    # the height is uniform between its bounds, as BigVision's sampler has it
    least, most = np.sqrt(0.05 * 1e4 / ratio), np.minimum(100, 100 / ratio)
    share = (h - least) / (most - least)
    assert np.allclose(np.histogram(share, 4, (0, 1))[0] / len(h), 0.25, atol=0.015)
    assert np.allclose(np.histogram(ratio, 4, (3 / 4, 4 / 3))[0] / len(h), 0.25, atol=0.015)
    places = left / (100 - w), top / (100 - h)
    assert abs(np.corrcoef(*places)[0, 1]) < 0.03
    covered = (left < 50) & (left + w > 50) & (top < 50) & (top + h > 50)
    assert covered.mean() > 0.5


def test_impossible_crops_take_the_whole_image():
    assert boxes_of(1000, 10, 0.5, 3).tolist() == [[0, 0, 1000, 10]] * 3


def test_inception_crop_of_a_ramp_shows_the_box():
    width, height = 200, 100
    ramp = np.zeros((height, width, 3), dtype=np.uint8)
    ramp[..., 0] = np.arange(width)
    ramp[..., 1] = 2 * np.arange(height)[:, None]
    augment = Augmenter(AugmentationConfig(crop="inception"), "crop", 16, 3, seed=3)
    for position in range(20):
        pixels = augment(Image.fromarray(ramp), position).astype(float)
        box = crop_boxes(first_draws(3, position)[:, :4], width, height, 0.05)[0]
        middle = pixels[:, 7:9, 7:9].mean(axis=(1, 2))
        center = box[0] + box[2] / 2 - 0.5, 2 * (box[1] + box[3] / 2 - 0.5)
        assert middle[0] == pytest.approx(center[0], abs=1.0)
        assert middle[1] == pytest.approx(center[1], abs=1.5)


def first_draws(seed, position):
    from flashpoint.lab.data.order import Purpose, generator

    return generator(seed, Purpose.AUGMENTATION, position).random((1, 5))


def test_half_of_the_images_are_mirrored():
    image = noise((8, 8))
    augment = Augmenter(AugmentationConfig(flip=True), "whole", 8, 3, seed=0)
    plain = np.asarray(image).transpose(2, 0, 1)
    results = [augment(image, position) for position in range(400)]
    mirrored = sum(np.array_equal(result, plain[:, :, ::-1]) for result in results)
    as_is = sum(np.array_equal(result, plain) for result in results)
    assert mirrored + as_is == 400
    assert 160 < mirrored < 240
    assert np.mean(flips(np.random.default_rng(0).random((10_000, 5)))) == pytest.approx(
        0.5, abs=0.02
    )


def test_without_augmentation_images_are_as_in_validation():
    image = noise((50, 40))
    augment = Augmenter(AugmentationConfig(), "crop", 16, 3, seed=0)
    expected = np.asarray(take_view(image, "crop", 16)).transpose(2, 0, 1)
    assert all(np.array_equal(augment(image, p), expected) for p in range(5))


def test_padded_crop_shifts_by_up_to_pad_and_fills_with_black():
    image = noise((8, 8))
    plain = np.asarray(image).transpose(2, 0, 1)
    padded = np.pad(plain, ((0, 0), (2, 2), (2, 2)))
    augment = Augmenter(AugmentationConfig(crop="pad", pad=2), "whole", 8, 3, seed=0)
    windows = {(y, x): padded[:, y : y + 8, x : x + 8] for y in range(5) for x in range(5)}
    seen = set()
    for position in range(300):
        result = augment(image, position)
        seen |= {at for at, window in windows.items() if np.array_equal(window, result)}
    assert seen == set(windows)


def test_pad_shifts_are_whole_and_even():
    shifts = pad_shifts(np.random.default_rng(0).random((50_000, 5)), 4)
    values, counts = np.unique(shifts, return_counts=True)
    assert values.tolist() == list(range(9))
    assert np.allclose(counts / counts.sum(), 1 / 9, atol=0.005)


def test_augmentation_follows_seed_and_position_only():
    image = noise((60, 40))
    options = AugmentationConfig(crop="inception", flip=True, randaug_ops=2, randaug_magnitude=10)
    augment, again, other = (Augmenter(options, "crop", 16, 3, seed=s) for s in (0, 0, 1))
    results = [augment(image, p) for p in range(30)]
    assert all(np.array_equal(again(image, p), results[p]) for p in reversed(range(30)))
    assert not any(np.array_equal(other(image, p), results[p]) for p in range(30))
    assert not any(np.array_equal(a, b) for a, b in pairwise(results))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_keep_size_and_mode(name, mode):
    image = noise((24, 24), mode=mode)
    for level in (0.0, 0.5, 1.0, 1.5):
        result = OPERATIONS[name](image, level, np.random.default_rng(0))
        assert (result.size, result.mode) == (image.size, mode)
        again = OPERATIONS[name](image, level, np.random.default_rng(0))
        assert np.array_equal(np.asarray(result), np.asarray(again))


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"solarize", "autocontrast"}))
def test_operations_change_images_at_full_level(name):
    image = noise((24, 24))
    result = OPERATIONS[name](image, 1.0, np.random.default_rng(0))
    assert not np.array_equal(np.asarray(result), np.asarray(image))


def apply(name, values, level):
    """An operation on a row of gray values, seen as an image of 224 pixels in height."""
    image = Image.fromarray(np.tile(np.array(values, dtype=np.uint8), (224, 1)))
    return np.asarray(OPERATIONS[name](image, level, np.random.default_rng(0)))[0].tolist()


def test_strengths_are_those_of_the_list():
    values = [0, 50, 100, 127, 128, 200, 255]
    assert apply("invert", values, 1.0) == [255 - v for v in values]
    assert apply("posterize", values, 1.0) == [v & 0xF0 for v in values]
    assert apply("posterize", values, 1.5) == [v & 0xFC for v in values]
    assert apply("posterize", values, 0.0) == [v & 0x80 for v in values]
    assert apply("solarize", values, 0.5) == [v if v < 128 else 255 - v for v in values]
    assert apply("solarize", values, 1.0) == values
    assert apply("solarize_add", values, 1.0) == [110, 160, 210, 237, 128, 200, 255]
    assert apply("brightness", values, 0.5) == values
    assert apply("brightness", [100], 1.0) == [190]
    assert apply("contrast", [100], 1.0) == [int(196 + 1.9 * (100 - 196))]


def test_geometry_is_that_of_the_list():
    line = np.zeros((224, 224), dtype=np.uint8)
    line[:, 112] = 255
    moved = np.asarray(
        OPERATIONS["translate_x"](Image.fromarray(line), 1.0, np.random.default_rng(0))
    )
    (column,) = np.flatnonzero(moved[0] == 255)
    assert abs(column - 112) == 100
    assert np.mean(moved == 128) == pytest.approx(100 / 224, abs=0.01)
    sheared = np.asarray(
        OPERATIONS["shear_x"](Image.fromarray(line), 1.0, np.random.default_rng(0))
    )
    first, last = (np.flatnonzero(sheared[row] == 255)[0] for row in (0, 200))
    assert abs(last - first) == pytest.approx(60, abs=1)
    cut = np.asarray(OPERATIONS["cutout"](Image.fromarray(line), 0.5, np.random.default_rng(0)))
    assert 0 < np.sum(cut == 128) <= 40 * 40


def test_randaug_applies_so_many_operations(monkeypatch):
    calls = []

    def record(image, level, rng):
        calls.append(level)
        return image

    for name in OPERATIONS:
        monkeypatch.setitem(OPERATIONS, name, record)
    randaug(noise(), 3, 15.0, np.random.default_rng(0))
    assert calls == [1.5] * 3


def test_randaug_draws_every_operation_alike(monkeypatch):
    counts = dict.fromkeys(OPERATIONS, 0)

    def counting(name):
        def count(image, level, rng):
            counts[name] += 1
            return image

        return count

    for name in list(OPERATIONS):
        monkeypatch.setitem(OPERATIONS, name, counting(name))
    randaug(noise(), 16_000, 10.0, np.random.default_rng(0))
    assert len(counts) == 16
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1150


@pytest.mark.parametrize("size", [(500, 375), (333, 512), (256, 256), (31, 40)])
@pytest.mark.parametrize("target", [224, 32])
def test_crop_view_is_resize_then_center_crop(size, target):
    image = noise(size)
    short = round(target * 256 / 224)
    factor = short / min(size)
    width, height = round(size[0] * factor), round(size[1] * factor)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - target) // 2, (height - target) // 2
    expected = np.asarray(resized.crop((left, top, left + target, top + target))).astype(int)
    got = np.asarray(take_view(image, "crop", target)).astype(int)
    assert np.abs(got - expected).max() <= 1


def test_squash_view_resizes_both_sides_then_crops():
    image = noise((500, 300))
    resized = image.resize((256, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((16, 16, 240, 240))).astype(int)
    assert np.abs(np.asarray(take_view(image, "squash", 224)).astype(int) - expected).max() <= 1


def test_whole_view_keeps_everything():
    image = noise((32, 32))
    assert take_view(image, "whole", 32) is image
    assert view_box("whole", 30, 20, 8) == (0.0, 0.0, 30.0, 20.0)
    expected = image.resize((8, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(np.asarray(take_view(image, "whole", 8)), np.asarray(expected))


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (2, 3)])
@pytest.mark.parametrize("crop", ["none", "pad", "inception"])
def test_tiny_and_long_images_work(size, crop):
    image = Image.new("RGB", size, (10, 200, 30))
    augment = Augmenter(AugmentationConfig(crop=crop, flip=True), "crop", 32, 3, seed=0)
    for position in range(20):
        pixels = augment(image, position)
        assert pixels.shape == (3, 32, 32)
        assert pixels[1].max() == 200


def make_batch(size=6):
    torch.manual_seed(0)
    return torch.randn(size, 3, 4, 4), torch.eye(10)[torch.arange(size)]


def test_mixup_blends_with_the_neighbor_before():
    images, targets = make_batch()
    share = mixup_share(0.3, seed=1, step=5)
    mixed, blended = mixup(images, targets, 0.3, seed=1, step=5)
    assert 0.5 <= share < 1.0
    torch.testing.assert_close(mixed, share * images + (1 - share) * images.roll(1, 0))
    torch.testing.assert_close(blended, share * targets + (1 - share) * targets.roll(1, 0))
    assert not torch.equal(mixed, images)


def test_mixup_of_zero_changes_nothing():
    images, targets = make_batch()
    mixed, blended = mixup(images, targets, 0.0, seed=0, step=0)
    assert mixed is images
    assert blended is targets


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_mixup_shares_follow_beta(p):
    shares = np.array([mixup_share(p, 0, step) for step in range(4000)])
    drawn = np.random.default_rng(0).beta(p, p, 400_000)
    expected = np.maximum(drawn, 1 - drawn)
    assert shares.mean() == pytest.approx(expected.mean(), abs=0.01)
    assert shares.std() == pytest.approx(expected.std(), abs=0.01)
    assert shares.min() >= 0.5


def test_mixup_share_follows_seed_and_step():
    assert mixup_share(0.2, 3, 7) == mixup_share(0.2, 3, 7)
    assert mixup_share(0.2, 3, 7) != mixup_share(0.2, 3, 8)
    assert mixup_share(0.2, 3, 7) != mixup_share(0.2, 4, 7)


def test_mixup_of_two_ranks_with_neighbors_equal_one():
    images, targets = make_batch(8)
    whole = mixup(images, targets, 0.5, seed=0, step=3)
    parts = [
        mixup(
            images[part],
            targets[part],
            0.5,
            seed=0,
            step=3,
            neighbor=(images[[before]], targets[[before]]),
        )
        for part, before in ((slice(0, 4), 7), (slice(4, 8), 3))
    ]
    for k in range(2):
        assert torch.equal(torch.cat([part[k] for part in parts]), whole[k])
