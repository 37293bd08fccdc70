"""Sums of parts: when they are widened, and where a first part goes."""

import pytest
import torch

from flashpoint.distributed.partial import Total

SHAPE, HALF = (1, 2, 6, 4), torch.bfloat16


def part(dtype=HALF, rows=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 2, rows, 4, generator=generator).to(dtype)


def test_one_part_is_the_sum_as_it_is():
    total = Total(SHAPE, 2, part())
    only = part()
    total.add(only, slice(0, 6))
    assert total.finish() is only


def test_first_of_several_parts_is_written_in_fp32_without_zeros():
    total = Total(SHAPE, 2, part(), more=True)
    place = total.place(slice(0, 6))
    assert place is not None
    assert place.is_new
    assert place.totals.dtype == torch.float32
    place.totals.fill_(torch.nan)
    place.take(part())
    following = total.place(slice(2, 5))
    assert following is not None
    assert not following.is_new
    assert following.totals.data_ptr() == place.totals[:, :, 2:].data_ptr()  # nothing is copied
    following.take(part(rows=3, seed=1))
    expected = part().float()
    expected[:, :, 2:5] += part(rows=3, seed=1)
    assert torch.equal(total.finish(), expected)


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("dtype", [HALF, torch.float32, torch.float64], ids=str)
def test_parts_add_up_whatever_was_known(dtype, more):
    total = Total(SHAPE, 2, part(dtype), more=more)
    total.add(part(dtype), slice(0, 6))
    total.add(part(dtype, 2, 1), slice(4, 6))
    wide = torch.promote_types(dtype, torch.float32)
    expected = part(dtype).to(wide)
    expected[:, :, 4:] += part(dtype, 2, 1)
    assert torch.equal(total.finish(), expected)


def test_wide_parts_need_no_place_of_their_own():
    total = Total(SHAPE, 2, part(torch.float32), more=True)
    assert total.place(slice(0, 6)) is None


def test_a_first_part_of_some_rows_is_added_to_zeros():
    total = Total(SHAPE, 2, part(), more=True)
    place = total.place(slice(0, 5))
    assert place is not None
    assert not place.is_new
    assert not total.finish().any()
