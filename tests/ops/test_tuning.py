"""Tiles: they fit every GPU, measured ones are stored and used, and none changes a result."""

import itertools
import json
import math
import os
import subprocess
import sys

import pytest
import torch
from implementations import HAS_GPU, HAS_TRITON, device_of, needs_gpu
from numerics import assert_exact, make_inputs

from flashpoint import attention

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.spec import Terms
from flashpoint.ops.triton import autotune, replay, tile_store, tuning
from flashpoint.ops.triton.problem import Problem
from flashpoint.ops.triton.tuning import INTERPRETER, Gpu, Kind, Tiles

KERNELS = ("forward", "dkdv", "dq", "decode", "scored")
BLOCKS = (16, 32, 64, 128, 256)
H200 = Gpu("NVIDIA H200", 9, 227 * 1024, 132)
FAMILIES = {"turing": 7, "ampere": 8, "hopper": 9, "blackwell": 10, "small blackwell": 12}
SHAPE = (1, 2, 1, 33, 70, 16, 16)

pytestmark = pytest.mark.usual_tiles


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    """An empty store of its own for every test; gives its file."""
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FLASHPOINT_AUTOTUNE", raising=False)
    tile_store.forget()
    autotune._tried.clear()
    replay._recordings.clear()
    yield tmp_path / "cache" / "tiles.json"
    tile_store.forget()
    autotune._tried.clear()
    replay._recordings.clear()


def make_kind(kernel="forward", **changes):
    usual = Kind(kernel, torch.bfloat16, 64, 64, False, 0, 4096, 4096)
    return usual._replace(**changes)


def make_problem(shape=SHAPE, dtype=torch.float32, **terms):
    inputs = make_inputs(shape)
    q, k, v = (inputs[name].to(device_of("triton"), dtype) for name in "qkv")
    return Problem.dense(q, k, v, None, None, None, Terms(**terms))


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
            tiles = tuning.table_tiles(kind, gpu)
            assert tiles == tuning.fit(kind, tiles, gpu)
            assert min(tiles.block_m, tiles.block_n) >= 16
            if not is_beyond_the_smallest(kind, kilobytes):
                assert tuning.shared_bytes(kind, tiles, gpu) <= kilobytes * 1024
            else:
                assert (tiles.block_n, tiles.num_stages) == (16, 1)
                assert tiles.block_m == 16 or kernel == "decode"


def is_beyond_the_smallest(kind, kilobytes):
    """Where not even the smallest tiles fit: by the estimate, which is above what fp32 needs."""
    smallest = Tiles(kind.num_queries if kind.kernel == "decode" else 16, 16, 4, 1)
    return tuning.shared_bytes(kind, smallest, Gpu("", 10, 0, 1)) > kilobytes * 1024


@pytest.mark.parametrize("kernel", KERNELS)
def test_16_bit_tiles_fit_every_gpu_since_turing(kernel):
    gpu = Gpu("some GPU", 7, 64 * 1024, 40)
    rows = 16 if kernel == "decode" else 4096
    for D in BLOCKS:
        kind = make_kind(kernel, block_d=D, block_dv=D, num_queries=rows, score_bytes=5)
        assert tuning.fits(kind, tuning.table_tiles(kind, gpu), gpu)


@pytest.mark.parametrize("kernel", KERNELS[:4])
@pytest.mark.parametrize("kilobytes", [64, 99, 163, 227])
def test_candidates_are_different_and_fit(kernel, kilobytes):
    gpu = Gpu("some GPU", 8, kilobytes * 1024, 40)
    for dtype, D in itertools.product((torch.float16, torch.float32), BLOCKS):
        kind = make_kind(kernel, dtype=dtype, block_d=D, block_dv=D, num_queries=32)
        first, *others = autotune.candidates(kind, gpu)
        assert first == tuning.table_tiles(kind, gpu)
        assert all(tuning.fits(kind, tiles, gpu) for tiles in others)
        assert len({first, *others}) == 1 + len(others)


