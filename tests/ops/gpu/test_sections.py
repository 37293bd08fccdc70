"""Causal launches in sections of heads: every tile once, in cached sections of even work."""

import random
from types import FunctionType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from implementations import HAS_TRITON

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.sections import CACHED, SHARE, CausalWork, size_section
from flashpoint.ops.gpu.versions import has_supported_gluon
from flashpoint.ops.spec import Terms

# locate_tile and launches are asked for in modules that only a Gluon we know can import
needs_gluon = pytest.mark.skipif(not has_supported_gluon(), reason="Triton has another Gluon")
CACHE = 60 * 2**20
PROCESSORS = 132


def make_launch(heads, length, dim, rows=128, group=1, products=2):
    tiles = -(-length // rows)
    return CausalWork(heads, group, tiles, rows, length, 0, length * dim * 4, products)


launches = st.builds(
    lambda heads, group, tiles, rows, slack, kilobytes, products: CausalWork(
        heads * group, group, tiles, rows, tiles * rows, slack, kilobytes * 1024, products
    ),
    *(st.integers(1, 300), st.sampled_from([1, 2, 4, 8]), st.integers(1, 40)),
    *(st.sampled_from([128, 192, 256]), st.integers(-500, 500)),
    *(st.integers(1, 100_000), st.integers(2, 4)),
)


@given(launches, st.integers(1, 200), st.integers(10, 100))
def test_sections_share_no_columns_and_fit_the_cache(launch, processors, megabytes):
    cache = megabytes * 2**20
    section = size_section(launch, processors, cache)
    if section is not None:
        assert 1 <= section < launch.heads
        assert section % launch.group == 0
        assert section // launch.group * launch.head_bytes <= SHARE * cache
        assert launch.heads // launch.group * launch.head_bytes > CACHED * cache


CUT = {
    "192": (make_launch(128, 2048, 192), 0.03),
    "256": (make_launch(128, 2048, 256), 0.03),
    "128": (make_launch(256, 4096, 128), 0.02),
    "128-grouped": (make_launch(256, 4096, 128, group=4), 0.02),
    "one-head-each": (make_launch(64, 65_536, 128), 0.03),
    "very-many": (make_launch(4096, 1024, 128), 0.03),
    "long": (make_launch(256, 9600, 128), 0.03),
    "longer": (make_launch(128, 16_768, 128), 0.03),
    "longest": (make_launch(96, 22_400, 128), 0.03),
}
WHOLE = {
    "cached": make_launch(32, 2048, 192),
    "three-products": make_launch(256, 4096, 128, products=3),
    "many-products": make_launch(256, 4096, 128, products=4),
    "high-tiles": make_launch(512, 4096, 64, rows=256),
    "no-head-fits": make_launch(64, 131_072, 128),
}


@pytest.mark.parametrize(("launch", "lost"), CUT.values(), ids=CUT)
def test_heads_that_do_not_fit_come_in_even_sections(launch, lost):
    section = size_section(launch, PROCESSORS, CACHE)
    assert section is not None
    assert launch.imbalance(section, PROCESSORS) < 1 + lost


@pytest.mark.parametrize("launch", WHOLE.values(), ids=WHOLE)
def test_heads_stay_together_where_sections_gain_nothing(launch):
    assert size_section(launch, PROCESSORS, CACHE) is None


def on_programs(function, program, programs):
    """A function of kernels in plain Python, as one of so many programs runs it."""
    known = {
        "program_id": lambda _: program,
        "num_programs": lambda _: programs,
        "where": lambda condition, one, other: one if condition else other,
        "minimum": min,
    }
    names = {"gl": SimpleNamespace(**known, constexpr=None)}
    if "deal" in function.fn.__code__.co_names:
        from flashpoint.ops.gpu.hopper.tiles import deal

        names["deal"] = on_programs(deal, program, programs)
    return FunctionType(function.fn.__code__, {**function.fn.__globals__, **names})


def draw_order(seed):
    draw = random.Random(seed)
    heads, row_tiles = draw.randint(1, 60), draw.randint(1, 20)
    section = draw.choice([None, 1, heads, draw.randint(1, heads)])
    return heads, section, row_tiles, min(draw.randint(1, 150), heads * row_tiles)


@needs_gluon
@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_kernels_take_every_tile_once_and_the_longest_of_a_section_first(seed, last_first):
    from flashpoint.ops.gpu.hopper.tiles import count_turns, locate_tile

    heads, section, row_tiles, programs = draw_order(seed)
    rounds: list[dict[int, tuple[int, int]]] = [{} for _ in range(heads * row_tiles)]
    for program in range(programs):
        locate = on_programs(locate_tile, program, programs)
        for turn in range(on_programs(count_turns, program, programs)(heads * row_tiles, True)):
            place = programs - 1 - program if turn % 2 else program
            rounds[turn][place] = locate(turn, heads, section, row_tiles, True, last_first)
    taken = [one[place] for one in rounds for place in sorted(one)]
    tiles = range(row_tiles)[:: -1 if last_first else 1]
    size = section or heads
    sections = [range(heads)[first : first + size] for first in range(0, heads, size)]
    assert taken == [(head, tile) for section in sections for tile in tiles for head in section]


@needs_gluon
@pytest.mark.parametrize("seed", range(20))
def test_work_is_counted_as_kernels_divide_it(seed):
    from flashpoint.ops.gpu.hopper.tiles import count_turns, locate_tile

    heads, section, row_tiles, programs = draw_order(seed)
    launch = make_launch(heads, row_tiles * 128, 128)
    loads = []
    for program in range(programs):
        locate = on_programs(locate_tile, program, programs)
        turns = on_programs(count_turns, program, programs)(heads * row_tiles, True)
        found = (locate(turn, heads, section, row_tiles, True, False) for turn in range(turns))
        loads.append(sum(launch.seen(tile) + 128 for _, tile in found))
    most = max(loads) * len(loads) / sum(loads)
    assert launch.imbalance(section or heads, programs) == pytest.approx(most)


def describe_launch(side, call, heads=None):
    """What a launch of one side says of its work, for some key heads or for all."""
    from flashpoint.ops.gpu.hopper.backward import kernel as backward
    from flashpoint.ops.gpu.hopper.forward import kernel as forward

    rows = 128
    tiles = -(-(call.num_keys if side in ("keys", "values") else call.num_queries) // rows)
    if side == "forward":
        return forward._describe_work(call, tiles, rows)
    heads = heads or call.num_samples * call.k.shape[1]
    signed = side == "signed queries"
    return backward._describe_work(side.removeprefix("signed "), signed, call, heads, tiles, rows)


def make_call(B, group, Hkv, Lq, Lk, D=64, Dv=64):
    shapes = ((B, group * Hkv, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv))
    q, k, v = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes)
    return Call.dense(q, k, v, None, None, None, Terms(right=0))


PRODUCTS = {"forward": 2, "keys": 4, "queries": 3, "signed queries": 2}


@needs_gluon
@pytest.mark.parametrize("side", PRODUCTS)
def test_launches_say_what_they_stream(side):
    """Bytes of the columns of one head, and who shares them."""
    B, group, Hkv, Lq, Lk, D, Dv = 3, 4, 5, 300, 500, 128, 64
    found = describe_launch(side, make_call(B, group, Hkv, Lq, Lk, D, Dv))
    keys, queries = Lk * (D + Dv) * 2, Lq * (D + Dv) * 2  # k and v; q and do
    of_keys = side == "keys"
    assert found.heads == (B * Hkv if of_keys else B * Hkv * group)
    assert found.group == (1 if of_keys else group)
    assert found.head_bytes == (group * queries if of_keys else keys)
    assert found.products == PRODUCTS[side]
    if side != "forward":  # where signs fit for some heads only
        some = describe_launch(side, make_call(B, group, Hkv, Lq, Lk, D, Dv), heads=2)
        assert some == found._replace(heads=2 * found.heads // (B * Hkv))


@needs_gluon
@pytest.mark.parametrize("side", ["values", "keys", "signed queries"])
def test_launches_of_large_head_dims_have_two_products(side):
    assert describe_launch(side, make_call(1, 1, 2, 300, 300, 192, 192)).products == 2


@needs_gluon
@pytest.mark.parametrize(("queries", "keys"), [(300, 300), (300, 500), (500, 300)])
@pytest.mark.parametrize("side", ["forward", "queries", "keys"])
def test_columns_of_a_tile_are_those_that_its_rows_see(side, queries, keys):
    """That of rows at the end of a tile of queries, or at the start of one of keys."""
    launch = describe_launch(side, make_call(1, 1, 1, queries, keys))
    rows, tiles = launch.rows, launch.row_tiles
    seen = [[key <= query + keys - queries for key in range(keys)] for query in range(queries)]
    for place in range(tiles):
        if side == "keys":
            exact = sum(row[place * rows] for row in seen)
        else:  # tiles of queries are counted from the last row on
            row = queries - 1 - place * rows
            exact = sum(seen[row]) if row >= 0 else 0
        assert launch.seen(place) == exact
