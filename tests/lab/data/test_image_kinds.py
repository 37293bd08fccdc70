"""Every kind of source: what it holds, and what is refused."""

import os
import pickle
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
from lab.data.pictures import config, encoded, make_folder, make_shards, number_of, picture
from PIL import Image

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.data import small_sets
from flashpoint.lab.data.decode import to_pixels
from flashpoint.lab.data.image_kinds import open_source, open_sources
from flashpoint.lab.data.image_source import BrokenImageError, Subset
from flashpoint.lab.data.places import pick_split, remark_on_test


def test_digits_have_a_fixed_stratified_split():
    train, validation = (open_source("digits", split) for split in ("train", "validation"))
    assert (train.num_samples, validation.num_samples) == (1437, 360)
    assert train.class_names == tuple("0123456789")
    assert np.ptp(validation.label_counts) <= 2
    parts = [np.c_[x.images.reshape(-1, 64), x.labels] for x in (train, validation)]
    everything = np.concatenate(parts)
    from sklearn.datasets import load_digits

    theirs = load_digits()
    rows = np.c_[np.rint(theirs.data * 255 / 16), theirs.target].astype(np.int64)
    assert np.array_equal(everything[np.lexsort(everything.T)], rows[np.lexsort(rows.T)])


def test_digits_images_are_the_array():
    source = open_source("digits", "validation")
    images, labels = source.resident()
    assert images.shape == (360, 1, 8, 8)
    for index in (0, 359):
        image, label = source.read(index)
        assert np.array_equal(to_pixels(image, 1), images[index].numpy())
        assert label == labels[index]


def test_folder_is_in_torchvision_order(tmp_path):
    make_folder(tmp_path, {"b": 3, "a": 2, "C": 2})
    (tmp_path / "a" / "inner").mkdir()
    (tmp_path / "a" / "inner" / "x.JPG").write_bytes(encoded(picture(99), "PNG"))
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "stray.png").write_bytes(encoded(picture(98)))
    source = open_source(str(tmp_path), "train")
    assert source.class_names == ("C", "a", "b")
    paths = [os.path.relpath(source.describe(i), tmp_path) for i in range(source.num_samples)]
    assert paths == [
        *("C/0005.png", "C/0006.png"),
        *("a/0003.png", "a/0004.png", "a/inner/x.JPG"),
        *("b/0000.png", "b/0001.png", "b/0002.png"),
    ]
    assert source.labels.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    image, label = source.read(3)
    assert (number_of(to_pixels(image, 3)), label) == (4, 1)


def test_folder_with_splits_is_told_apart(tmp_path):
    make_folder(tmp_path / "train", {"x": 3, "y": 2})
    make_folder(tmp_path / "val", {"x": 1, "y": 1})
    assert open_source(str(tmp_path), "train").num_samples == 5
    assert open_source(str(tmp_path), "validation").num_samples == 2
    with pytest.raises(InputError, match=r"has no split 'tran'. Did you mean 'train'?"):
        open_source(str(tmp_path), "tran")


def test_class_list_gives_the_order_of_a_folder(tmp_path):
    make_folder(tmp_path / "images", {"n00000002": 1, "n00000001": 2})
    names = tmp_path / "names.txt"
    names.write_text("n00000002 second, of course\nn00000003\tthird\nn00000001\n")
    source = open_source(str(tmp_path / "images"), "train", names)
    assert source.class_names == ("n00000002", "n00000003", "n00000001")
    assert source.labels.tolist() == [2, 2, 0]
    names.write_text("n00000002\nn00000003\n")
    with pytest.raises(InputError, match="n00000001 is not in the list"):
        open_source(str(tmp_path / "images"), "train", names)
    names.write_text("a\na\n")
    with pytest.raises(InputError, match="'a' more than once"):
        open_source(str(tmp_path / "images"), "train", names)


