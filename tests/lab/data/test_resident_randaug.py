"""Randaug on the device: every operation gives what Pillow gives, level by level."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from implementations import needs_gpu
from lab.data.pictures import config, second_without_waiting
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from flashpoint.lab.data.batches import TrainBatches
from flashpoint.lab.data.order import Purpose, generator
from flashpoint.lab.data.randaug import OPERATIONS
from flashpoint.lab.data.resident_randaug import ResidentRandaug
from flashpoint.lab.data.small_sets import ArraySource
from flashpoint.lab.data.streamed import normalize

NAMES = list(OPERATIONS)
MAGNITUDES = [0.0, 3.3, 5.0, 10.0, 15.0, 30.0]
SIZES = [8, 20, 45]
PLACES = [(0.0, 0.0), (0.2, 0.7), (0.49, 0.5), (0.5, 0.1), (0.77, 0.99), (0.99, 0.4)]


def natural(size, channels):
    """Parts of a photograph, uint8 [8, C, S, S]."""
    datasets = pytest.importorskip("sklearn.datasets")
    photograph = Image.fromarray(datasets.load_sample_image("china.jpg"))
    photograph = photograph if channels == 3 else photograph.convert("L")
    corners = np.random.default_rng(0).integers(0, 200, (8, 2)).tolist()
    parts = [photograph.resize((size, size), box=(x, y, x + 220, y + 220)) for x, y in corners]
    return np.stack([np.asarray(part).reshape(size, size, channels) for part in parts])


def made(size, channels):
    """Noise, few values, low contrast, one value, one value but for a pixel."""
    rng = np.random.default_rng(1)
    shape = (size, size, channels)
    single = np.full(shape, 90)
    single[0, 0] = 200
    return np.stack(
        [
            rng.integers(0, 256, shape),
            rng.integers(0, 3, shape) * 127,
            100 + rng.integers(0, 40, shape),
            np.minimum(rng.integers(0, 400, shape), 255),
            np.full(shape, 77),
            single,
        ]
    ).astype(np.uint8)


@cache
def pictures(size, channels):
    return np.concatenate((natural(size, channels), made(size, channels)))


class Drawn:
    """Gives an operation these two uniform numbers, as direction or as place."""

    def __init__(self, first, second):
        self._left = [first, second]

    def random(self):
        return self._left.pop(0)

    def integers(self, high):
        return int(self._left.pop(0) * high)


def by_pillow(pixels, draws, magnitude):
    """One image [H, W, C] after the operations that its uniform numbers [ops, 3] stand for."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    for which, first, second in draws:
        operation = OPERATIONS[NAMES[int(which * len(NAMES))]]
        image = operation(image, magnitude / 10.0, Drawn(first, second))
    return np.asarray(image).reshape(pixels.shape)


def on_device(images, draws, magnitude, device="cpu"):
    """The same of many images [b, H, W, C] and numbers [b, ops, 3]."""
    draws = np.asarray(draws, dtype=np.float64)
    change = ResidentRandaug(draws.shape[1], magnitude, images.shape[1], torch.device(device))
    plan = change.plan(draws.reshape(len(draws), -1))
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).to(device)
    result = change(pixels, plan.counts, torch.from_numpy(plan.numbers).to(device))
    assert (result.dtype, result.shape) == (torch.uint8, pixels.shape)
    return result.cpu().numpy().transpose(0, 2, 3, 1)


def number_of(name):
    """A uniform number that stands for the operation."""
    return (NAMES.index(name) + 0.5) / len(NAMES)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_operation_equals_pillow(magnitude):
    """Every operation on every picture, as gray and in color; sizes and places take turns."""
    first = MAGNITUDES.index(magnitude)
    for number, size in enumerate(SIZES):
        channels = 1 if (first + number) % 2 else 3
        least = np.random.default_rng(0).integers(100, 102, (1, size, size, channels), np.uint8)
        images = np.concatenate((pictures(size, channels), least))  # the least contrast there is
        turns = [(first + number + n) % len(PLACES) for n in range(len(images))]
        for name in NAMES:
            draws = [[(number_of(name), *PLACES[turn])] for turn in turns]
            result = on_device(images, draws, magnitude)
            pairs = zip(images, draws, strict=True)
            expected = [by_pillow(image, drawn, magnitude) for image, drawn in pairs]
            assert np.array_equal(result, np.stack(expected)), (name, size, channels)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_images_equal_pillow(size):
    images = np.repeat(made(size, 3)[:1], len(NAMES), axis=0)
    draws = [[(number_of(name), 0.3, 0.6)] for name in NAMES]
    expected = [by_pillow(image, drawn, 10.0) for image, drawn in zip(images, draws, strict=True)]
    assert np.array_equal(on_device(images, draws, 10.0), np.stack(expected))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("num_ops", [1, 2, 5])
def test_operations_in_a_row_equal_pillow(num_ops, channels):
    images = np.tile(pictures(32, channels), (10, 1, 1, 1))
    draws = np.random.default_rng(2).random((len(images), num_ops, 3))
    expected = [by_pillow(image, drawn, 15.0) for image, drawn in zip(images, draws, strict=True)]
    assert np.array_equal(on_device(images, draws, 15.0), np.stack(expected))


def test_a_batch_of_one_operation_leaves_other_groups_empty():
    images = pictures(8, 3)
    draws = [[(number_of("invert"), 0.0, 0.0)]] * len(images)
    assert np.array_equal(on_device(images, draws, 10.0), 255 - images)
    assert np.array_equal(on_device(images[:1], draws[:1], 10.0), 255 - images[:1])


