"""Sets that live on the device: batches are gathered, augmented and normalized there.

The host draws a handful of random numbers for each image of the global batch and sends what
follows from them along with the samples' numbers; nothing waits for the device, and no loop runs
over images.
"""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.data.config import AugmentationConfig, DataConfig
from flashpoint.lab.data.decode import to_pixels
from flashpoint.lab.data.image_source import BrokenImageError, Integers, Pixels, Source
from flashpoint.lab.data.resident_randaug import ResidentRandaug
from flashpoint.lab.data.streamed import normalize
from flashpoint.lab.data.transforms import (
    NUM_DRAWS,
    Floats,
    crop_boxes,
    flips,
    pad_shifts,
    take_view,
    view_of,
)

MAX_MEMORY_SHARE = 0.5


def is_resident(source: Source, config: DataConfig) -> bool:
    """Whether a config keeps this source on the device."""
    if config.resident == "auto":
        return source.is_small
    return config.resident == "yes"


class ResidentImages:
    """All images of a source at the model's size, uint8 [N, C, S, S], with labels, on a device.

    Attributes:
        images, labels: of the samples that could be read.
        broken: those that could not, and why; they are left out, or replaced by the next.
    """

    def __init__(
        self, source: Source, config: DataConfig, device: torch.device, *, replaces: bool
    ) -> None:
        size = (config.channels, config.image_size, config.image_size)
        _check_memory(source, int(np.prod(size)), device)
        stored = source.resident()
        self.broken: list[str] = []
        if stored is None or tuple(stored[0].shape[1:]) != size:
            stored = self._read_all(source, config, replaces)
        self.images = stored[0].to(device)
        self.labels = stored[1].to(device)

    def _read_all(
        self, source: Source, config: DataConfig, replaces: bool
    ) -> tuple[Tensor, Tensor]:
        """Read every image and bring it to size as validation does."""
        view = view_of(source, config)
        pixels: list[Pixels | None] = []
        labels = source.labels.copy()
        for index in range(source.num_samples):
            try:
                image = take_view(source.read(index)[0], view, config.image_size)
                pixels.append(to_pixels(image, config.channels))
            except BrokenImageError as error:
                self.broken.append(str(error))
                pixels.append(None)
        readable = np.array([p is not None for p in pixels])
        if not readable.any():
            raise InputError(
                f"none of the {source.num_samples} images of {source.name} can be read: "
                f"{self.broken[0]}."
            )
        chosen = _next_readable(readable) if replaces else np.flatnonzero(readable)
        stacked = np.stack([p for p in (pixels[i] for i in chosen) if p is not None])
        return torch.from_numpy(stacked), torch.from_numpy(labels[chosen])


def _next_readable(readable: np.ndarray) -> Integers:
    """For every sample itself or the next readable one, around the end."""
    places = np.flatnonzero(readable)
    after = np.searchsorted(places, np.arange(len(readable)))
    return places[after % len(places)]


def _check_memory(source: Source, image_bytes: int, device: torch.device) -> None:
    """Refuse a set that would fill half of the memory."""
    needed = source.num_samples * image_bytes
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > MAX_MEMORY_SHARE * free:
        raise InputError(
            f"{source.name} would take {needed / 1e9:.1f} GB on {device}, more than half of its "
            f'{free / 1e9:.1f} GB. Set resident: "no".'
        )


