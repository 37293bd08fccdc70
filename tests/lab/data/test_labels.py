"""Labels are whole numbers from 0 on; anything else is one line, before memory is taken.

Class lists are as editors and spreadsheets leave them.
"""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.data.pictures import encoded, make_tar, picture, sample
from lab.data.test_image_kinds import save_dataset
from limits import answer, limited

from flashpoint.errors import InputError
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.labels import (
    MAX_CLASSES,
    as_labels,
    name_labels,
    number_labels,
    read_class_list,
    rename_classes,
)

HUGE = 99999999999999999999999
WRONG = (
    *([0.5, 1.5], [0.0, 1.0], [float("nan"), 1.0], [True, False], ["0", "1"], [None, 0]),
    *([[0], [1]], [[0], [1, 2]], [{"a": 1}], [0, HUGE], [0, 2**63 + 1], [-1, 0], [0, MAX_CLASSES]),
)


@pytest.mark.parametrize("values", WRONG, ids=str)
def test_other_values_are_refused(values):
    with limited(), pytest.raises(InputError, match=r"^x has .*label") as refused:
        as_labels(values, "x")
    assert "\n" not in str(refused.value)


@given(st.lists(st.integers(0, MAX_CLASSES - 1)), st.sampled_from(("i4", "u4", "i8", "u8")))
def test_whole_numbers_come_back(values, kind):
    labels = as_labels(np.array(values, dtype=kind), "x")
    assert labels.dtype == np.int64
    assert labels.tolist() == values


@given(st.lists(st.one_of(st.integers(), st.floats(), st.booleans(), st.text(), st.none())))
def test_any_list_is_labels_or_one_line(values):
    labels, said = answer(lambda: as_labels(values, "x").tolist())
    if said:
        assert said.startswith("x has ")
    else:
        assert labels == values
        assert all(type(value) is int and 0 <= value < MAX_CLASSES for value in values)


@given(st.lists(st.from_regex(r"[-+]?[0-9.]{1,60}|[a-c]{1,3}|nan|-inf|1e5", fullmatch=True)))
def test_any_texts_are_numbers_names_or_one_line(texts):
    numbers, said = answer(lambda: number_labels(texts, "x"))
    if said or numbers is not None:
        assert all(text.lstrip("+-").isdigit() for text in texts)
        assert bool(said) != (numbers == {text: int(text) for text in texts})
        return
    names, said = answer(lambda: name_labels(texts, "x"))
    assert said or names == sorted(texts)
    assert bool(said) == all(map(is_number, texts))


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def one_line(place):
    opened, said = answer(lambda: open_source(place, "train"))
    assert opened is None
    return said


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("0", str(HUGE)), f"has the label {HUGE}; labels must be whole numbers in [0, 999999]"),
        (("0", "9" * 5000), "has the label '999"),
        (("0", str(MAX_CLASSES)), "has the label 1000000;"),
        (("0", "1", "-1"), "the label -1 is below 0"),
        (("0.5", "1.5"), "'; labels must be whole numbers"),
        (("0", "1.0"), "has the label '1.0'; labels must be whole numbers"),
        (("nan", "1"), "has the label 'nan'"),
    ],
)
def test_wrong_labels_of_shards_are_one_line(tmp_path, labels, said):
    members = [sample(n, label) for n, label in enumerate(labels)]
    make_tar(tmp_path / "x.tar", itertools.chain.from_iterable(members))
    assert said in one_line(f"shards:{tmp_path}")


def test_numbers_may_be_names_of_a_class_list(tmp_path):
    make_tar(tmp_path / "x.tar", [*sample(0, "2.0"), *sample(1, "1.5")])
    (tmp_path / "classes.txt").write_text("1.5\n2.0\n")
    assert open_source(f"shards:{tmp_path}", "train").labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    "fields",
    [
        *({"label": value} for value in (0.5, True, None, [1], {"a": 1}, "", float("nan"))),
        *({"label": 1, "class_name": name} for name in ([1], {}, 3, None)),
        {"label": HUGE**50},
    ],
    ids=str,
)
def test_json_labels_of_other_types_are_no_labels(tmp_path, fields):
    members = [*sample(0, 0), *sample(1, 1)]
    image = encoded(picture(2))
    members += [("z.png", image), ("z.json", json.dumps(fields).encode())]
    make_tar(tmp_path / "x.tar", members)
    source = open_source(f"shards:{tmp_path}", "train")
    assert source.class_names == ("0", "1")
    if "class_name" in fields:
        assert source.labels.tolist() == [0, 1, 1]
    else:
        assert source.damage == [f"{tmp_path}/x.tar: 1 images without a label, as z.png"]


