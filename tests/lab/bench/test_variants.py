"""benchmarks/variants.py: its constants hold for a call of a variant, and for no other."""

import pytest
import typer
from scripts import load_script

from flashpoint.errors import InputError

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def variants():
    return load_script("benchmarks/variants.py")


def test_constants_hold_while_a_variant_is_called(variants):
    from flashpoint.ops.gpu import packed, replay

    before, recordings = packed.ON_CHIP, replay._recordings
    wide = variants.Variant("wide: packed.ON_CHIP = range(ON_CHIP.start, 1025)")
    inside = wide(lambda: (packed.ON_CHIP, replay._recordings))
    assert wide.name == "wide"
    assert inside[0] == range(before.start, 1025)
    assert inside[1] is not recordings
    assert wide(lambda: replay._recordings) is inside[1]
    assert packed.ON_CHIP is before
    assert replay._recordings is recordings


def test_call_that_fails_leaves_no_constant_behind(variants):
    from flashpoint.ops.gpu import packed, replay

    before = packed.ON_CHIP
    none = variants.Variant("none: packed.ON_CHIP = (); replay.MOST_RECORDINGS = 1")
    with pytest.raises(ZeroDivisionError):
        none(lambda: 1 / 0)
    assert packed.ON_CHIP is before
    assert replay.MOST_RECORDINGS > 1


def test_variant_without_changes_is_the_tree(variants):
    from flashpoint.ops.gpu import packed

    assert variants.Variant("now")(lambda: packed.ON_CHIP) is packed.ON_CHIP


@pytest.mark.parametrize(
    "text",
    ["x: packed.NO_SUCH = 1", "x: none.A = 1", "x: packed.ON_CHIP", "x: packed.ON_CHIP = y"],
)
def test_assignment_that_cannot_be_made_is_said(variants, text):
    with pytest.raises(
        InputError, match=r"cannot be set: .* Write NAME: module\.CONSTANT = value"
    ):
        variants.Variant(text)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a", "a: packed.ON_CHIP = ()"], "names must differ, got a, a"),
        (["a: b"], "cannot be set"),
    ],
)
def test_error_is_one_line(variants, texts, said, capsys):
    with pytest.raises(typer.Exit):
        variants.main(texts)
    assert said in capsys.readouterr().err