@pytest.mark.parametrize("key", tuning.HOPPER, ids=str)
def test_table_is_used_as_it_is_on_hopper(key):
    kernel, block = key
    choice = tuning.HOPPER[key]
    rows = 16 if kernel == "decode" else 4096
    kind = make_kind(kernel, block_d=block, block_dv=block, num_queries=rows)
    short = kind._replace(num_queries=16)
    assert tuning.table_tiles(kind._replace(has_window=True), H200) == choice.window
    if kernel != "decode":
        assert tuning.table_tiles(kind, H200) == choice.plain
        assert tuning.table_tiles(short, H200) == choice.short


def test_bias_and_mask_take_shared_memory():
    kind = make_kind(block_d=128, block_dv=128)
    tiles = tuning.table_tiles(kind, H200)
    assert tiles == Tiles(128, 128, 8, 3)
    assert not tuning.fits(kind._replace(score_bytes=1), tiles, H200)


@pytest.mark.parametrize("D", [3, 64, 65, 200])
def test_kind_holds_what_tiles_depend_on(D):
    q, v = torch.empty(2, 4, 9, D, device="meta"), torch.empty(2, 2, 800, 16, device="meta")
    mask = torch.empty(1, 1, 9, 800, dtype=torch.uint8, device="meta")
    k = torch.empty(2, 2, 800, D, device="meta")
    problem = Problem.dense(q, k, v, None, mask, None, Terms(left=3))
    block = {3: 16, 64: 64, 65: 128, 200: 256}[D]
    expected = Kind("dq", torch.float32, block, 16, True, 1, 9, 800)
    assert Kind.of("dq", problem) == expected
    assert Kind.of("decode", problem).num_queries == 32  # two heads of nine queries


@pytest.mark.parametrize(
    ("heads", "keys", "splits"), [(8, 32768, 33), (8, 131072, 33), (1, 131072, 128), (8, 600, 3)]
)
def test_keys_are_split_so_that_all_multiprocessors_have_two_programs(heads, keys, splits):
    q = torch.empty(1, heads, 1, 64, dtype=torch.bfloat16, device="meta")
    k = torch.empty(1, heads, keys, 64, dtype=torch.bfloat16, device="meta")
    tiles = tuning.decode_tiles(Problem.dense(q, k, k, None, None, None, Terms()))
    assert tiles == {
        "BLOCK_M": 16, "BLOCK_N": 64, "num_warps": 4, "num_stages": 4, "num_splits": splits
    }  # fmt: skip


@pytest.mark.skipif(HAS_GPU, reason="is about machines without a GPU")
def test_interpreter_needs_no_cuda_device():
    assert tuning.gpu_of(torch.device("cpu")) is INTERPRETER
    tiles = tuning.forward_tiles(make_problem())
    assert tiles == {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}


# The store


def test_store_is_in_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHPOINT_CACHE", "/somewhere")
    assert str(tile_store.path()) == "/somewhere/tiles.json"
    monkeypatch.delenv("FLASHPOINT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tile_store.path() == tmp_path / "flashpoint" / "tiles.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(tile_store.path()) == "/home/ada/.cache/flashpoint/tiles.json"


def test_what_is_kept_is_found_in_another_process(store):
    tile_store.keep("a", {"block_m": 16})
    code = "from flashpoint.ops.triton import tile_store; print(tile_store.find('a'))"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "{'block_m': 16}\n"
    assert os.listdir(store.parent) == ["tiles.json"]  # no temporary file stays


def test_entries_of_other_processes_stay(store):
    tile_store.keep("mine", {"block_m": 16})
    content = json.loads(store.read_text())
    content["tiles"]["theirs"] = {"block_m": 32}
    store.write_text(json.dumps(content))
    tile_store.keep("mine too", {"block_m": 64})
    assert sorted(json.loads(store.read_text())["tiles"]) == ["mine", "mine too", "theirs"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 0, "tiles": {}}', '{"format": 1}', "\udc80"]
)
def test_broken_file_is_said_once_and_replaced(store, content):
    store.parent.mkdir()
    store.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.warns(UserWarning, match=r"tiles.*calls go on without it"):
        assert tile_store.find("a") is None
    tile_store.keep("a", {"block_m": 16})  # a second warning would be an error
    tile_store.forget()
    assert tile_store.find("a") == {"block_m": 16}


