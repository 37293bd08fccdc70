"""Images on the device: gathered, cropped, flipped and normalized there."""

import numpy as np
import pytest
import torch
from implementations import needs_gpu
from lab.data.pictures import config, noise, second_without_waiting
from PIL import Image

from flashpoint.errors import InputError
from flashpoint.lab.data import resident
from flashpoint.lab.data.batches import TrainBatches
from flashpoint.lab.data.resident import ResidentAugmenter, ResidentImages
from flashpoint.lab.data.small_sets import ArraySource
from flashpoint.lab.data.streamed import normalize
from flashpoint.lab.data.transforms import crop_boxes, flips, pad_shifts

DRAWS = np.random.default_rng(0).random((64, 5))
SAMPLES = np.random.default_rng(1).integers(0, 20, 64)


def make_source(size=12):
    images = np.stack([np.asarray(noise((size, size), seed=s)) for s in range(20)])
    return ArraySource("noise", ("a", "b"), np.arange(20) % 2, images)


def augment(device="cpu", **options):
    settings = config(image_size=12, augmentation=options)
    stored = ResidentImages(make_source(), settings, torch.device(device), replaces=True)
    images, labels = ResidentAugmenter(stored, settings.augmentation)(SAMPLES, DRAWS)
    assert labels.tolist() == (SAMPLES % 2).tolist()
    return images


def plain():
    """The images of the samples, float in [-1, 1], channels first."""
    images = make_source().images[SAMPLES].transpose(0, 3, 1, 2)
    return normalize(torch.from_numpy(images))


def test_without_augmentation_images_are_as_stored():
    assert torch.equal(augment(), plain())


def test_flips_mirror_the_drawn_ones():
    expected = plain()
    mirrored = torch.from_numpy(flips(DRAWS))
    assert 20 < mirrored.sum() < 44
    expected[mirrored] = expected[mirrored].flip(3)
    assert torch.equal(augment(flip=True), expected)


def test_padded_crops_equal_padding_then_cropping():
    padded = torch.nn.functional.pad(plain(), (3, 3, 3, 3), value=-1.0)
    windows = [
        image[:, int(top) : int(top) + 12, int(left) : int(left) + 12]
        for image, (left, top) in zip(padded, pad_shifts(DRAWS, 3), strict=True)
    ]
    expected = torch.stack(windows)
    assert torch.equal(augment(crop="pad", pad=3), expected)
    mirrored = torch.from_numpy(flips(DRAWS))
    expected[mirrored] = expected[mirrored].flip(3)
    assert torch.equal(augment(crop="pad", pad=3, flip=True), expected)


def test_inception_crops_equal_pillow():
    images = augment(crop="inception", min_area=0.3, flip=True)
    boxes = crop_boxes(DRAWS[:, :4], 12, 12, 0.3)
    for k, (left, top, width, height) in enumerate(boxes.tolist()):
        image = Image.fromarray(make_source().images[SAMPLES[k]])
        box = (left, top, left + width, top + height)
        crop = image.resize((12, 12), Image.Resampling.BILINEAR, box=box)
        expected = normalize(torch.from_numpy(np.array(crop).transpose(2, 0, 1)))
        expected = expected.flip(2) if flips(DRAWS)[k] else expected
        assert (images[k] - expected).abs().max() < 0.02  # Pillow rounds to 8 bits


def test_whole_crop_is_the_image():
    torch.testing.assert_close(augment(crop="inception", min_area=1.0), plain(), atol=1e-5, rtol=0)


def test_too_large_a_set_is_refused(monkeypatch):
    monkeypatch.setattr(resident, "MAX_MEMORY_SHARE", 1e-9)
    with pytest.raises(InputError, match=r'more than half of its .* Set resident: "no"'):
        ResidentImages(make_source(), config(), torch.device("cpu"), replaces=True)


def test_streamed_and_resident_sets_see_the_same_samples():
    shown = []
    for kind in ("yes", "no"):
        settings = config(image_size=12, resident=kind)
        batches = TrainBatches(make_source(), settings, batch_size=16, seed=0)
        shown.append(next(batches.iterate(9)))
    assert torch.equal(shown[0].images, shown[1].images)
    assert torch.equal(shown[0].labels, shown[1].labels)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("crop", ["none", "pad", "inception"])
def test_gpu_equals_cpu_without_waiting(crop):
    on_cpu, on_gpu = (
        TrainBatches(
            make_source(),
            config(image_size=12, augmentation={"crop": crop, "flip": True}),
            batch_size=32,
            seed=0,
            device=device,
        )
        for device in ("cpu", "cuda")
    )
    batch = second_without_waiting(on_gpu.iterate(4))
    expected = next(on_cpu.iterate(5))
    assert batch.images.is_cuda
    torch.testing.assert_close(batch.images.cpu(), expected.images, atol=1e-5, rtol=0)
    assert torch.equal(batch.labels.cpu(), expected.labels)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_gpu_gets_streamed_batches(workers):
    shown = []
    for device in ("cpu", "cuda"):
        settings = config(image_size=12, resident="no", workers=workers)
        batches = TrainBatches(make_source(), settings, batch_size=8, seed=0, device=device)
        iterator = batches.iterate(3)
        shown.append([next(iterator) for _ in range(10)])
    for expected, batch in zip(*shown, strict=True):
        assert batch.images.is_cuda
        torch.testing.assert_close(batch.images.cpu(), expected.images, atol=1e-6, rtol=0)
        assert torch.equal(batch.labels.cpu(), expected.labels)
