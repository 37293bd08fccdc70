"""Shapes and dtypes are read strictly, and FLOPs are those of the matrix products."""

from dataclasses import replace

import pytest

from flashpoint.errors import InputError
from flashpoint.lab.bench.cases import Case, Shape, choose, parse_dtypes, parse_shape

CASE = Case(shape=Shape(2, 3, 10, 4), dtype="fp32", mode="forward")


@pytest.mark.parametrize(
    "text", ["1,2,3", "1,2,3,4,5", "1,2,x,4", "1,2,0,4", "1,2,-3,4", "", "1,2/0,3,4", "1,2,:3,4"]
)
def test_bad_shape_is_refused_with_the_rule(text):
    with pytest.raises(InputError, match=f"shape '{text}' .*B,H,L,D"):
        parse_shape(text)


def test_shape_allows_spaces():
    assert parse_shape("1, 2, 3, 4") == Shape(1, 2, 3, 4)


def test_shape_may_have_fewer_key_heads_and_queries():
    shape = parse_shape("1,32/8,1:4096,128")
    assert shape == Shape(1, 32, 4096, 128, kv_heads=8, queries=1)
    assert (shape.q_sizes, shape.kv_sizes) == ((1, 32, 1, 128), (1, 8, 4096, 128))
    assert parse_shape(str(shape)) == shape


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,8/3,16,4", "8 heads are no multiple of 3 kv heads"),
        ("1,8,17:16,4", "17 queries are more than 16 keys"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_both_numbers(text, message):
    with pytest.raises(InputError, match=message):
        parse_shape(text)


def test_unknown_dtype_shows_close_match():
    with pytest.raises(InputError, match=r"dtype 'bf61'.* 'bf16'\? Known: bf16"):
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
    assert replace(CASE, mode="backward").flops == 2.5 * forward
    assert replace(CASE, causal=True).flops == forward / 2


def test_causal_flops_count_what_few_queries_see():
    decode = replace(CASE, shape=Shape(1, 1, 100, 4, queries=10))
    assert decode.flops == 4 * 10 * 100 * 4
    assert replace(decode, causal=True).flops == 4 * (10 * 100 - 50) * 4


def test_bytes_moved_are_those_of_every_tensor_once():
    case = replace(CASE, shape=Shape(1, 4, 100, 8, kv_heads=2, queries=1), dtype="bf16")
    q, kv = 2 * 4 * 8, 2 * 2 * 100 * 8
    assert case.bytes_moved == 2 * q + 2 * kv
    assert replace(case, mode="backward").bytes_moved == 3 * q + 4 * kv
    assert case.is_memory_bound
    assert not CASE.is_memory_bound


def test_work_names_what_is_not_usual():
    assert str(CASE) == "2, 3, 10, 4  fp32 forward"
    assert replace(CASE, causal=True, activation="silu").work == "fp32 causal silu forward"
