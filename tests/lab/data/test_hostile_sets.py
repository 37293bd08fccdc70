"""Prepared sets and Hugging Face sets whose files were changed: read, or refused in one line."""

import functools
import json
import shutil

import broken_files
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.data.test_image_kinds import save_dataset
from limits import answer

from flashpoint.lab.data.image_kinds import open_source

RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def one_line_or_images(where):
    """A set that opens is read to its end."""
    source, said = answer(lambda: open_source(where, "train"))
    for index in range(source.num_samples if source else 0):
        answer(functools.partial(source.read, index))
    return said


@functools.cache
def prepared_bytes(folder):
    np.savez(
        folder / "train.npz",
        name=np.array("mnist"),
        images=np.zeros((3, 4, 4, 1), dtype=np.uint8),
        labels=np.array([0, 1, 1]),
        class_names=np.array(["a", "b"]),
    )
    return (folder / "train.npz").read_bytes()


@settings(max_examples=300, **RELAXED)
@given(st.data())
def test_any_changed_arrays_are_read_or_one_line(tmp_path_factory, data):
    content = bytearray(prepared_bytes(tmp_path_factory.getbasetemp()))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(("flip", "cut", "end", "digits")))
        if kind == "flip":
            content[place] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del content[place : place + data.draw(st.integers(1, 200))]
        elif kind == "end":
            del content[place + 1 :]
        else:  # the shape of an array, as its header has it
            content = content.replace(
                b"(3, 4, 4, 1)",
                data.draw(
                    st.sampled_from(
                        (b"(9999999999)", b"(-3, 4, 4,1)", b"((((((((((((", b"3 * 10 ** 20")
                    )
                ),
            )
        if not content:
            break
    folder = tmp_path_factory.mktemp("set")
    (folder / "train.npz").write_bytes(content)
    one_line_or_images(f"mnist:{folder}")


@pytest.mark.parametrize("put", broken_files.NO_FILES)
def test_prepared_file_that_is_no_file_is_one_line(tmp_path, put):
    prepared_bytes.__wrapped__(tmp_path)
    assert one_line_or_images(f"mnist:{tmp_path}") == ""
    put(tmp_path / "train.npz")
    assert "is no prepared set, or is cut" in one_line_or_images(f"mnist:{tmp_path}")


def test_single_array_in_place_of_a_prepared_set_is_one_line(tmp_path):
    with (tmp_path / "train.npz").open("wb") as handle:
        np.save(handle, np.zeros(3))
    assert "is no prepared set, or is cut" in one_line_or_images(f"mnist:{tmp_path}")


@functools.cache
def dataset_folder(folder):
    return save_dataset(folder / "whole", split="test")


FILES = ("dataset_dict.json", "train/state.json", "train/dataset_info.json")


@pytest.mark.parametrize("file", FILES)
@settings(max_examples=40, **RELAXED)
@given(data=st.data())
def test_any_changed_files_of_a_huggingface_set_are_one_line(tmp_path_factory, file, data):
    whole = dataset_folder(tmp_path_factory.getbasetemp())
    folder = tmp_path_factory.mktemp("hf") / "set"
    shutil.copytree(whole, folder)
    value = json.loads((folder / file).read_bytes())
    (folder / file).write_bytes(data.draw(broken_files.broken(value)))
    one_line_or_images(f"hf:{folder}")


@pytest.mark.parametrize("file", [*FILES, "train/data-00000-of-00001.arrow"])
def test_cut_files_of_a_huggingface_set_are_one_line(tmp_path, file):
    folder = save_dataset(tmp_path / "set", split="test")
    content = (folder / file).read_bytes()
    for length in (0, 1, len(content) // 2):
        (folder / file).write_bytes(content[:length])
        assert one_line_or_images(f"hf:{folder}")
