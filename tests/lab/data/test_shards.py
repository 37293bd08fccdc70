"""WebDataset shards: indexed once, read at random, damaged ones kept as far as they go."""

import json
import os
import pickle
import tarfile

import numpy as np
import pytest
from lab.data.pictures import config, encoded, make_shards, make_tar, number_of, picture, sample

from flashpoint.errors import InputError
from flashpoint.lab.data import shard_index, shards
from flashpoint.lab.data.batches import EvalBatches, TrainBatches
from flashpoint.lab.data.decode import to_pixels
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.image_source import Subset
from flashpoint.lab.data.shard_index import index_shard


def numbers(source, indices=None):
    chosen = range(source.num_samples) if indices is None else indices
    return [number_of(to_pixels(source.read(int(i))[0], 3)) for i in chosen]


def test_samples_are_read_at_random(tmp_path):
    make_shards(tmp_path, num_shards=3, each=4)
    source = open_source(f"shards:{tmp_path}/set-{{000..002}}.tar", "train")
    assert source.num_samples == 12
    assert source.num_classes == 5
    assert numbers(source, [11, 0, 5]) == [11, 0, 5]
    assert source.labels.tolist() == [n % 5 for n in range(12)]
    assert source.describe(5) == f"{tmp_path}/set-001.tar: sample000005.png"
    assert numbers(pickle.loads(pickle.dumps(source))) == list(range(12))


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("a.tar", ["a.tar"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{3..1}", ["3", "2", "1"]),
        ("x-{a,b}{0..1}.tar", ["x-a0.tar", "x-a1.tar", "x-b0.tar", "x-b1.tar"]),
        ("{a{1,2},b}", ["a1", "a2", "b"]),
    ],
)
def test_braces_are_expanded(pattern, texts):
    assert sorted(shards.expand_braces(pattern)) == sorted(texts)


def test_folders_and_stars_name_shards(tmp_path):
    make_shards(tmp_path, num_shards=3, each=2)
    for text in (f"{tmp_path}", f"{tmp_path}/*.tar", f"{tmp_path}/set-00[012].tar"):
        assert numbers(open_source(f"shards:{text}", "train")) == list(range(6))
    assert open_source(f"shards:{tmp_path}/set-{{000,002}}.tar", "train").num_samples == 4


@pytest.mark.parametrize("word", ["-train", ""])
def test_split_words_in_names_are_told_apart(tmp_path, word):
    names = (f"in{word}-000.tar", f"in{word}-001.tar", "in-val-000.tar")
    for number, name in enumerate(names):
        make_tar(tmp_path / name, sample(10 * number, 0) + sample(10 * number + 1, 1))
    where = f"shards:{tmp_path}"
    assert numbers(open_source(where, "train")) == [0, 1, 10, 11]
    assert numbers(open_source(where, "validation")) == [20, 21]
    if word:
        with pytest.raises(InputError, match=r"has no split 'dev'. It has: train, val"):
            open_source(where, "dev")
    for name in names[:2]:
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match=r"has no split 'train'. It has: val"):
        open_source(where, "train")


def test_split_folders_hold_shards(tmp_path):
    make_shards(tmp_path / "train", 2, 2, classes=2)
    make_shards(tmp_path / "val", 1, 2, classes=2)
    assert open_source(f"shards:{tmp_path}", "train").num_samples == 4
    assert open_source(f"shards:{tmp_path}", "validation").num_samples == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no \.tar files"):
        open_source(f"shards:{tmp_path}/empty", "train")


def test_labels_come_from_cls_json_or_txt(tmp_path):
    image = encoded(picture(0))
    facts = json.dumps({"label": 2, "filename": "n00000012_3.JPEG", "filler": "x" * 3000}).encode()
    members = [
        *(("a.png", image), ("a.cls", b"1\n")),
        *(("b.json", facts), ("b.jpg", image)),
        *(("dir/c.png", image), ("dir/c.txt", b"0")),
        *(("d.png", image), ("d.cls", b"1"), ("d.json", b'{"label": 0}')),
    ]
    make_tar(tmp_path / "x.tar", members)
    source = open_source(f"shards:{tmp_path}/x.tar", "train")
    assert source.labels.tolist() == [1, 2, 0, 1]
    assert source.class_names == ("0", "1", "n00000012")


