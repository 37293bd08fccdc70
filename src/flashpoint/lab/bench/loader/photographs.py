"""Shards of made-up photographs: noise with the spectrum of natural images, stored as JPEG.

Decoding goes by detail, so that flat or white noise would tell nothing. At 500 x 375 and quality
90 a file has some 96 kB, where ImageNet's have 110 kB.
"""

import io
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from flashpoint.lab.data.decode import require_pillow

WIDTH, HEIGHT, QUALITY = 500, 375, 90
EXPONENT = 1.2  # of the amplitude, over frequency
SPREAD, MIDDLE = 55.0, 120.0  # of levels
NUM_CLASSES = 1000
_SHARD = 1024  # images in a file
_HIGH = 4  # one of so many stands on its short side


def photograph(number: int) -> bytes:
    """A JPEG file; the same one for a number."""
    pillow = require_pillow()
    rng = np.random.default_rng(number)
    width, height = (HEIGHT, WIDTH) if number % _HIGH == 0 else (WIDTH, HEIGHT)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    amplitude = np.maximum(frequency, 1.0 / max(width, height)) ** -EXPONENT
    phases = np.exp(2j * np.pi * rng.random((3, *amplitude.shape)))
    planes = np.fft.irfft2(amplitude * phases, s=(height, width))
    planes = planes[:1] + 0.35 * planes  # channels go together
    levels = (planes - planes.mean()) / planes.std() * SPREAD + MIDDLE
    image = pillow.fromarray(levels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def write_shards(folder: Path, num_images: int, num_different: int, workers: int) -> None:
    """Write train-0000.tar, ... with so many images, and val-0000.tar with a few.

    Args:
        folder: where to.
        num_images: of all training shards.
        num_different: images that are made; all others are copies.
        workers: processes that make them.
    """
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        files = list(pool.map(photograph, range(num_different), chunksize=8))
    numbered = enumerate(islice(cycle(files), num_images))
    for shard in range(-(-num_images // _SHARD)):
        _write(folder / f"train-{shard:04}.tar", islice(numbered, _SHARD))
    _write(folder / "val-0000.tar", enumerate(files[:8]))


def _write(path: Path, files: Iterator[tuple[int, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, content in files:
            label = str(number % NUM_CLASSES).encode()
            for suffix, data in (("jpg", content), ("cls", label)):
                member = tarfile.TarInfo(f"{number:07}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