class ResidentAugmenter:
    """Makes training images of samples' numbers and random numbers, on the device."""

    def __init__(self, stored: ResidentImages, config: AugmentationConfig) -> None:
        self._stored = stored
        self._config = config
        self._size = stored.images.shape[-1]
        device = stored.images.device
        self._steps = torch.arange(self._size, device=device)
        self._centers = (2.0 * self._steps + 1.0) / self._size - 1.0  # of pixels, in [-1, 1]
        self._channels = torch.arange(stored.images.shape[1], device=device)[:, None, None]
        self._randaug: ResidentRandaug | None = None
        if config.randaug_ops:
            self._randaug = ResidentRandaug(
                config.randaug_ops, config.randaug_magnitude, self._size, device
            )

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Uniform numbers for so many images; those of crops and flips come first in any case."""
        draws = rng.random((count, NUM_DRAWS))
        if self._randaug is None:
            return draws
        return np.hstack((draws, rng.random((count, self._randaug.num_draws))))

    def __call__(self, samples: Integers, draws: Floats) -> tuple[Tensor, Tensor]:
        """Images in [-1, 1] and labels, from numbers [b] and uniform numbers as drawn."""
        is_inception = self._config.crop == "inception"
        host = self._zooms(draws) if is_inception else self._shifts(draws)
        index = self._send(torch.from_numpy(samples))
        numbers = self._send(torch.from_numpy(host))
        images = (self._zoomed if is_inception else self._shifted)(index, numbers)
        if self._randaug is not None:
            plan = self._randaug.plan(draws[:, NUM_DRAWS:])
            plan_numbers = self._send(torch.from_numpy(plan.numbers))
            images = self._randaug(images.to(torch.uint8), plan.counts, plan_numbers)
        return normalize(images), self._stored.labels[index]

    def _send(self, tensor: Tensor) -> Tensor:
        """To the device, without waiting for it."""
        device = self._stored.images.device
        if device.type != "cuda":
            return tensor.to(device)
        return tensor.pin_memory().to(device, non_blocking=True)

    def _mirrored(self, draws: Floats) -> Floats:
        """-1 for images to mirror, else 1."""
        return np.where(flips(draws) & self._config.flip, -1.0, 1.0)

    def _shifts(self, draws: Floats) -> Integers:
        """Left, top and direction of crops from padded images, [b, 3]."""
        pad = self._config.pad if self._config.crop == "pad" else 0
        shifts = pad_shifts(draws, pad) - pad
        return np.column_stack((shifts, self._mirrored(draws))).astype(np.int64)

    def _shifted(self, index: Tensor, numbers: Tensor) -> Tensor:
        """Gather the pixels of shifted and mirrored images; outside is black."""
        left, top, direction = numbers[:, :, None].unbind(1)  # [b, 1] each
        last = self._size - 1
        columns = left + torch.where(direction > 0, self._steps, last - self._steps)  # [b, S]
        rows = top + self._steps
        images = self._stored.images[
            index[:, None, None, None],
            self._channels,
            rows.clamp(0, last)[:, None, :, None],
            columns.clamp(0, last)[:, None, None, :],
        ]
        if self._config.crop == "pad":
            seen = [(at >= 0) & (at <= last) for at in (rows, columns)]
            images = images * (seen[0][:, None, :, None] & seen[1][:, None, None, :])
        return images

    def _zooms(self, draws: Floats) -> np.ndarray:
        """Scale and shift of x and y that map the output to the crop, [b, 4] in [-1, 1]."""
        size = self._size
        left, top, width, height = crop_boxes(draws, size, size, self._config.min_area).T
        x, y = (2.0 * left + width) / size - 1.0, (2.0 * top + height) / size - 1.0
        zooms = np.stack((self._mirrored(draws) * width / size, x, height / size, y), axis=1)
        return zooms.astype(np.float32)

    def _zoomed(self, index: Tensor, numbers: Tensor) -> Tensor:
        """Crops resized to the images' size, bilinear; in whole numbers for randaug."""
        scale_x, x, scale_y, y = numbers[:, :, None].unbind(1)  # [b, 1] each
        columns, rows = self._centers * scale_x + x, self._centers * scale_y + y  # [b, S]
        shape = (len(index), self._size, self._size)
        grid = torch.stack((columns[:, None].expand(shape), rows[..., None].expand(shape)), -1)
        images = self._stored.images[index].to(torch.float32)
        cropped = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
        return cropped if self._randaug is None else cropped.round_()