def test_every_operation_direction_and_place_is_drawn_alike():
    change = ResidentRandaug(2, 10.0, 8, torch.device("cpu"))
    draws = np.random.default_rng(3).random((32_000, change.num_draws))
    plan = change.plan(draws)
    for counts, (order, row, x, y) in zip(plan.counts, plan.numbers, strict=True):
        assert sorted(order.tolist()) == list(range(32_000))
        rows = [Counter(part.tolist()) for part in np.split(row, np.cumsum(counts)[:-1])]
        assert [sorted(part) for part in rows] == [list(range(n)) for n in (6, 10, 1, 1, 1, 1, 1)]
        for part, expected in zip(rows, (2000, 1000, 2000, 2000, 2000, 2000, 2000), strict=True):
            assert list(part.values()) == pytest.approx([expected] * len(part), rel=0.12)
        places = Counter(zip(x.tolist(), y.tolist(), strict=True))
        assert len(places) == 64
        assert list(places.values()) == pytest.approx([500] * 64, rel=0.2)


def make_batches(seed=0, device="cpu", channels=3, batch_size=24, **options):
    """Batches from 14 pictures that live on the device."""
    images = pictures(32, channels)
    source = ArraySource("pictures", ("a", "b"), np.arange(len(images)) % 2, images)
    settings = config(image_size=32, channels=channels, augmentation=options)
    return TrainBatches(source, settings, batch_size=batch_size, seed=seed, device=device)


def take(batches, step):
    return next(batches.iterate(step)).images


def pixels_of(images):
    """uint8 [b, H, W, C] of a batch in [-1, 1]."""
    return ((images + 1.0) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


RANDAUG = {"flip": True, "randaug_ops": 2, "randaug_magnitude": 10.0}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop", ["none", "pad", "inception"])
def test_randaug_comes_after_crop_and_flip_and_before_mixup(crop, channels):
    step, seed = 5, 3
    plain = make_batches(seed, channels=channels, crop=crop, flip=True)
    busy = make_batches(seed, channels=channels, crop=crop, mixup=0.5, **RANDAUG)
    assert plain.is_resident
    assert busy.is_resident
    rng = generator(seed, Purpose.AUGMENTATION, step)
    rng.random((24, 5))  # of crops and flips
    draws = rng.random((24, 2, 3))
    cropped = pixels_of(take(plain, step))
    expected = [by_pillow(image, drawn, 10.0) for image, drawn in zip(cropped, draws, strict=True)]
    images = take(busy, step)
    assert np.array_equal(pixels_of(images), np.stack(expected))
    assert torch.equal(images, normalize(torch.from_numpy(np.stack(expected))).permute(0, 3, 1, 2))


def test_streamed_randaug_has_the_same_frequencies():
    """Of the results of one operation on one image, over directions and places."""
    image = made(6, 1)[0]
    source = ArraySource("one", ("a", "b"), np.zeros(4, dtype=np.int64), np.stack([image] * 4))
    found = []
    for resident in ("yes", "no"):
        settings = config(
            image_size=6,
            channels=1,
            resident=resident,
            augmentation={"randaug_ops": 1, "randaug_magnitude": 10.0},
        )
        batches = TrainBatches(source, settings, batch_size=8_000, seed=0)
        images = pixels_of(take(batches, 0))
        found.append(Counter(image.tobytes() for image in images))
    assert set(found[0]) == set(found[1])
    for result, count in found[0].items():
        assert abs(count - found[1][result]) < 5 * (count + found[1][result]) ** 0.5


def test_batches_follow_seed_and_step():
    first, again, other = (make_batches(seed, crop="pad", **RANDAUG) for seed in (0, 0, 1))
    batches = [take(first, step) for step in range(4)]
    assert all(torch.equal(take(again, step), batches[step]) for step in (3, 0, 2))
    assert not torch.equal(take(other, 0), batches[0])
    assert len({batch.numpy().tobytes() for batch in batches}) == 4


class Launches(TorchDispatchMode):
    """Counts operations that make a new tensor or change one; on a GPU, about a kernel each."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


def test_a_batch_takes_few_launches():
    batches = make_batches(crop="pad", batch_size=512, **RANDAUG).iterate()
    with Launches() as launches:
        next(batches)
    assert 0 < launches.count < 150


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_gpu_operations_equal_pillow(magnitude, channels):
    images = np.tile(pictures(32, channels), (20, 1, 1, 1))
    draws = np.random.default_rng(4).random((len(images), 2, 3))
    result = on_device(images, draws, magnitude, "cuda")
    for got, image, drawn in zip(result, images, draws, strict=True):
        assert np.array_equal(got, by_pillow(image, drawn, magnitude))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop", ["none", "pad", "inception"])
def test_gpu_equals_cpu_without_waiting(crop, channels):
    on_cpu, on_gpu = (
        make_batches(device=device, channels=channels, crop=crop, **RANDAUG)
        for device in ("cpu", "cuda")
    )
    batch = second_without_waiting(on_gpu.iterate(4))
    levels = [((images.cpu() + 1) * 127.5).round() for images in (batch.images, take(on_cpu, 5))]
    is_same = levels[0] == levels[1]
    # a crop's pixel that lies between two levels may be rounded to either, and equalize spreads it
    assert is_same.float().mean() > 0.99 if crop == "inception" else is_same.all()
