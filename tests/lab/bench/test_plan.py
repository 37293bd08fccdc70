"""A request becomes items: what a suite states, in the dtypes and modes asked for."""

import pytest

from flashpoint.errors import InputError
from flashpoint.lab.bench.cases import Shape
from flashpoint.lab.bench.plan import Request, select_items

USUAL = ("flashpoint", "sdpa")


def select(device="cpu", dtypes=("bf16", "fp32"), **options):
    return select_items(Request(device=device, dtypes=dtypes, **options), USUAL)


def test_items_are_every_dtype_and_mode_of_every_shape_then_the_overhead():
    items = select()
    assert len(items) == 4 * 2 * 2 + 2
    assert [str(item.case) for item in items[:3]] == [
        "8, 6, 197, 64  bf16 forward",
        "8, 6, 197, 64  bf16 training",
        "8, 6, 197, 64  fp32 forward",
    ]
    assert [item.is_overhead for item in items] == [False] * 16 + [True] * 2
    assert [item.case.work for item in items[16:]] == ["fp32 forward", "fp32 recording"]


def test_quick_leaves_out_what_takes_long_on_the_cpu():
    assert max(item.case.shape.length for item in select(is_quick=True)) == 4096
    lengths = {i.case.shape.length for i in select("cuda", suite="decode", is_quick=True)}
    assert lengths == {32768, 131072}


def test_one_mode_is_that_of_the_suite():
    modes = {item.case.mode for item in select(mode="training") if not item.is_overhead}
    assert modes == {"training"}
    with pytest.raises(InputError, match="'decode' has no backward cases, only forward"):
        select("cuda", suite="decode", mode="backward")
    with pytest.raises(InputError, match=r"'cpu' .*backward.*forward, training"):
        select(mode="backward")


@pytest.mark.parametrize("options", [{"causal": True}, {"activation": "gelu"}])
def test_what_is_not_stated_has_no_limits(options):
    assert all(item.limits.is_empty for item in select(**options) if not item.is_overhead)


def test_shape_of_a_suite_keeps_its_limits_and_another_has_none():
    stated, other = (
        select("cuda", ("bf16",), shapes=(shape,), mode="forward", causal=True)[0]
        for shape in (Shape(4, 16, 4096, 64), Shape(1, 1, 1, 1))
    )
    assert stated.limits.speed[0].must == 1.30
    assert other.limits.is_empty


def test_cases_that_an_option_makes_the_same_are_measured_once():
    forward = select("cuda", ("bf16",), suite="long", mode="forward", activation="gelu")
    cases = [item.case for item in forward]
    assert len(cases) == len(set(cases)) == 8
    assert {case.activation for case in cases} == {"gelu"}


def test_only_takes_cases_by_a_part_of_their_name():
    forward = select("cuda", ("bf16",), suite="long", only="128  BF16 causal")
    assert [str(item.case) for item in forward] == [
        "4, 8, 4096, 128  bf16 causal forward",
        "4, 8, 4096, 128  bf16 causal backward",
    ]


def test_shapes_are_measured_in_the_modes_of_the_device():
    for device, modes in (("cpu", ["forward", "training"]), ("cuda", ["forward", "backward"])):
        items = select(device, ("fp32",), shapes=(Shape(1, 2, 3, 4),))
        assert [item.case.mode for item in items] == modes


def test_providers_are_the_usual_and_those_of_the_suite_unless_named():
    usual = select("cuda", ("bf16",), suite="long")
    assert {item.providers for item in usual} == {USUAL, (*USUAL, "flex_log")}
    named = select("cuda", ("bf16",), suite="long", providers=("plain",))
    assert {item.providers for item in named} == {("flashpoint", "plain")}


def test_suite_of_another_device_is_refused_with_what_to_do():
    with pytest.raises(
        InputError,
        match=r"'long' .*--device cuda.* for cpu: cpu\.",
    ):
        select(suite="long")
    with pytest.raises(InputError, match="for cuda: vit, long, decode, sums, corners, all"):
        select("cuda", suite="cpu")