def test_folder_that_cannot_be_written_is_said_once(store, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="measured tiles cannot be stored in"):
        tile_store.keep("a", {"block_m": 16})
    tile_store.keep("b", {"block_m": 16})
    assert tile_store.find("a") == {"block_m": 16}  # in this process


@pytest.mark.parametrize(
    "change",
    [{"block_m": 48}, {"num_stages": 9}, {"block_n": "64"}, {"num_warps": None}, {"waves": True}],
    ids=str,
)
def test_unusable_entry_is_said_and_the_table_used(change):
    kind = make_kind()
    entry = Tiles(64, 32, 4, 2)._asdict()
    tile_store.keep(kind.key(H200), entry)
    assert tuning.usual_tiles(kind, H200) == Tiles(64, 32, 4, 2)
    tile_store.keep(kind.key(H200), entry | change)
    with pytest.warns(UserWarning, match="cannot be used"):
        assert tuning.usual_tiles(kind, H200) == tuning.table_tiles(kind, H200)


def test_entry_that_does_not_fit_is_not_used():
    kind = make_kind(block_d=256, block_dv=256)
    tile_store.keep(kind.key(H200), Tiles(128, 128, 8, 3)._asdict())
    with pytest.warns(UserWarning, match="cannot be used"):
        assert tuning.usual_tiles(kind, H200) == tuning.table_tiles(kind, H200)


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


# Measuring


class FakeTimer:
    """Makes the candidate number ``fastest`` of every kernel the fastest."""

    def __init__(self, fastest):
        self.fastest = fastest
        self.seen = {}

    def on_candidate(self, kind, tiles):
        self.seen.setdefault(kind.kernel, []).append(tiles)
        self.kernel = kind.kernel

    def __call__(self, call):
        return abs(len(self.seen[self.kernel]) - 1 - self.fastest) + 1.0

    def session(self):
        return autotune.session(self, on_candidate=self.on_candidate)


FP16_CASES = [pytest.param(torch.float16, number, id=f"fp16-{number}") for number in range(9)]
FP32_CASES = [pytest.param(torch.float32, number, id=f"fp32-{number}") for number in range(5)]


@pytest.mark.parametrize(
    ("dtype", "fastest"), FP16_CASES if HAS_GPU else FP16_CASES + FP32_CASES
)  # fp32 takes long to compile
def test_candidates_give_the_same_result(dtype, fastest):
    timer = FakeTimer(fastest)
    with timer.session():
        assert_exact("triton", dtype, make_inputs(SHAPE), causal=True)
    assert sorted(timer.seen) == ["dkdv", "dq", "forward"]


@pytest.mark.parametrize("fastest", range(7))
def test_candidates_of_decode_give_the_same_result(fastest):
    timer = FakeTimer(fastest)
    with timer.session(), torch.no_grad():
        inputs = make_inputs((1, 2, 1, 2, 600, 16, 16))
        q, k, v = (inputs[name].to(device_of("triton"), torch.float16) for name in "qkv")
        o = attention(q, k, v, impl="triton")
    expected = attention(q, k, v, impl="reference")
    assert list(timer.seen) == ["decode"]
    torch.testing.assert_close(o, expected, rtol=2e-3, atol=2e-3)