def test_missing_file_is_a_broken_image(tmp_path):
    source = open_source(str(make_folder(tmp_path, {"x": 1, "y": 1})), "train")
    (tmp_path / "y" / "0001.png").unlink()
    with pytest.raises(BrokenImageError, match=r"y/0001\.png: cannot be read: No such file"):
        source.read(1)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "holds no class folders"),
        ({"x": 3}, r"has 1 class \(x\); a classifier needs at least 2"),
        ({"x": 3, "y": 0}, "class folder .*y holds no images"),
    ],
)
def test_folders_without_enough_are_refused(tmp_path, counts, message):
    make_folder(tmp_path, counts)
    with pytest.raises(InputError, match=message):
        open_source(str(tmp_path), "train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere", "neither a folder nor a known set"),
        ("digit", "Did you mean 'digits'"),
        ("cifar10", "'cifar10' needs a place: cifar10:DIR"),
        ("shards:", "needs a place: shards:PATTERN"),
        ("cifar10:nowhere", "Make it: flashpoint data prepare cifar10 --from FILE"),
        ("hf:nowhere", "neither a folder"),
        ("shards:nowhere-{00..09}.tar", "names no file that exists.*nowhere-00.tar"),
    ],
)
def test_unknown_places_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        open_source(text, "train")


def test_wrong_split_of_digits_is_refused():
    with pytest.raises(
        InputError, match=r"digits has no split 'tests'.*It has: train, validation"
    ):
        open_source("digits", "tests")


def test_missing_package_is_one_line(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\.\[lab\]'"):
        open_source("digits", "train")


def test_digits_that_are_not_in_their_package_are_one_line(monkeypatch, tmp_path):
    spec = ModuleSpec("sklearn", None, is_package=True)
    spec.submodule_search_locations.append(str(tmp_path))
    monkeypatch.setattr(small_sets, "find_spec", lambda name: spec)
    with pytest.raises(UnsupportedError, match=r"data/digits\.csv\.gz cannot be read\. Install"):
        open_source("digits", "train")


def save_dataset(folder, labels=(0, 1, 1), *, split=None, label_type=None):
    """A Hugging Face dataset of numbered pictures on disk; gives its folder."""
    datasets = pytest.importorskip("datasets")
    kind = label_type or datasets.ClassLabel(names=["cat", "dog"])
    rows = {
        "picture": [{"bytes": encoded(picture(i)), "path": None} for i in range(len(labels))],
        "label": list(labels),
    }
    features = datasets.Features({"picture": datasets.Image(), "label": kind})
    dataset = datasets.Dataset.from_dict(rows, features=features)
    if split is not None:
        dataset = datasets.DatasetDict({split: dataset, "train": dataset.select([0, 1])})
    dataset.save_to_disk(str(folder))
    return folder


def test_huggingface_dataset_on_disk(tmp_path):
    source = open_source(f"hf:{save_dataset(tmp_path / 'set')}", "train")
    assert source.class_names == ("cat", "dog")
    assert source.labels.tolist() == [0, 1, 1]
    image, label = source.read(2)
    assert (number_of(to_pixels(image, 3)), label) == (2, 1)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(1)[1] == 1


def test_huggingface_dataset_that_was_saved_with_a_format(tmp_path):
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.load_from_disk(str(save_dataset(tmp_path / "set")))
    dataset.with_format("numpy", columns=["label"]).save_to_disk(str(tmp_path / "formatted"))
    source = open_source(f"hf:{tmp_path}/formatted", "train")
    assert [source.read(n)[1] for n in range(3)] == [0, 1, 1]


def test_huggingface_splits(tmp_path):
    folder = save_dataset(tmp_path / "set", split="test")
    assert open_source(f"hf:{folder}", "train").num_samples == 2
    assert open_source(f"hf:{folder}", "validation").num_samples == 3
    assert open_source(f"hf:{folder}:train", "validation").num_samples == 2
    with pytest.raises(InputError, match=r"has no split 'dev'. It has: test, train"):
        open_source(f"hf:{folder}:dev", "validation")


def test_huggingface_broken_row_is_named(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {
        "image": [{"bytes": encoded(picture(i))[: 60 if i else None]} for i in range(2)],
        "label": [0, 1],
    }
    names = datasets.ClassLabel(names=["a", "b"])
    features = datasets.Features({"image": datasets.Image(), "label": names})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "set"))
    source = open_source(f"hf:{tmp_path / 'set'}", "train")
    source.read(0)
    with pytest.raises(BrokenImageError, match="set: row 1: "):
        source.read(1)


