"""Positions of patches."""

import math

import pytest
import torch

from flashpoint.errors import InputError
from flashpoint.layers.positions import resize_positions, sine2d


def test_sines_are_those_of_x_then_y():
    positions = sine2d(5, 16)[0].view(5, 5, 16)
    for row, column, i in ((0, 0, 0), (3, 1, 0), (2, 4, 3), (4, 4, 1)):
        omega = 10_000 ** (-i / 3)
        expected = [math.sin(column * omega), math.cos(column * omega)]
        expected += [math.sin(row * omega), math.cos(row * omega)]
        assert positions[row, column, i::4].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("width", [4, 18])
def test_sines_need_quarters(width):
    with pytest.raises(InputError, match=f"by 4s. Got {width}"):
        sine2d(3, width)


def test_same_grid_is_the_same_tensor():
    positions = torch.randn(1, 9, 4)
    assert resize_positions(positions, 3) is positions


def test_ramp_stays_a_ramp():
    """The bicubic of antialias reproduces it, away from the border; the other one does not."""
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    ramp = torch.stack([y, x], dim=-1).view(1, 144, 2)
    resized, other = (
        resize_positions(ramp, 24, antialias=antialias).view(24, 24, 2)
        for antialias in (True, False)
    )
    expected = (torch.arange(24.0) + 0.5) / 2 - 0.5
    inner = slice(6, 18)
    torch.testing.assert_close(resized[inner, 9, 0], expected[inner])
    torch.testing.assert_close(resized[9, inner, 1], expected[inner])
    assert 0.01 < (other - resized)[inner, inner].abs().max() < 0.1


def test_no_square_is_refused():
    with pytest.raises(InputError, match="10 positions are no square grid"):
        resize_positions(torch.ones(1, 10, 4), 2)
