"""Links and special files in image folders: each folder counts once, and nothing hangs."""

import os
from functools import partial
from itertools import islice
from pathlib import Path

import broken_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.data.pictures import config, encoded, make_folder, picture
from limits import answer, limited

from flashpoint.errors import InputError
from flashpoint.lab.data.batches import TrainBatches
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.image_source import BrokenImageError


@pytest.fixture
def root(tmp_path):
    return make_folder(tmp_path / "set", {"a": 3, "b": 2})


def paths(source):
    return [os.path.relpath(source.path(n), source.root) for n in range(source.num_samples)]


def test_links_to_files_and_to_folders_outside_are_followed(root, tmp_path):
    make_folder(tmp_path / "more", {"x": 2})
    (root / "a" / "linked.png").symlink_to(tmp_path / "more" / "x" / "0000.png")
    (root / "a" / "others").symlink_to(tmp_path / "more")
    (root / "c").symlink_to(make_folder(tmp_path / "third", {"c": 1}) / "c")
    (tmp_path / "link").symlink_to(root)
    source = open_source(str(tmp_path / "link"), "train")
    assert source.class_names == ("a", "b", "c")
    assert paths(source)[3:6] == ["a/linked.png", "a/others/x/0000.png", "a/others/x/0001.png"]
    assert [source.read(n)[1] for n in range(source.num_samples)] == [0] * 6 + [1] * 2 + [2]


@pytest.mark.parametrize(
    ("link", "target", "message"),
    [
        ("a/up", "..", "a/up leads to .*set, which is also reached as .*set: its images"),
        ("a/top", "../..", "a/top leads to .*, which holds the whole set"),
        ("a/root", "/", "a/root leads to /, which holds the whole set"),
        ("a/self", ".", "a/self leads to .*set/a, which is also reached as .*set/a: "),
        ("a/other", "../b", "a/other leads to .*set/b, which is also reached as .*set/b: "),
        ("a/0", "../b", "a/0 leads to .*set/b, which is also reached as .*set/b: "),
        ("aalias", "b", "aalias leads to .*set/b, which is also reached as .*set/b: "),
        ("c", "a", "c leads to .*set/a, which is also reached as .*set/a: "),
        ("c", ".", "c leads to .*set, which is also reached as .*set: "),
        ("a/inner/back", "..", "a/inner/back leads to .*set/a, which is also reached as .*set/a"),
    ],
)
def test_link_to_a_folder_of_the_set_or_above_is_refused(root, link, target, message):
    (root / "a" / "inner").mkdir()
    (root / link).symlink_to(target)
    with limited(), pytest.raises(InputError, match=message) as refused:
        open_source(str(root), "train")
    assert "\n" not in str(refused.value)


def test_two_links_to_the_same_place_do_not_hang(root):
    for name in ("one", "two"):
        (root / "b" / name).symlink_to(".")
    with limited(), pytest.raises(InputError, match="its images would count twice"):
        open_source(str(root), "train")


def test_folder_outside_that_two_classes_link_to_is_refused(root, tmp_path):
    make_folder(tmp_path / "more", {"x": 2})
    for name in "ab":
        (root / name / "more").symlink_to(tmp_path / "more" / "x")
    with pytest.raises(InputError, match=r"b/more leads to .*x, which is also reached as .*a/mor"):
        open_source(str(root), "train")


def test_link_that_leads_to_itself_is_a_broken_image(root):
    (root / "loop").symlink_to("loop")
    (root / "a" / "loop.jpg").symlink_to("loop.jpg")
    source = open_source(str(root), "train")
    assert source.class_names == ("a", "b")
    with pytest.raises(BrokenImageError, match="Too many levels of symbolic links"):
        source.read(3)


def test_folder_that_cannot_be_read_is_one_line(root, monkeypatch):
    (root / "b" / "inner").mkdir()
    broken_files.unreadable(monkeypatch, 13, "inner")
    with pytest.raises(InputError, match="b/inner cannot be read: Permission denied"):
        open_source(str(root), "train")
    broken_files.unreadable(monkeypatch, 5, root.name)
    with pytest.raises(InputError, match="set cannot be read: Input/output error"):
        open_source(str(root), "train")


def put_device(file):
    file.unlink()
    file.symlink_to("/dev/zero")


SPECIAL = [broken_files.put_fifo, broken_files.put_socket, broken_files.put_sparse, put_device]


@pytest.mark.parametrize("put", SPECIAL, ids=lambda put: put.__name__)
def test_special_files_are_broken_images(root, put):
    put(root / "a" / "0001.png")
    with limited():
        source = open_source(str(root), "train")
        assert source.num_samples == 5
        with pytest.raises(BrokenImageError, match=r"a/0001\.png: ") as broken:
            source.read(1)
        assert "\n" not in str(broken.value)
        batches = TrainBatches(source, config(max_broken_share=0.5), batch_size=5, seed=0)
        list(islice(batches.iterate(), 2))
    assert batches.num_broken == 2
    assert batches.broken == [str(broken.value)]


PLACES = ("a", "b", "a/x", "b/y", "c")
TARGETS = (".", "..", "../..", "a", "../a", "../b", "../../b", "b/y", "../c", "/", "nowhere", "x")


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PLACES), st.sampled_from(("l", "m.png")), st.sampled_from(TARGETS)
        ),
        max_size=4,
    ),
    st.sampled_from(PLACES),
)
def test_any_links_are_refused_or_count_each_folder_once(tmp_path_factory, links, fifo):
    root = tmp_path_factory.mktemp("tree") / "set"
    for number, place in enumerate(PLACES):
        (root / place).mkdir(parents=True)
        (root / place / f"{number}.png").write_bytes(encoded(picture(number)))
    os.mkfifo(root / fifo / "pipe.jpg")
    for number, (place, name, target) in enumerate(links):
        (root / place / f"{number}{name}").symlink_to(target)
    source, said = answer(lambda: open_source(str(root), "train"))
    if source is None:
        assert "would count twice" in said
        assert os.path.islink(said.partition(" leads to ")[0])
        return
    for index in range(source.num_samples):
        _, said = answer(partial(source.read, index))
        assert not said or "pipe.jpg" in said or "m.png" in said
    real = [os.path.realpath(path) for path in map(source.path, range(source.num_samples))]
    files = [path for path in real if not Path(path).name.startswith("pipe")]
    linked = sum(name == "m.png" for _, name, _ in links)
    assert len(files) - len(set(files)) <= linked
    for path, label in zip(real, source.labels, strict=True):
        if os.path.exists(path) and not linked:
            assert source.class_names[label] == os.path.relpath(path, root).partition("/")[0]
