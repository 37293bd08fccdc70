"""benchmarks/variants.py: its constants hold for a call of a variant, and for no other."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

pytest.importorskip("triton")

FILE = Path(__file__).parents[2] / "benchmarks" / "variants.py"


@pytest.fixture(scope="module")
def variants():
    spec = spec_from_file_location("variants", FILE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_constants_hold_while_a_variant_is_called(variants):
    from flashpoint.ops.triton import packed, replay

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
    from flashpoint.ops.triton import packed, replay

    before = packed.ON_CHIP
    none = variants.Variant("none: packed.ON_CHIP = (); replay.MOST_RECORDINGS = 1")
    with pytest.raises(ZeroDivisionError):
        none(lambda: 1 / 0)
    assert packed.ON_CHIP is before
    assert replay.MOST_RECORDINGS > 1


def test_variant_without_changes_is_the_tree(variants):
    from flashpoint.ops.triton import packed

    assert variants.Variant("now")(lambda: packed.ON_CHIP) is packed.ON_CHIP


def test_constant_that_does_not_exist_is_an_error(variants):
    with pytest.raises(AttributeError, match="NO_SUCH"):
        variants.Variant("x: packed.NO_SUCH = 1")