def test_nested_label_files_are_no_labels(tmp_path):
    image = encoded(picture(2))
    for text in (b"[" * 200_000, b'{"label":' * 100_000, b'{"label": ' + b"9" * 5000 + b"}"):
        make_tar(
            tmp_path / "x.tar", [*sample(0, 0), *sample(1, 1), ("z.png", image), ("z.json", text)]
        )
        source = open_source(f"shards:{tmp_path}", "train")
        assert source.num_samples == 2
        assert "1 images without a label, as z.png" in source.damage[0]


def kinds():
    datasets = pytest.importorskip("datasets")
    value = datasets.Value
    return {
        "float": ((0.5, 1.5), value("float32"), "has the label 0.5; labels must be whole numbers"),
        "whole float": ((0.0, 1.0), value("float64"), "has the label 0.0; labels must be whole"),
        "text": (("a", "b"), value("string"), "has the label 'a'; labels must be whole numbers"),
        "bool": ((True, False), value("bool"), "has the label True; labels must be whole"),
        "lists": (([0], [1]), datasets.List(value("int32")), "labels must be whole numbers"),
        "several": (([0], [1, 2]), datasets.List(value("int32")), "labels must be whole numbers"),
        "fields": (({"a": 1}, {"a": 2}), {"a": value("int32")}, "labels must be whole numbers"),
        "missing": ((0, None, 1), value("int32"), "has 1 samples without a label. Take a split"),
        "negative": ((0, -1, 1), value("int64"), "the label -1 is below 0"),
        "huge": ((0, 10**15), value("int64"), "has the label 1000000000000000; labels must be"),
        "no rows": ((), value("int64"), "is no Hugging Face dataset on disk: it has no rows"),
        "no rows of classes": ((), None, "is no Hugging Face dataset on disk: it has no rows"),
        "missing class": ((0, None, 1), None, "has 1 samples without a label"),
    }


@pytest.mark.parametrize("kind", kinds())
def test_wrong_labels_of_huggingface_sets_are_one_line(tmp_path, kind):
    labels, label_type, said = kinds()[kind]
    folder = save_dataset(tmp_path / "set", labels, label_type=label_type)
    assert said in one_line(f"hf:{folder}")


@pytest.mark.parametrize(
    "content",
    [
        {"labels": np.array([0.5, 1.5])},
        {"labels": np.array([True, False])},
        {"labels": np.array([[0], [1]])},
        {"labels": np.array(["0", "1"])},
        {"labels": np.array([0, -1])},
        {"labels": np.array([0, 10**15])},
        {"labels": np.array([0, 1, 1])},
        {"labels": np.array(3)},
        {"images": np.zeros((2, 4, 4), dtype=np.uint8)},
        {"images": np.zeros((2, 4, 4, 3))},
        {"images": np.zeros((2, 4, 4, 2), dtype=np.uint8)},
        {"class_names": np.array("ab")},
        {"class_names": np.array(["a"])},
    ],
    ids=str,
)
def test_wrong_arrays_of_prepared_sets_are_one_line(tmp_path, content):
    whole = {
        "name": "mnist",
        "images": np.zeros((2, 4, 4, 1), dtype=np.uint8),
        "labels": np.array([0, 1]),
        "class_names": np.array(["a", "b"]),
    }
    np.savez(tmp_path / "train.npz", **whole)
    assert open_source(f"mnist:{tmp_path}", "train").num_samples == 2
    np.savez(tmp_path / "train.npz", **(whole | content))
    one_line(f"mnist:{tmp_path}")


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
