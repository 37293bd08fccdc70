"""Tiles: they fit every GPU, measured ones are stored and used, and none changes a result."""

import itertools
import json
import os
import subprocess
import sys

import pytest
import torch
from implementations import HAS_GPU, HAS_TRITON
from numerics import make_qkv

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.device import INTERPRETER, Gpu, gpu_of
from flashpoint.ops.gpu.tiles import autotune, stored, table
from flashpoint.ops.gpu.tiles.table import Kind, Tiles
from flashpoint.ops.spec import Terms

KERNELS = ("forward", "dkdv", "dq", "decode", "scored")
BLOCKS = (16, 32, 64, 128, 256)
H200 = Gpu("NVIDIA H200", 9, 227 * 1024, 132)
FAMILIES = {"turing": 7, "ampere": 8, "hopper": 9, "blackwell": 10, "small blackwell": 12}
SHAPE = (1, 2, 1, 33, 70, 16, 16)

pytestmark = [pytest.mark.usual_tiles, pytest.mark.usefixtures("store")]


def make_kind(kernel="forward", **changes):
    usual = Kind(kernel, torch.bfloat16, 64, 64, False, 0, 4096, 4096)
    return usual._replace(**changes)


# The table and the rule


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("kilobytes", [48, 64, 96, 99, 100, 163, 164, 227])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_choice_fits_shared_memory(kernel, kilobytes, family):
    gpu = Gpu("some GPU", family, kilobytes * 1024, 40)
    rows = (16, 64) if kernel == "decode" else (300, 4096)
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    for dtype, D, is_narrow in itertools.product(dtypes, BLOCKS, (False, True)):
        for window, score_bytes, queries in ((False, 0, rows[0]), (True, 5, rows[1])):
            Dv = 16 if is_narrow else D
            kind = Kind(kernel, dtype, D, Dv, window, score_bytes, queries, 4096)
            tiles = table.table_tiles(kind, gpu)
            assert tiles == table.fit(kind, tiles, gpu)
            assert min(tiles.block_m, tiles.block_n) >= 16
            if not is_beyond_the_smallest(kind, kilobytes):
                assert table.shared_bytes(kind, tiles, gpu) <= kilobytes * 1024
            else:
                assert (tiles.block_n, tiles.num_stages) == (16, 1)
                assert tiles.block_m == 16 or kernel == "decode"


def test_scores_and_fp32_have_tiles_of_their_own():
    hopper = Gpu("H200", 9, 227 * 1024, 132)
    for kernel in ("forward", "dkdv", "dq"):
        plain, bias, words = (
            table.table_tiles(make_kind(kernel, **changes), hopper)
            for changes in ({}, {"score_bytes": 2}, {"has_words": True})
        )
        assert plain != bias or plain != words
        single = make_kind(kernel, dtype=torch.float32)
        assert table.table_tiles(single, hopper) == table.HOPPER_FP32[kernel, 64]
        for small in (single._replace(is_described=False), single._replace(score_bytes=8)):
            assert max(table.table_tiles(small, hopper)[:2]) < table.ASYNCHRONOUS_ROWS


def test_fp32_products_have_as_many_rows_as_their_warps_take():
    hopper = Gpu("H200", 9, 227 * 1024, 132)
    for (kernel, _), tiles in table.HOPPER_FP32.items():
        rows = tiles.block_n if kernel == "dkdv" else tiles.block_m
        assert rows == 16 * tiles.num_warps
    for kernel in ("forward", "dkdv", "dq", "decode"):
        kind = make_kind(kernel, dtype=torch.float32, num_queries=64)
        for tiles in (
            *autotune.candidates(kind, hopper),
            table.avoid_trap(kind, Tiles(64, 64, 8, 2), hopper),
        ):
            rows = tiles.block_n if kernel == "dkdv" else tiles.block_m
            assert rows < table.ASYNCHRONOUS_ROWS or rows >= 16 * tiles.num_warps


def is_beyond_the_smallest(kind, kilobytes):
    """Where not even the smallest tiles fit: by the estimate, which is above what fp32 needs."""
    smallest = Tiles(kind.num_queries if kind.kernel == "decode" else 16, 16, 4, 1)
    return table.shared_bytes(kind, smallest, Gpu("", 10, 0, 1)) > kilobytes * 1024


