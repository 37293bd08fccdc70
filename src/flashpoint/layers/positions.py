"""Positions: of tokens in a row, of patches on a square grid."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.shapes import Float, Int

TEMPERATURE = 10_000.0


def sines(positions: Int[Tensor, " L"], width: int) -> Float[Tensor, "L E"]:
    """Positions as sines, then cosines, of wavelengths from 2 pi to 10,000 times that.

    Example:
        >>> sines(torch.arange(7), 64).shape
        torch.Size([7, 64])
    """
    steps = torch.arange(width // 2, device=positions.device, dtype=torch.float32)
    angles = positions.float()[:, None] * torch.exp(steps * (-2 * math.log(TEMPERATURE) / width))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def sine2d(grid: int, width: int) -> Float[Tensor, "1 N E"]:
    """Sines and cosines of x and of y, a quarter of the width each, as MoCo v3 has them.

    Example:
        >>> sine2d(7, 64).shape
        torch.Size([1, 49, 64])
    """
    if width % 4 or width < 8:
        raise InputError(f"sine2d positions need a width of at least 8, by 4s. Got {width}.")
    steps = torch.arange(width // 4, dtype=torch.float64) / (width // 4 - 1)
    frequencies = TEMPERATURE**-steps
    places = torch.arange(grid, dtype=torch.float64)
    y, x = torch.meshgrid(places, places, indexing="ij")  # rows first, as patches come
    x, y = (place.flatten()[:, None] * frequencies for place in (x, y))  # [N, E / 4]
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)[None].float()


def resize_positions(
    positions: Float[Tensor, "1 N E"], grid: int, *, antialias: bool = True
) -> Float[Tensor, "1 M E"]:
    """Learned positions of a square grid, interpolated (bicubic) to another one.

    timm does it with antialias, Hugging Face's ViT without; the two also differ when enlarging.

    Example:
        >>> resize_positions(torch.ones(1, 49, 64), 14).shape
        torch.Size([1, 196, 64])
    """
    num, width = positions.shape[1:]
    old = math.isqrt(num)
    if old * old != num:
        raise InputError(f"{num} positions are no square grid, so they cannot be resized.")
    if old == grid:
        return positions
    images = positions.float().view(1, old, old, width).permute(0, 3, 1, 2)  # [1, E, old, old]
    resized = F.interpolate(images, size=(grid, grid), mode="bicubic", antialias=antialias)
    return resized.permute(0, 2, 3, 1).reshape(1, -1, width).to(positions.dtype)
