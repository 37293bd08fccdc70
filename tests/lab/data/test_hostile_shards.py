"""Tar files that were changed on purpose or by chance: read in part or refused, never endless."""

import io
import json
import tarfile

import broken_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.data.pictures import encoded, make_tar, picture, sample
from limits import answer, limited

from flashpoint.errors import InputError
from flashpoint.lab.data import shards
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.shard_index import index_shard, scan
from flashpoint.lab.data.shards import MAX_SHARDS, expand_braces

BLOCK = 512
NUMBERS = (
    b"-1000",
    b"-1",
    b"+1",
    b"1_0",
    b"abc",
    b"",
    b" ",
    b"7" * 11,
    b"\xff" * 12,
    b"\x80" * 12,
)
SIZES = ("abc", "-5", "-99999", "", "1e3", "9" * 30, "9" * 5000, "٣", "1_0", " 7")


def set_size(content, position, field):
    """Write a size into a header, and a checksum that makes it a valid one."""
    content[position + 124 : position + 136] = field.ljust(12, b"\0")[:12]
    content[position + 148 : position + 156] = b" " * 8
    total = sum(content[position : position + BLOCK])
    content[position + 148 : position + 156] = b"%06o\0 " % total


def headers(content):
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return [member.offset for member in archive]


def whole_tar(folder):
    facts = json.dumps({"label": 1, "class_name": "dog"}).encode()
    members = [*sample(0, 0), *sample(1, 1), ("c.png", encoded(picture(2))), ("c.json", facts)]
    return make_tar(folder / "whole.tar", members).read_bytes()


@pytest.mark.parametrize("field", NUMBERS, ids=repr)
@pytest.mark.parametrize("number", [0, 2])
def test_sizes_that_cannot_be_end_the_scan(tmp_path, field, number):
    content = bytearray(whole_tar(tmp_path))
    position = headers(content)[number]
    set_size(content, position, field)
    shard = tmp_path / "x.tar"
    shard.write_bytes(content)
    with limited():
        index = scan(shard)
    assert len(index.offsets) <= number // 2 + 2
    if field.strip():
        assert index.damage


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size[:10])
def test_sizes_of_extended_headers_that_cannot_be_end_the_scan(tmp_path, size):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in (*sample(0, 0), *sample(1, 1)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.pax_headers = {"size": size} if "1" in name else {}
            archive.addfile(info, io.BytesIO(content))
    with limited():
        index = scan(tmp_path / "x.tar")
    assert len(index.offsets) == 1
    assert "no header at byte" in index.damage or "cut at byte" in index.damage


def test_extended_header_of_the_whole_file_takes_no_memory(tmp_path):
    content = bytearray(whole_tar(tmp_path))
    content[156] = ord("x")
    set_size(content, 0, b"%o" % (3 << 30))
    with (tmp_path / "x.tar").open("wb") as handle:
        handle.write(content)
        handle.truncate(4 << 30)
    with limited():
        assert scan(tmp_path / "x.tar").damage == "no header at byte 0"


@st.composite
def changed_tars(draw, content):
    """A valid tar with some bytes changed, cut, doubled, or with numbers of headers replaced."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        kind = draw(st.sampled_from(("flip", "cut", "insert", "double", "size", "kind", "zero")))
        block = place // BLOCK * BLOCK
        if not content:
            break
        if kind == "flip":
            content[place] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del content[place : place + draw(st.integers(1, 3000))]
        elif kind == "insert":
            content[place:place] = draw(st.binary(max_size=600))
        elif kind == "double":
            content[block:block] = content[block : block + BLOCK * draw(st.integers(1, 4))]
        elif len(content) >= block + BLOCK and kind == "size":
            numbers = st.sampled_from(NUMBERS) | st.binary(max_size=12)
            set_size(content, block, draw(numbers))
        elif len(content) >= block + BLOCK and kind == "kind":
            content[block + 156] = draw(st.sampled_from(b"xLgK05\0S"))
            set_size(content, block, draw(st.sampled_from(NUMBERS)))
        elif kind == "zero":
            content[block : block + BLOCK] = bytes(BLOCK)
    return bytes(content)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_changed_tar_is_read_in_part_or_damaged(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("tar")
    shard = folder / "x.tar"
    shard.write_bytes(data.draw(changed_tars(whole_tar(folder))))
    length = shard.stat().st_size
    with limited():
        index = scan(shard)
        assert all(index.offsets >= 0)
        assert all(index.sizes >= 0)
        assert all(index.offsets + index.sizes <= length)
        assert 0.0 <= index.readable <= 1.0
        assert all(isinstance(name, str) for name in (*index.values, *index.names.values()))
    source, said = answer(lambda: open_source(f"shards:{shard}", "train"))
    assert said or source.num_samples == len(index.offsets)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(broken_files.broken({"label": 1, "class_name": "dog", "more": [1, {"a": 2.5}]}))
def test_any_label_file_is_a_label_or_none(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("tar")
    image = encoded(picture(2))
    members = [*sample(0, 0), *sample(1, 1), ("c.png", image), ("c.json", text)]
    with limited():
        index = scan(make_tar(folder / "x.tar", members))
        assert len(index.offsets) + index.num_unlabelled == 3
        assert all(isinstance(name, str) for name in (*index.values, *index.names.values()))


@pytest.mark.parametrize(
    "put", [broken_files.put_fifo, broken_files.put_folder, broken_files.put_socket]
)
def test_special_files_among_shards_are_damage(tmp_path, put):
    for name in "ab":
        make_tar(tmp_path / f"{name}.tar", [*sample(0, 0), *sample(1, 1)])
    put(tmp_path / "a.tar")
    with limited():
        assert index_shard(tmp_path / "a.tar").damage == "no plain file"
        source = open_source(f"shards:{tmp_path}", "train")
    assert source.damage == [f"{tmp_path}/a.tar: no plain file"]
    assert source.lost_share == 0.5


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("{0..99999999999}.tar", MAX_SHARDS),
        ("{99999999999..0}.tar", 1000),
        (f"{{0..{10**60}}}.tar", 1000),
        ("{0..999}-{0..999}.tar", 1000),
        ("{a,b}" * 40, 1000),
        ("{0..1000}.tar", 1000),
    ],
)
def test_patterns_of_too_many_shards_are_one_line(pattern, most, monkeypatch):
    monkeypatch.setattr(shards, "MAX_SHARDS", most)
    with limited(), pytest.raises(InputError, match=f"names more than {most} shards") as refused:
        open_source(f"shards:{pattern}", "train")
    assert "\n" not in str(refused.value)


def test_long_patterns_are_expanded():
    with limited():
        assert len(expand_braces(f"{{0..{MAX_SHARDS - 1}}}")) == MAX_SHARDS
        assert expand_braces("{a}" * 3000) == ["a" * 3000]