def test_wordnet_ids_come_from_keys(tmp_path):
    image = encoded(picture(0))
    members = [
        *(("n00000007_1.png", image), ("n00000007_1.cls", b"1")),
        *(("n00000003_9.png", image), ("n00000003_9.cls", b"0")),
    ]
    make_tar(tmp_path / "x.tar", members)
    assert open_source(f"shards:{tmp_path}", "train").class_names == ("n00000003", "n00000007")


def test_class_list_beside_the_shards_names_classes(tmp_path):
    make_tar(tmp_path / "x.tar", sample(0, "dog") + sample(1, "cat"))
    assert open_source(f"shards:{tmp_path}", "train").class_names == ("cat", "dog")
    (tmp_path / "classes.txt").write_text("emu\ndog\ncat\n")
    source = open_source(f"shards:{tmp_path}", "train")
    assert source.class_names == ("emu", "dog", "cat")
    assert source.labels.tolist() == [1, 2]
    (tmp_path / "classes.txt").write_text("cat\ndig\n")
    with pytest.raises(InputError, match=r"'dog' is not among the 2 classes.*Did you mean 'dig'"):
        open_source(f"shards:{tmp_path}", "train")
    make_tar(tmp_path / "x.tar", sample(0, 0) + sample(1, 7))
    with pytest.raises(InputError, match="labels from 0 to 7, but 2 classes"):
        open_source(f"shards:{tmp_path}", "train")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_format(tmp_path, form):
    key = "folder/" * 12 + "k" * (60 if form == tarfile.USTAR_FORMAT else 150)
    image = encoded(picture(3))
    members = [(f"{key}.png", image), (f"{key}.cls", b"0"), ("b.png", image), ("b.cls", b"1")]
    make_tar(tmp_path / "x.tar", members, form)
    source = open_source(f"shards:{tmp_path}", "train")
    assert numbers(source) == [3, 3]
    assert source.damage == []


def test_numbers_of_bytes_agree_with_tarfile(tmp_path):
    make_shards(tmp_path, num_shards=1, each=20)
    index = index_shard(tmp_path / "set-000.tar")
    with tarfile.open(tmp_path / "set-000.tar") as archive:
        images = [m for m in archive if m.name.endswith(".png")]
    assert index.offsets.tolist() == [m.offset_data for m in images]
    assert index.sizes.tolist() == [m.size for m in images]


def cut(path, length):
    path.write_bytes(path.read_bytes()[:length])


def test_cut_shard_keeps_what_is_readable(tmp_path):
    make_shards(tmp_path, num_shards=2, each=10)
    broken = tmp_path / "set-001.tar"
    end = index_shard(broken).offsets[6] + 20  # in the middle of the seventh image
    cut(broken, int(end))
    source = open_source(f"shards:{tmp_path}", "train")
    assert numbers(source) == list(range(16))
    assert source.damage == [f"{broken}: cut at byte {end}, in the member at {end - 20 - 512}"]
    assert source.lost_share == pytest.approx(4 / 20)


