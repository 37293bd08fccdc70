"""Image folders without splits: one image of ten is held out, always the same ones."""

import os

import pytest
from lab.data.pictures import config, make_folder

from flashpoint.errors import InputError
from flashpoint.lab.data.image_kinds import (
    is_held_out_of,
    open_source,
    open_sources,
    remark_on_flat,
    split_flat,
)

FROZEN = ["a/0022.png", "a/0034.png", "b/0008.png", "b/0016.png"]


def files_of(source):
    return [os.path.relpath(source.path(n), source.root) for n in range(source.num_samples)]


def tree(folder):
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_a_tenth_of_every_class_is_held_out(tmp_path):
    flat = make_folder(tmp_path / "flat", {"a": 30, "b": 7, "c": 2, "d": 100})
    before = tree(flat)
    train, validation = open_sources(config(str(flat)))
    assert validation.label_counts.tolist() == [3, 1, 1, 10]
    assert train.label_counts.tolist() == [27, 6, 1, 90]
    whole = open_source(str(flat), "train")
    assert sorted(files_of(train) + files_of(validation)) == sorted(files_of(whole))
    assert validation.read(0)[1] == 0
    assert tree(flat) == before


def test_which_images_are_held_out_follows_from_their_paths_alone(tmp_path):
    """The names below are frozen: a run must find the same images with a later version."""
    flat = make_folder(tmp_path / "flat", {"b": 20, "a": 20})
    _, validation = open_sources(config(str(flat)))
    assert files_of(validation) == FROZEN
    other = make_folder(tmp_path / "elsewhere" / "other", {"b": 20, "a": 20})
    assert files_of(open_sources(config(str(other)))[1]) == FROZEN


def test_parts_can_be_named_and_are_kept_apart(tmp_path):
    flat = make_folder(tmp_path / "flat", {"a": 20, "b": 20})
    fit, held_out = f"{flat}:fit", f"{flat}:held-out"
    resolved = split_flat(config(f"{flat}/"))
    assert (resolved.train, resolved.validation) == (fit, held_out)
    assert split_flat(resolved) == resolved
    train, validation = open_sources(resolved)
    assert (train.num_samples, validation.num_samples) == (36, 4)
    assert validation.name == held_out
    for part in (fit, held_out):
        with pytest.raises(InputError, match="share 1 of 1 shards of the latter"):
            open_sources(config(str(flat), validation=part))
    with pytest.raises(InputError, match="are the same images"):
        open_sources(config(fit, validation=fit))


def test_folder_by_two_names_is_split_as_well(tmp_path, monkeypatch):
    make_folder(tmp_path / "flat", {"a": 20, "b": 20})
    (tmp_path / "link").symlink_to("flat")
    monkeypatch.chdir(tmp_path)
    train, validation = open_sources(config("flat", validation="./link"))
    assert not set(files_of(train)).intersection(files_of(validation))
    assert is_held_out_of("flat:held-out", "link")
    assert not is_held_out_of("flat:fit", "flat")
    assert not is_held_out_of("other:held-out", "flat")


def test_folder_with_splits_is_taken_as_it_is(tmp_path):
    for split, each in (("train", 20), ("val", 3)):
        make_folder(tmp_path / "set" / split, {"a": each, "b": each})
    settings = config(str(tmp_path / "set"))
    assert split_flat(settings) is settings
    train, validation = open_sources(settings)
    assert (train.num_samples, validation.num_samples) == (40, 6)
    assert remark_on_flat(settings, train, validation) == ""
    held_out = open_source(f"{tmp_path}/set:held-out", "train")
    assert held_out.num_samples == 4
    assert not is_held_out_of(f"{tmp_path}/set:held-out", f"{tmp_path}/set")


def test_class_with_one_image_is_trained_on_and_named(tmp_path):
    settings = config(str(make_folder(tmp_path / "flat", {"a": 20, "b": 1})))
    train, validation = open_sources(settings)
    assert train.label_counts.tolist() == [18, 1]
    assert validation.label_counts.tolist() == [2, 0]
    assert remark_on_flat(settings, train, validation) == (
        f"{tmp_path}/flat has no folders train and val: 2 of its 21 images are held out for "
        "validation, class by class, the same ones every time. Classes with one image, which "
        "is trained on: b."
    )


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"a": 1, "b": 1}, "has one image in every class, so that none can be held out"),
        ({"a": 5}, r"flat has 1 class \(a\); a classifier needs at least 2"),
        ({"a": 5, "b": 0}, "the class folder .*flat/b holds no images"),
        ({"Train/a": 2, "Train/b": 2, "dev/a": 2}, "flat has Train and dev with class folders in"),
        ({"train/a": 2, "train/b": 2}, r"or pass .*flat/train alone: one image of 10 is then hel"),
    ],
)
def test_folder_that_cannot_be_split_is_one_line(tmp_path, counts, message):
    flat = make_folder(tmp_path / "flat", counts)
    with pytest.raises(InputError, match=message) as refused:
        open_sources(config(str(flat)))
    assert "\n" not in str(refused.value)


def test_mistyped_folder_and_file_are_one_line(tmp_path):
    flat = make_folder(tmp_path / "flowers", {"a": 2, "b": 2})
    with pytest.raises(InputError, match=r"nor a known set\. Did you mean 'flowers'\? Known: "):
        open_source(f"{tmp_path}/flowrs", "train")
    with pytest.raises(InputError, match=r"0000\.png' names a file\. Give the folder"):
        open_source(f"{flat}/a/0000.png", "train")


def test_class_of_trains_is_a_class(tmp_path):
    flat = make_folder(tmp_path / "flat", {"car": 10, "train": 10})
    assert open_sources(config(str(flat)))[0].class_names == ("car", "train")