@pytest.mark.parametrize("kernel", KERNELS)
def test_16_bit_tiles_fit_every_gpu_since_turing(kernel):
    gpu = Gpu("some GPU", 7, 64 * 1024, 40)
    rows = 16 if kernel == "decode" else 4096
    for D in BLOCKS:
        kind = make_kind(kernel, block_d=D, block_dv=D, num_queries=rows, score_bytes=5)
        assert table.fits(kind, table.table_tiles(kind, gpu), gpu)


@pytest.mark.parametrize("kernel", KERNELS[:4])
@pytest.mark.parametrize("kilobytes", [64, 99, 163, 227])
def test_candidates_are_different_and_fit(kernel, kilobytes):
    gpu = Gpu("some GPU", 8, kilobytes * 1024, 40)
    for dtype, D in itertools.product((torch.float16, torch.float32), BLOCKS):
        kind = make_kind(kernel, dtype=dtype, block_d=D, block_dv=D, num_queries=32)
        first, *others = autotune.candidates(kind, gpu)
        assert first == table.table_tiles(kind, gpu)
        assert all(table.fits(kind, tiles, gpu) for tiles in others)
        assert len({first, *others}) == 1 + len(others)


@pytest.mark.parametrize("key", table.HOPPER, ids=str)
def test_table_is_used_as_it_is_on_hopper(key):
    kernel, block = key
    choice = table.HOPPER[key]
    rows = 16 if kernel == "decode" else 4096
    kind = make_kind(kernel, block_d=block, block_dv=block, num_queries=rows)
    short = kind._replace(num_queries=16)
    assert table.table_tiles(kind._replace(has_window=True), H200) == choice.window
    if kernel != "decode":
        assert table.table_tiles(kind, H200) == choice.plain
        assert table.table_tiles(short, H200) == choice.short


def test_bias_and_mask_take_shared_memory():
    kind = make_kind(block_d=128, block_dv=128)
    tiles = table.table_tiles(kind, H200)
    assert tiles == Tiles(128, 128, 8, 3)
    assert not table.fits(kind._replace(score_bytes=1), tiles, H200)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("D", "Dv"), [(128, 16), (16, 128), (64, 32), (256, 16)])
def test_tiles_keep_out_of_the_trap(kernel, D, Dv):
    """Rows that are not streamed get products of few rows on Hopper, whoever chose the tiles."""
    rows = "block_n" if kernel == "dkdv" else "block_m"
    kind = make_kind(kernel, block_d=D, block_dv=Dv, streams=False, num_queries=64)
    stored.keep(kind.key(H200), Tiles(64, 64, 4, 2)._asdict())
    found = [table.usual_tiles(kind, H200)]
    if kernel != "scored":
        found += autotune.candidates(kind, H200)
    for tiles in found:
        assert tiles.num_warps < 4 if kernel == "decode" else getattr(tiles, rows) <= 32
    streamed = table.usual_tiles(kind._replace(streams=True), H200)
    is_small = streamed.num_warps < 4 or getattr(streamed, rows) <= 32
    assert is_small == (kernel == "scored")  # it has one stage
    for other in (8, 10, 12):  # have no such products
        tiles = Tiles(64, 64, 4, 1)
        assert table.avoid_trap(kind, tiles, H200._replace(family=other)) == tiles


@pytest.mark.parametrize("D", [3, 64, 65, 200])
def test_kind_holds_what_tiles_depend_on(D):
    q, v = torch.empty(2, 4, 9, D, device="meta"), torch.empty(2, 2, 800, 16, device="meta")
    mask = torch.empty(1, 1, 9, 800, dtype=torch.uint8, device="meta")
    k = torch.empty(2, 2, 800, D, device="meta")
    call = Call.dense(q, k, v, None, mask, None, Terms(left=3))
    block = {3: 16, 64: 64, 65: 128, 200: 256}[D]
    even = D in (64, 200)
    expected = Kind("dq", torch.float32, block, 16, True, 1, 9, 800, even, is_described=even)
    assert Kind.of("dq", call) == expected
    assert Kind.of("decode", call).num_queries == 32  # two heads of nine queries


