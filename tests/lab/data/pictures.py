"""Small images, folders and shards for tests. An image's color tells which sample it is."""

import io
import tarfile
import warnings
from collections.abc import Iterable

import numpy as np
import torch
from PIL import Image

from flashpoint.lab.data.config import AugmentationConfig, DataConfig


def picture(number: int, size: tuple[int, int] = (20, 16)) -> Image.Image:
    """A flat image whose red and green are the number."""
    color = (number % 256, number // 256, 128)
    return Image.new("RGB", size, color)


def noise(size: tuple[int, int] = (40, 30), seed: int = 0, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(seed)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    return Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))


def encoded(image: Image.Image, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def number_of(pixels: np.ndarray) -> int:
    """Which picture uint8 [C, H, W] shows."""
    return int(pixels[0, 0, 0]) + 256 * int(pixels[1, 0, 0])


def numbers_of(images) -> list[int]:
    """Which pictures a batch in [-1, 1] shows."""
    pixels = ((images.cpu() + 1.0) * 127.5).round().to(int).numpy()
    return [number_of(image) for image in pixels]


def make_folder(root, counts: dict[str, int]):
    """Class folders with numbered pictures; gives the root."""
    number = 0
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for _ in range(count):
            (root / name / f"{number:04}.png").write_bytes(encoded(picture(number)))
            number += 1
    return root


def make_tar(path, members: Iterable[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT):
    """A tar file of these names and contents; gives the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def sample(number: int, label: int | str) -> list[tuple[str, bytes]]:
    """The members of one WebDataset sample."""
    key = f"sample{number:06}"
    return [(f"{key}.png", encoded(picture(number))), (f"{key}.cls", str(label).encode())]


def make_shards(folder, num_shards: int, each: int, classes: int = 5):
    """Shards train-000.tar, ... of numbered pictures, labels number % classes."""
    number = 0
    for shard in range(num_shards):
        members = []
        for _ in range(each):
            members += sample(number, number % classes)
            number += 1
        make_tar(folder / f"set-{shard:03}.tar", members)
    return folder


def second_without_waiting(batches):
    """The second batch from here; an error if the host waits for the GPU on the way."""
    next(batches)
    try:
        with warnings.catch_warnings():  # that the mode is a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        return next(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def config(train="unused", *, augmentation=None, **changes) -> DataConfig:
    """A config for 8 x 8 color images, without workers."""
    values = {"train": train, "validation": train, "image_size": 8, "workers": 0} | changes
    return DataConfig(augmentation=AugmentationConfig(**(augmentation or {})), **values)