def test_huggingface_labels_may_be_numbers_but_not_missing(tmp_path):
    datasets = pytest.importorskip("datasets")
    number = datasets.Value("int32")
    source = open_source(
        f"hf:{save_dataset(tmp_path / 'a', (0, 2, 1), label_type=number)}", "train"
    )
    assert source.class_names == ("0", "1", "2")
    with pytest.raises(InputError, match="samples without a label: the label -1 is below 0"):
        open_source(f"hf:{save_dataset(tmp_path / 'b', (0, -1, 1), label_type=number)}", "train")
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match="no Hugging Face dataset on disk"):
        open_source(f"hf:{tmp_path / 'c'}", "train")


def test_class_list_gives_other_names_in_the_order_of_the_labels(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("n00000009 feline\nn00000004 canine\n")
    make_folder(tmp_path / "folder", {"cat": 1, "dog": 2})
    for where in (f"{tmp_path}/folder", f"hf:{save_dataset(tmp_path / 'set')}"):
        source = open_source(where, "train", names)
        assert source.class_names == ("n00000009", "n00000004")
        assert source.labels.tolist() == [0, 1, 1]
    names.write_text("\n".join("abcdefghij"))
    digits = open_source("digits", "validation", names)
    assert digits.class_names == tuple("abcdefghij")
    assert digits.labels.tolist() == open_source("digits", "validation").labels.tolist()


def test_class_list_that_does_not_fit_is_one_line(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("feline\ncanine\nbovine\n")
    make_folder(tmp_path / "folder", {"cat": 1, "dog": 2})
    folder, dataset = f"{tmp_path}/folder", f"hf:{save_dataset(tmp_path / 'set')}"
    for where, count in ((folder, 2), (dataset, 2), ("digits", 10)):
        with pytest.raises(InputError, match=rf"names\.txt has 3 classes, .* {count}\. Give one"):
            open_source(where, "train", names)
    names.write_text("dog\ncat\n")
    with pytest.raises(InputError, match=r"has 'cat' in line 2, but it is label 0 of hf:"):
        open_source(dataset, "train", names)
    assert open_source(folder, "train", names).labels.tolist() == [1, 0, 0]


def test_train_and_validation_must_fit_together(tmp_path):
    make_folder(tmp_path / "a", {"x": 3, "y": 2})
    make_folder(tmp_path / "b", {"x": 3, "z": 2})
    make_folder(tmp_path / "c", {"x": 1, "y": 1})
    make_folder(tmp_path / "d", {"x": 1, "y": 1, "z": 1})
    a, b, c, d = (str(tmp_path / name) for name in "abcd")
    train, validation = open_sources(config(a, validation=c))
    assert (train.num_samples, validation.num_samples) == (5, 2)
    with pytest.raises(InputError, match="differ, first 'y' and 'z'"):
        open_sources(config(a, validation=b))
    with pytest.raises(InputError, match=r"\(2\) and .* \(3\) differ"):
        open_sources(config(a, validation=d))
    open_sources(config("digits"))


def test_train_and_validation_must_share_no_shard(tmp_path, monkeypatch):
    make_shards(tmp_path / "sh", num_shards=3, each=5)
    (tmp_path / "link").symlink_to(tmp_path / "sh")
    monkeypatch.chdir(tmp_path)
    train = "shards:sh/set-{000..001}.tar"
    open_sources(config(train, validation="shards:sh/set-002.tar"))
    for same in ("shards:sh/set-00[01].tar", "shards:link/set-{000,001}.tar"):
        with pytest.raises(InputError, match=r"are the same images: .*sh/set-000\.tar"):
            open_sources(config(train, validation=same))
    with pytest.raises(InputError, match=r"share 1 of 2 shards .*first .*sh/set-001\.tar"):
        open_sources(config(train, validation="shards:sh/set-{001..002}.tar"))


def test_train_and_validation_must_not_be_one_place_by_two_names(tmp_path, monkeypatch):
    for split in ("train", "val"):
        make_folder(tmp_path / "folder" / split, {"x": 2, "y": 2})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"are the same images: .*folder/train"):
        open_sources(config("folder", validation="./folder/../folder/train"))


def test_huggingface_splits_are_told_apart_by_their_folders(tmp_path):
    save_dataset(tmp_path / "b", split="test")
    open_sources(config(f"hf:{tmp_path}/b"))
    with pytest.raises(InputError, match=r"are the same images: .*b/train"):
        open_sources(config(f"hf:{tmp_path}/b", validation=f"hf:{tmp_path}/b/train"))


def test_subset_is_part_of_a_source():
    whole = open_source("digits", "train")
    part = Subset(whole, [7, 3, 3])
    assert part.num_samples == 3
    assert part.num_classes == 10
    images, labels = part.resident()
    assert labels.tolist() == whole.labels[[7, 3, 3]].tolist()
    assert np.array_equal(np.asarray(part.read(0)[0]), np.asarray(whole.read(7)[0]))
    assert np.array_equal(images[1, 0].numpy(), np.asarray(whole.read(3)[0]))
    assert part.describe(0) == whole.describe(7)


def test_labels_out_of_range_are_refused(tmp_path):
    from flashpoint.lab.data.small_sets import ArraySource

    pixels = np.zeros((2, 4, 4, 1), dtype=np.uint8)
    with pytest.raises(InputError, match="labels from 0 to 5, but 2 classes"):
        ArraySource("x", ("a", "b"), np.array([0, 5]), pixels)


def test_pick_split_prefers_the_exact_name():
    assert pick_split({"test", "validation", "val"}, "validation", "x") == "validation"
    assert pick_split({"test", "valid"}, "validation", "x") == "valid"


def make_splits(root, kind, *splits):
    """A place with these splits, as ``data.validation`` names it."""
    for split in splits:
        if kind == "cifar10":
            pixels, labels = np.zeros((2, 4, 4, 3), dtype=np.uint8), np.array([0, 1])
            content = {"images": pixels, "labels": labels, "class_names": ["a", "b"]}
            np.savez(root / f"{split}.npz", name=kind, **content)
        elif kind == "shards":
            make_shards(root, 1, 2).joinpath("set-000.tar").rename(root / f"{split}-0.tar")
        elif kind == "folders of shards":
            make_shards(root / split, 1, 2)
        else:
            make_folder(root / split, {"a": 1, "b": 1})
    return {"cifar10": "cifar10:", "folder": ""}.get(kind, "shards:") + str(root)


@pytest.mark.parametrize("kind", ["cifar10", "shards", "folders of shards", "folder"])
def test_test_split_that_is_validated_on_is_remarked(tmp_path, kind):
    where = make_splits(tmp_path, kind, "train", "test")
    said = remark_on_test(where, open_source(where, "validation").name)
    assert said.startswith(f"{where} has no validation split: ")
    assert "test" not in said.replace(str(tmp_path), "").partition("of its test split")[0]
    make_splits(tmp_path, kind, "val")
    assert not remark_on_test(where, open_source(where, "validation").name)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("cifar10:DIR:test", "cifar10:DIR:test"),
        ("DIR/test/", "DIR/test"),
        ("digits", "digits"),
        ("jsonl:DIR/test.jsonl", "jsonl:DIR/test.jsonl"),
        ("shards:test/{00..07}.tar", "shards:test/{00..07}.tar"),
        ("documents:test", "documents:test:validation"),
    ],
)
def test_what_the_user_names_is_not_remarked(where, name):
    assert remark_on_test(where, name) == ""


def test_images_of_a_folder_are_decoded_by_content_not_by_suffix(tmp_path):
    make_folder(tmp_path, {"x": 1, "y": 1})
    (tmp_path / "x" / "0000.png").write_bytes(encoded(Image.new("L", (3, 2), 7), "BMP"))
    assert open_source(str(tmp_path), "train").read(0)[0].size == (3, 2)