@pytest.mark.parametrize(
    ("heads", "keys", "splits"), [(8, 32768, 33), (8, 131072, 33), (1, 131072, 128), (8, 600, 3)]
)
def test_keys_are_split_so_that_all_multiprocessors_have_two_programs(heads, keys, splits):
    q = torch.empty(1, heads, 1, 64, dtype=torch.bfloat16, device="meta")
    k = torch.empty(1, heads, keys, 64, dtype=torch.bfloat16, device="meta")
    tiles = table.decode_tiles(Call.dense(q, k, k, None, None, None, Terms()))
    assert tiles == {
        "BLOCK_M": 16, "BLOCK_N": 64, "num_warps": 4, "num_stages": 4, "num_splits": splits
    }  # fmt: skip


@pytest.mark.skipif(HAS_GPU, reason="is about machines without a GPU")
def test_interpreter_needs_no_cuda_device():
    assert gpu_of(torch.device("cpu")) is INTERPRETER
    q, k, v = make_qkv(SHAPE).values()
    tiles = table.forward_tiles(Call.dense(q, k, v, None, None, None, Terms()))
    assert tiles == {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}


# The store


def test_store_is_in_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHPOINT_CACHE", "/somewhere")
    assert str(stored.path()) == "/somewhere/tiles.json"
    monkeypatch.delenv("FLASHPOINT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert stored.path() == tmp_path / "flashpoint" / "tiles.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(stored.path()) == "/home/ada/.cache/flashpoint/tiles.json"


def test_what_is_kept_is_found_in_another_process(store):
    stored.keep("a", {"block_m": 16})
    code = "from flashpoint.ops.gpu.tiles import stored; print(stored.find('a'))"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "{'block_m': 16}\n"
    assert os.listdir(store.parent) == ["tiles.json"]  # no temporary file stays


def test_entries_of_other_processes_stay(store):
    stored.keep("mine", {"block_m": 16})
    content = json.loads(store.read_text())
    content["tiles"]["theirs"] = {"block_m": 32}
    store.write_text(json.dumps(content))
    stored.keep("mine too", {"block_m": 64})
    assert sorted(json.loads(store.read_text())["tiles"]) == ["mine", "mine too", "theirs"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 0, "tiles": {}}', '{"format": 1}', "\udc80"]
)
def test_broken_file_is_said_once_and_replaced(store, content):
    store.parent.mkdir()
    store.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.warns(UserWarning, match=r"tiles.*calls go on without it"):
        assert stored.find("a") is None
    stored.keep("a", {"block_m": 16})  # a second warning would be an error
    stored.forget()
    assert stored.find("a") == {"block_m": 16}


def test_folder_that_cannot_be_written_is_said_once(store, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="measured tiles cannot be stored in"):
        stored.keep("a", {"block_m": 16})
    stored.keep("b", {"block_m": 16})
    assert stored.find("a") == {"block_m": 16}  # in this process


@pytest.mark.parametrize(
    "change",
    [{"block_m": 48}, {"num_stages": 9}, {"block_n": "64"}, {"num_warps": None}, {"waves": True}],
    ids=str,
)
def test_unusable_entry_is_said_and_the_table_used(change):
    kind = make_kind()
    entry = Tiles(64, 32, 4, 2)._asdict()
    stored.keep(kind.key(H200), entry)
    assert table.usual_tiles(kind, H200) == Tiles(64, 32, 4, 2)
    stored.keep(kind.key(H200), entry | change)
    with pytest.warns(UserWarning, match="cannot be used"):
        assert table.usual_tiles(kind, H200) == table.table_tiles(kind, H200)


def test_entry_that_does_not_fit_is_not_used():
    kind = make_kind(block_d=256, block_dv=256)
    stored.keep(kind.key(H200), Tiles(128, 128, 8, 3)._asdict())
    with pytest.warns(UserWarning, match="cannot be used"):
        assert table.usual_tiles(kind, H200) == table.table_tiles(kind, H200)


def test_lengths_of_one_bucket_share_an_entry():
    kind = make_kind()
    assert kind.key(H200) == kind._replace(num_keys=2049).key(H200)
    others = (
        kind._replace(num_keys=2048), kind._replace(has_window=True),
        kind._replace(dtype=torch.float16), kind._replace(block_dv=128),
        kind._replace(score_bytes=1), kind._replace(kernel="dq"),
    )  # fmt: skip
    keys = {other.key(H200) for other in others} | {kind.key(H200._replace(name="another"))}
    assert len(keys) == 7
    assert kind.key(H200) not in keys
