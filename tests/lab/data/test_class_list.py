"""Class lists as editors and spreadsheets leave them."""

import pytest

from flashpoint.errors import InputError
from flashpoint.lab.data.class_list import read_class_list, rename_classes


def test_byte_order_mark_is_no_part_of_the_first_class(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("n00000002 second\nfirst\n", encoding="utf-8-sig")
    assert read_class_list(file) == ["n00000002", "first"]


def test_lines_are_counted_with_the_empty_ones(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("\ndog\n\n\ncat\n")
    with pytest.raises(InputError, match=r"has 'cat' in line 5, but it is label 0 of set"):
        rename_classes(["cat", "dog"], file, "set")
    file.write_text("cat\n\n\ncat\n")
    with pytest.raises(InputError, match=r"'cat' more than once: in lines 1 and 4\."):
        read_class_list(file)
