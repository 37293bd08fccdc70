"""Shapes and dtypes are read strictly, and FLOPs are those of the matrix products."""

from dataclasses import replace

import pytest

from flashpoint.bench.cases import Case, Shape, choose, parse_dtypes, parse_shape
from flashpoint.errors import InputError

CASE = Case(shape=Shape(2, 3, 10, 4), dtype="fp32", mode="forward")


@pytest.mark.parametrize("text", ["1,2,3", "1,2,3,4,5", "1,2,x,4", "1,2,0,4", "1,2,-3,4", ""])
def test_bad_shape_is_refused_with_the_rule(text):
    with pytest.raises(
        InputError, match=f"shape '{text}' must be four positive whole numbers B,H,L,D"
    ):
        parse_shape(text)


def test_shape_allows_spaces():
    assert parse_shape("1, 2, 3, 4") == Shape(1, 2, 3, 4)


def test_unknown_dtype_shows_close_match():
    with pytest.raises(
        InputError, match=r"unknown dtype 'bf61'\. Did you mean 'bf16'\? Known: bf16"
    ):
        parse_dtypes("fp32,bf61")


def test_dtypes_are_kept_once_in_order():
    assert parse_dtypes("fp32,bf16,fp32") == ("fp32", "bf16")


def test_unknown_name_without_match_lists_all():
    with pytest.raises(InputError, match=r"unknown suite 'zzz'\. Known: cpu, vit\."):
        choose("zzz", ("cpu", "vit"), "suite")


def test_flops_count_two_products_forward_and_five_backward():
    forward = 2 * 2 * (2 * 3 * 10 * 10 * 4)
    assert CASE.flops == forward
    assert replace(CASE, mode="training").flops == 3.5 * forward
    assert replace(CASE, causal=True).flops == forward / 2