def test_image_whose_label_was_cut_off_is_left_out(tmp_path):
    make_shards(tmp_path, num_shards=1, each=10)
    shard = tmp_path / "set-000.tar"
    index = index_shard(shard)
    cut(shard, int(index.offsets[6] + index.sizes[6] + 511) // 512 * 512)
    source = open_source(f"shards:{tmp_path}", "train")
    assert numbers(source) == list(range(6))
    assert "there is no end mark" in source.damage[0]


def test_garbage_and_missing_shards_are_named(tmp_path):
    make_shards(tmp_path, num_shards=3, each=4)
    (tmp_path / "set-001.tar").write_bytes(b"garbage" * 1000)
    (tmp_path / "set-002.tar").unlink()
    source = open_source(f"shards:{tmp_path}/set-{{000..003}}.tar", "train")
    assert numbers(source) == list(range(4))
    assert [line.partition(": ")[2] for line in source.damage] == [
        "no header at byte 0",
        "No such file or directory",
        "No such file or directory",
    ]
    assert source.lost_share == pytest.approx(3 / 4)


def test_bad_header_in_the_middle_ends_a_shard(tmp_path):
    make_shards(tmp_path, num_shards=1, each=6)
    shard = tmp_path / "set-000.tar"
    content = bytearray(shard.read_bytes())
    place = int(index_shard(shard).offsets[3]) - 512
    content[place + 5] ^= 1
    shard.write_bytes(content)
    source = open_source(f"shards:{tmp_path}", "train")
    assert numbers(source) == list(range(3))
    assert source.damage == [f"{shard}: no header at byte {place}"]


def zero(path, start, end=None):
    """What a file of full length looks like that was written in part."""
    content = bytearray(path.read_bytes())
    end = len(content) if end is None else end
    content[start:end] = bytes(end - start)
    path.write_bytes(content)


@pytest.mark.parametrize("end", [30, None], ids=["a hole", "to the end"])
def test_shard_that_breaks_off_into_zeros_is_damaged(tmp_path, end):
    make_shards(tmp_path, num_shards=1, each=40)
    shard = tmp_path / "set-000.tar"
    offsets = index_shard(shard).offsets
    size = shard.stat().st_size
    start = int(offsets[10]) - 512
    zero(shard, start, None if end is None else int(offsets[end]) - 512)
    for _ in range(2):  # scanned, then from the cache
        source = open_source(f"shards:{tmp_path}", "train")
        assert numbers(source) == list(range(10))
        assert source.damage == [
            f"{shard}: zeros instead of a header at byte {start}, {size - start} bytes before "
            "the end"
        ]
        assert source.lost_share == pytest.approx(1 - start / size)


def test_label_of_zeros_is_none(tmp_path):
    make_shards(tmp_path, num_shards=1, each=40)
    shard = tmp_path / "set-000.tar"
    index = index_shard(shard)
    zero(shard, int(index.offsets[10] + index.sizes[10] + 511) // 512 * 512 + 512)
    source = open_source(f"shards:{tmp_path}", "train")
    assert numbers(source) == list(range(10))
    assert source.class_names == tuple("01234")
    assert "zeros instead of a header" in source.damage[0]
    assert "1 images without a label, as sample000010.png" in source.damage[0]


@pytest.mark.parametrize("blocks", [2, 20])
def test_usual_ends_are_whole_and_more_members_behind_one_are_not(tmp_path, blocks):
    make_tar(tmp_path / "x.tar", sample(0, 0) + sample(1, 1))
    content = (tmp_path / "x.tar").read_bytes().rstrip(b"\0")
    whole = content + bytes(-len(content) % 512)
    whole += bytes(512 * blocks)
    (tmp_path / "x.tar").write_bytes(whole)
    assert open_source(f"shards:{tmp_path}", "train").damage == []
    (tmp_path / "x.tar").write_bytes(whole * 2)
    source = open_source(f"shards:{tmp_path}", "train")
    assert numbers(source) == [0, 1]
    assert f"{len(whole) + 512 * blocks} bytes before the end" in source.damage[0]


def test_part_of_damaged_shards_is_damaged(tmp_path):
    make_shards(tmp_path, num_shards=4, each=10)
    (tmp_path / "set-003.tar").write_bytes(b"garbage" * 1000)
    source = open_source(f"shards:{tmp_path}", "train")
    part = Subset(source, [3, 5])
    assert (part.damage, part.lost_share) == (source.damage, 0.25)
    lenient = EvalBatches(part, config(max_broken_share=0.3), batch_size=2)
    assert lenient.broken == source.damage
    with pytest.raises(InputError, match=r"1 shards of 2 of .* about 25\.00% of its samples lost"):
        EvalBatches(part, config(), batch_size=2)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_cut_shards_without_whole_siblings_are_lossy(tmp_path, num_shards):
    make_shards(tmp_path, num_shards, each=20)
    for shard in tmp_path.iterdir():
        cut(shard, shard.stat().st_size * 4 // 10)
    source = open_source(f"shards:{tmp_path}", "validation")
    assert source.lost_share == pytest.approx(0.5, abs=0.05)
    with pytest.raises(InputError, match=r"about 5\d\.\d\d% of its samples lost, more than"):
        EvalBatches(source, config(), batch_size=4)


def test_cut_shard_is_measured_by_no_smaller_siblings(tmp_path):
    make_shards(tmp_path, num_shards=2, each=20)
    make_tar(tmp_path / "last.tar", sample(50, 0))
    for shard in tmp_path.glob("set-*.tar"):
        cut(shard, shard.stat().st_size * 4 // 10)
    assert open_source(f"shards:{tmp_path}", "train").lost_share > 0.4


def test_damage_inside_is_measured_by_what_lies_before(tmp_path):
    make_shards(tmp_path, num_shards=1, each=100)
    shard = tmp_path / "set-000.tar"
    content = bytearray(shard.read_bytes())
    content[int(index_shard(shard).offsets[75]) - 507] ^= 1
    shard.write_bytes(content)
    for _ in range(2):  # scanned, then from the cache
        source = open_source(f"shards:{tmp_path}", "train")
        assert source.num_samples == 75
        assert source.lost_share == pytest.approx(25 / 100, abs=0.05)


def test_unlabeled_images_are_counted_as_lost(tmp_path):
    for shard in range(2):
        members = [part for n in range(5) for part in sample(10 * shard + n, n)]
        members += [(f"lonely{n}.png", encoded(picture(n))) for n in range(5)]
        make_tar(tmp_path / f"set-{shard}.tar", members)
    for _ in range(2):  # scanned, then from the cache
        source = open_source(f"shards:{tmp_path}", "train")
        assert source.num_samples == 10
        assert source.lost_share == 0.5
    with pytest.raises(InputError, match=r"2 shards .* 50\.00% .*5 images without a label"):
        TrainBatches(source, config(), batch_size=4, seed=0)


def test_images_without_labels_are_named(tmp_path):
    members = [*sample(0, 0), *sample(1, 1), ("lonely.png", encoded(picture(9)))]
    make_tar(tmp_path / "x.tar", members)
    source = open_source(f"shards:{tmp_path}", "train")
    assert numbers(source) == [0, 1]
    assert source.damage == [f"{tmp_path}/x.tar: 1 images without a label, as lonely.png"]
    make_tar(tmp_path / "x.tar", members[-1:])
    with pytest.raises(InputError, match="none of 1 shards has an image with a label"):
        open_source(f"shards:{tmp_path}", "train")


def test_index_is_kept_until_the_shard_changes(tmp_path, monkeypatch):
    make_shards(tmp_path, num_shards=1, each=3, classes=3)
    scans = []
    true_scan = shard_index.scan
    monkeypatch.setattr(shard_index, "scan", lambda s: scans.append(s) or true_scan(s))
    first = open_source(f"shards:{tmp_path}", "train")
    second = open_source(f"shards:{tmp_path}", "train")
    assert len(scans) == 1
    assert numbers(first) == numbers(second)
    assert first.class_names == second.class_names
    make_shards(tmp_path, num_shards=1, each=5)
    assert open_source(f"shards:{tmp_path}", "train").num_samples == 5
    assert len(scans) == 2
    for file in (shard_index.cache_folder() / "shards").iterdir():
        file.write_bytes(file.read_bytes()[:100])  # a damaged index is made anew
    assert open_source(f"shards:{tmp_path}", "train").num_samples == 5
    assert len(scans) == 3


@pytest.mark.parametrize("kind", ["read only", "a file"])
def test_cache_that_cannot_be_written_warns(tmp_path, monkeypatch, kind):
    make_shards(tmp_path / "shards", num_shards=1, each=3)
    if kind == "a file":
        (tmp_path / "cache").touch()
    elif os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    else:
        (tmp_path / "cache").mkdir(mode=0o500)
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "cache"))
    with pytest.warns(UserWarning, match="scanned at every start"):
        open_source(f"shards:{tmp_path}/shards", "train")


def test_shuffling_covers_all_and_stays_in_a_few_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "GROUP", 3)
    make_shards(tmp_path, num_shards=10, each=20)
    source = open_source(f"shards:{tmp_path}", "train")
    order, again, other = (source.shuffle(np.random.default_rng(s)) for s in (0, 0, 1))
    assert np.array_equal(order, again)
    assert not np.array_equal(order, other)
    assert np.array_equal(np.sort(order), np.arange(200))
    visited = order // 20
    for first in range(0, 200, 60):
        assert len(set(visited[first : first + 60])) <= 3
    assert set(visited[:60]) != {0, 1, 2}  # shards are permuted
    assert len(set(visited[:10])) > 1  # and samples among them
    assert np.abs(np.diff(order[:20])).max() > 1


def test_few_files_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MAX_OPEN", 2)
    make_shards(tmp_path, num_shards=6, each=1, classes=6)
    before = len(os.listdir("/proc/self/fd"))
    source = open_source(f"shards:{tmp_path}", "train")
    assert numbers(source, [0, 1, 2, 3, 4, 5, 0, 5]) == [0, 1, 2, 3, 4, 5, 0, 5]
    assert len(os.listdir("/proc/self/fd")) - before == 2
    del source
    assert len(os.listdir("/proc/self/fd")) == before
