"""Randaug of streamed images on the GPU, by the operations that workers drew.

Tables of levels and of moved pixels are read off the Pillow operations, as for resident sets.
"""

import numpy as np
import torch
from torch import Tensor

from flashpoint.lab.data.randaug import FULL_LEVEL, blend_factor, cutout_half
from flashpoint.lab.data.resident_randaug import moved_pixels, pointwise_levels
from flashpoint.shapes import Int, UInt8


class DeviceRandaug:
    """Changes batches by the operations that were drawn; nothing waits for the device.

    Args:
        magnitude: as ``randaug`` takes it.
        size: height and width of the images.
        device: where they are.
    """

    def __init__(self, magnitude: float, size: int, device: torch.device) -> None:
        level = magnitude / FULL_LEVEL
        self._levels = torch.from_numpy(pointwise_levels(level)).to(device)
        self._sources = torch.from_numpy(moved_pixels(level, size).astype(np.int32)).to(device)
        self._half, self._factor = cutout_half(level, size), blend_factor(level)

    def __call__(
        self, images: UInt8[Tensor, "b 3 S S"], operations: Int[Tensor, "ops b 4"]
    ) -> UInt8[Tensor, "b 3 S S"]:
        """The images after their operations, one after the other."""
        from flashpoint.lab.data.gpu.change import launch_change

        for each in operations.unbind():
            images = launch_change(
                images, each, self._levels, self._sources, self._half, self._factor
            )
        return images