def test_session_finds_stores_and_later_calls_use_the_fastest(store):
    problem = make_problem(dtype=torch.float16)
    timer = FakeTimer(2)
    with timer.session() as tuned:
        attention(problem.q, problem.k, problem.v, impl="triton")
    (found,) = tuned.found
    assert found.before == timer.seen["forward"][0]
    assert found.after == timer.seen["forward"][2] != found.before
    assert (found.before_ms, found.after_ms) == (3.0, 1.0)
    tile_store.forget()  # as in another process
    tiles = tuning.forward_tiles(problem)
    assert Tiles(*(tiles[name] for name in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"))) == (
        found.after
    )


def test_gain_within_noise_changes_nothing():
    problem = make_problem(dtype=torch.float16)
    times = iter([1.0, *[0.99] * 20])
    with autotune.session(lambda call: next(times)) as tuned:
        attention(problem.q, problem.k, problem.v, impl="triton")
    assert tuned.found[0].before == tuned.found[0].after


def test_failing_candidates_are_skipped():
    problem = make_problem(dtype=torch.float16)
    calls = []

    def timer(call):
        calls.append(call)
        if len(calls) != 3:
            raise RuntimeError("out of resources")
        return 1.0

    with autotune.session(timer) as tuned:
        attention(problem.q, problem.k, problem.v, impl="triton")
    kind = Kind.of("forward", problem)
    gpu = tuning.gpu_of(problem.q.device)
    assert tuned.found[0].before_ms == math.inf
    assert tuned.found[0].after == autotune._CANDIDATES["forward"][1]
    assert tuning.usual_tiles(kind, gpu) == tuned.found[0].after


def test_nothing_is_stored_where_every_candidate_fails(store):
    def timer(call):
        raise RuntimeError("out of resources")

    problem = make_problem(dtype=torch.float16)
    with autotune.session(timer) as tuned:
        o = attention(problem.q, problem.k, problem.v, impl="triton")
    assert o.isfinite().all()
    assert tuned.found == []
    assert not store.exists()


def test_rehearsals_are_repeated_and_not_recorded():
    problem = make_problem(dtype=torch.float16)
    kept = []

    def timer(call):
        assert isinstance(call.__self__, autotune.Rehearsal)
        call()
        kept.append(call.__self__)
        return 1.0

    with autotune.session(timer):
        attention(problem.q, problem.k, problem.v, impl="triton")
    assert kept
    assert all(len(x.steps) == 1 and not x.launches and not x.is_repeatable for x in kept)
    assert not any(recorder in kept for recorder in replay._recordings.values())


@pytest.fixture
def timed(monkeypatch):
    """A timer in the place of the GPU's; gives the calls it has timed."""
    calls = []

    def bench_ms(call):
        calls.append(call)
        return float(len(calls))

    monkeypatch.setattr(autotune, "bench_ms", bench_ms)
    return calls


def test_first_call_does_not_tune_unless_asked(timed, monkeypatch, store):
    monkeypatch.setattr(autotune, "_is_timeable", lambda problem: True)
    problem = make_problem()
    for value in (None, "0", ""):
        if value is not None:
            monkeypatch.setenv("FLASHPOINT_AUTOTUNE", value)
        attention(problem.q, problem.k, problem.v, impl="triton")
    assert timed == []
    assert not store.exists()


def test_variable_tunes_a_kind_once(timed, monkeypatch, store):
    monkeypatch.setattr(autotune, "_is_timeable", lambda problem: True)
    monkeypatch.setenv("FLASHPOINT_AUTOTUNE", "1")
    problem = make_problem()
    attention(problem.q, problem.k, problem.v, impl="triton")
    assert len(timed) == 5
    assert len(json.loads(store.read_text())["tiles"]) == 1
    attention(problem.q, problem.k, problem.v, impl="triton")
    autotune._tried.clear()  # as in another process
    attention(problem.q, problem.k, problem.v, impl="triton")
    assert len(timed) == 5


@pytest.mark.skipif(HAS_GPU, reason="is about tensors that no GPU can time")
def test_interpreted_call_does_not_tune(timed, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_AUTOTUNE", "1")
    problem = make_problem()
    attention(problem.q, problem.k, problem.v, impl="triton")
    assert timed == []


def test_captured_call_does_not_tune(monkeypatch):
    class OnGpu:
        class q:
            is_cuda = True

    for capturing in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda x=capturing: x)
        assert autotune._is_timeable(OnGpu) is not capturing


@pytest.mark.gpu
@needs_gpu
def test_variable_tunes_on_a_gpu(monkeypatch, store):
    monkeypatch.setenv("FLASHPOINT_AUTOTUNE", "1")
    inputs = make_inputs((1, 2, 1, 130, 140, 64, 64))
    assert_exact("triton", torch.float16, inputs, causal=True)
    kernels = {key.split(" | ")[0] for key in json.loads(store.read_text())["tiles"]}
    assert kernels == {"forward", "dkdv", "dq"}
