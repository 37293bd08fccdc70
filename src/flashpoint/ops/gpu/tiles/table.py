"""Tiles of the kernels: a measured table for each family of GPUs, and a rule for all others.

A GPU without a table gets Hopper's tiles, with fewer stages and smaller blocks until its shared
memory holds them. What ``flashpoint tune`` or ``FLASHPOINT_AUTOTUNE=1`` found and stored for a
kind of call goes before both. Tiles never change a result beyond its rounding.
"""

from typing import Any, NamedTuple

import torch
import triton

from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.device import HOPPER_FAMILY, Gpu, gpu_of
from flashpoint.ops.gpu.reading import block_of
from flashpoint.ops.gpu.tiles import stored

LONG = 2048  # queries from which the largest tiles pay
SMALLEST_BLOCK = 16  # that products take
SLACK_BYTES = 2048  # barriers, alignment, a row of normalizers
SWIZZLED = 64  # numbers of 16 bits in a row from which on all rows are swizzled alike
SMALL_ROWS = 32  # of a tile: too few for Hopper's asynchronous products
TENSOR_MEMORY = (10, 11)  # families with products in it: the large Blackwells
MOST_SPLITS = 128
SPLIT_KEYS = 256  # keys that a split has at least
LOOPS = ("forward", "dq", "dkdv")  # kernels that hold rows and stream the others past them


class Tiles(NamedTuple):
    """How a kernel cuts its work.

    Attributes:
        block_m, block_n: queries and keys of a tile; decode's rows decide its ``block_m``.
        waves: decode only: programs for each multiprocessor, by which the keys are split.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    waves: int = 2

    def describe(self, kernel: str) -> str:
        """A few words for tables: blocks, w warps, s stages, p programs a multiprocessor.

        Example:
            >>> Tiles(128, 64, 4, 3).describe("forward")
            '128x64 w4 s3'
        """
        text = f"{self.block_m}x{self.block_n} w{self.num_warps} s{self.num_stages}"
        return f"{text} p{self.waves}" if kernel == "decode" else text


class Kind(NamedTuple):
    """All of a call that its tiles are chosen by.

    Attributes:
        kernel: forward, dkdv, dq, decode or scored.
        block_d, block_dv: powers of two that hold the head dims.
        has_window: causal, or another window.
        score_bytes: of bias and mask for one score.
        streams: blocks are loaded ahead, which takes rows that begin at 16 bytes.
        num_queries: of the longest sequence; for decode the rows of its tile.
        is_wide: products take fp16 as TF32, which asks for copies of tiles.
        has_words: a mask is read as words.
        is_described: the copy engine loads q, k and v, by descriptors.
    """

    kernel: str
    dtype: torch.dtype
    block_d: int
    block_dv: int
    has_window: bool
    score_bytes: int
    num_queries: int
    num_keys: int
    streams: bool = True
    is_wide: bool = False
    has_words: bool = False
    is_described: bool = True

    @classmethod
    def of(cls, kernel: str, call: Call) -> "Kind":
        """The kind of a call."""
        terms, rows = call.terms, call.num_queries
        if kernel == "decode":
            rows = max(SMALLEST_BLOCK, triton.next_power_of_2(call.group * rows))
        return cls(
            kernel=kernel,
            dtype=call.q.dtype,
            block_d=block_of(call.q.shape[3]),
            block_dv=block_of(call.v.shape[3]),
            has_window=terms.left is not None or terms.right is not None,
            score_bytes=sum(
                x.element_size()
                for x in (call.bias, call.mask if call.mask_words is None else None)
                if x is not None
            ),
            num_queries=rows,
            num_keys=call.num_keys,
            streams=call.is_regular or call.loads_wide,
            is_wide=call.is_wide,
            has_words=call.mask_words is not None,
            is_described=call.is_regular and call.has_many_keys,
        )

    def key(self, gpu: Gpu) -> str:
        """The name of its stored tiles; lengths up to the same power of two share them."""
        lengths = map(triton.next_power_of_2, (self.num_queries, self.num_keys))
        words = (
            self.kernel, gpu.name, f"triton {triton.__version__}",
            str(self.dtype).removeprefix("torch."), f"D{self.block_d}x{self.block_dv}",
            "window" if self.has_window else "all keys", f"{self.score_bytes} score bytes",
            "L" + "x".join(map(str, lengths)), *(() if self.streams else ("odd rows",)),
            *(("wide",) if self.is_wide else ()), *(("words",) if self.has_words else ()),
        )
        return " | ".join(words)


class Choice(NamedTuple):
    """Tiles for one kernel and head dim: every key seen, a window, fewer than LONG queries.

    Those for a bias or a mask, and for a mask's words, go before these if there are any.
    """

    plain: Tiles
    window: Tiles
    short: Tiles
    scored: Tiles | None = None
    words: Tiles | None = None

    def of(self, kind: Kind) -> Tiles:
        """Those of a kind of call."""
        if kind.score_bytes and self.scored:
            return self.scored
        if kind.has_words and self.words:
            return self.words
        if kind.has_window:
            return self.window
        return self.plain if kind.num_queries >= LONG else self.short


def _choice(
    plain: Tiles, window: Tiles | None = None, short: Tiles | None = None, **rest: Tiles
) -> Choice:
    return Choice(plain, window or plain, short or plain, **rest)


Table = dict[tuple[str, int], Choice]  # by kernel and head dim block

# Measured on an H200 in bf16, but for head dim 256: the largest that spill no registers.
HOPPER: Table = {
    ("forward", 64): _choice(
        Tiles(128, 64, 4, 3), window=Tiles(64, 64, 4, 3),
        scored=Tiles(128, 64, 8, 3), words=Tiles(64, 64, 4, 3),
    ),
    ("forward", 128): _choice(
        Tiles(128, 128, 8, 3), window=Tiles(64, 64, 4, 3), short=Tiles(64, 64, 4, 3)
    ),
    ("forward", 256): _choice(Tiles(128, 32, 8, 2), window=Tiles(64, 32, 4, 2)),
    ("dkdv", 64): _choice(
        Tiles(64, 64, 4, 3), scored=Tiles(128, 64, 4, 2), words=Tiles(128, 64, 4, 2)
    ),
    ("dkdv", 128): _choice(Tiles(64, 128, 8, 3), window=Tiles(64, 64, 4, 2)),
    ("dkdv", 256): _choice(Tiles(32, 64, 8, 2)),
    ("dq", 64): _choice(
        Tiles(128, 64, 8, 3), window=Tiles(64, 64, 4, 3),
        scored=Tiles(128, 64, 4, 3), words=Tiles(64, 64, 4, 3),
    ),
    ("dq", 128): _choice(Tiles(128, 64, 8, 3)),
    ("dq", 256): _choice(Tiles(64, 64, 8, 2), window=Tiles(64, 32, 8, 2)),
    ("decode", 64): _choice(Tiles(16, 64, 4, 4)),
    ("decode", 128): _choice(Tiles(16, 64, 4, 4)),
    ("decode", 256): _choice(Tiles(16, 64, 4, 3)),
    ("scored", 64): _choice(Tiles(64, 64, 4, 1)),
    ("scored", 128): _choice(Tiles(64, 64, 4, 1)),
    ("scored", 256): _choice(Tiles(64, 64, 4, 1)),
}
TABLES: dict[int, Table] = {9: HOPPER}  # by the family of the GPU

# fp32: larger tiles spill, and take up to half a minute to compile
FP32 = {64: Tiles(32, 32, 4, 2), 128: Tiles(32, 32, 8, 2), 256: Tiles(16, 16, 8, 2)}
# but for Hopper's asynchronous products; 64 rows for four warps each: with fewer, Triton 3.6 made
# code that read out of bounds
ASYNCHRONOUS_ROWS = 64
HOPPER_FP32 = {
    ("forward", 64): Tiles(128, 64, 8, 3),
    ("dkdv", 64): Tiles(64, 128, 8, 3),
    ("dq", 64): Tiles(128, 64, 8, 3),
}

def shared_bytes(kind: Kind, tiles: Tiles, gpu: Gpu) -> int:
    r"""At most what a kernel needs of shared memory, in bytes.

    With e bytes an element, W = D + Dv, s stages, blocks M and N, and c bytes of bias and mask a
    score; what a program holds is there once, what it streams once for each stage:

        forward, decode  e (M D + s N W) + s c M N
        dq               e (M W + s N W) + s c M N
        dkdv             e (N W + max(s, 2) M W) + s c M N, where q and do are turned, too
        scored           e s (M + N) W + s c M N

    Products in tensor memory let dq and dkdv stream one block more. Held against Triton's own
    numbers for sm_80, sm_90, sm_100 and sm_120. Wide products have their second factor in fp32
    besides, once. Of fp32, asynchronous products want what a program holds in registers where it
    came by descriptors, and else twice.
    """
    m, n, stages = tiles.block_m, tiles.block_n, tiles.num_stages
    width = kind.block_d + kind.block_dv
    blocks = stages + 1 if gpu.family in TENSOR_MEMORY else stages
    elements = {
        "forward": m * kind.block_d + stages * n * width,
        "decode": m * kind.block_d + stages * n * width,
        "dq": (m + blocks * n) * width,
        "dkdv": (n + max(blocks, 2) * m) * width,
        "scored": stages * (m + n) * width,
    }[kind.kernel]
    copies = {
        "forward": n * kind.block_dv,
        "decode": n * kind.block_dv,
        "dq": n * kind.block_d,
        "dkdv": m * width,
        "scored": 0,
    }[kind.kernel]
    rows = held_rows(kind, tiles)
    held = rows * (kind.block_d if kind.kernel == "forward" else width)
    is_asynchronous = gpu.family == HOPPER_FAMILY and rows >= ASYNCHRONOUS_ROWS
    if kind.dtype == torch.float32 and is_asynchronous and kind.kernel in LOOPS:
        elements += -held if kind.is_described else held
    scores = stages * kind.score_bytes * m * n
    wide = 4 * copies if kind.is_wide else 0
    return elements * kind.dtype.itemsize + wide + scores + SLACK_BYTES


def held_rows(kind: Kind, tiles: Tiles) -> int:
    """Rows of a product: those that a program holds, keys for dk and dv."""
    return tiles.block_n if kind.kernel == "dkdv" else tiles.block_m


def fits(kind: Kind, tiles: Tiles, gpu: Gpu) -> bool:
    """Whether the GPU's shared memory holds the tiles."""
    return shared_bytes(kind, tiles, gpu) <= gpu.shared_bytes


def fit(kind: Kind, tiles: Tiles, gpu: Gpu) -> Tiles:
    """The tiles, with fewer stages and smaller blocks until they fit, or no smaller ones exist.

    The smallest are used even if they seem not to fit: of fp32, kernels need less than it says.
    """
    while not fits(kind, tiles, gpu):
        steps = (
            tiles._replace(num_stages=max(min(tiles.num_stages, 2), tiles.num_stages - 1)),
            _halve(kind, tiles, 2 * SMALLEST_BLOCK),
            tiles._replace(num_stages=1),
            _halve(kind, tiles, SMALLEST_BLOCK),
        )
        smaller = next((step for step in steps if step != tiles), None)
        if smaller is None:
            break
        tiles = smaller
    return tiles


def avoid_trap(kind: Kind, tiles: Tiles, gpu: Gpu) -> Tiles:
    """The tiles, with few rows where ptxas 12.8 would compile Hopper's products wrongly.

    That is where k and v are not streamed, so that both lie in the same place of shared memory,
    one after the other, and are swizzled differently there, one of their rows being short. Then
    ptxas forgets to copy their address for v's products, which start from a register that nobody
    has written. Tiles of fewer than 64 rows, or two warps, take products without such addresses.

    In fp32, products of TF32 parts with more warps than one for 16 rows read out of bounds.
    """
    if gpu.family == HOPPER_FAMILY and kind.dtype == torch.float32:
        rows = held_rows(kind, tiles)
        most = rows // 16 if rows >= ASYNCHRONOUS_ROWS else tiles.num_warps
        return tiles._replace(num_warps=min(tiles.num_warps, most))
    is_streamed = kind.streams and tiles.num_stages > 1
    widths = {min(block, SWIZZLED) for block in (kind.block_d, kind.block_dv)}
    is_trap = gpu.family == HOPPER_FAMILY and not is_streamed and len(widths) > 1
    if not is_trap:
        return tiles
    if kind.kernel == "decode":  # its rows are given
        return tiles._replace(num_warps=2)
    block = "block_n" if kind.kernel == "dkdv" else "block_m"
    return tiles._replace(**{block: min(getattr(tiles, block), SMALL_ROWS)})


def _halve(kind: Kind, tiles: Tiles, least: int) -> Tiles:
    """Half the larger block, the streamed one where both are alike, but no less than ``least``."""
    m, n = tiles.block_m, tiles.block_n
    halves_m = m > n or (m == n and kind.kernel == "dkdv")
    if kind.kernel == "decode":  # its rows are given
        halves_m = False
    block = m if halves_m else n
    if block <= least:
        return tiles
    return tiles._replace(**{"block_m" if halves_m else "block_n": block // 2})


def table_tiles(kind: Kind, gpu: Gpu) -> Tiles:
    """What ships for a kind of call, made to fit."""
    block = max(64, kind.block_d, kind.block_dv)
    if kind.dtype == torch.float32:
        if gpu.family == HOPPER_FAMILY and kind.is_described:
            large = HOPPER_FP32.get((kind.kernel, block))
            if large is not None and fits(kind, large, gpu):
                return large
        tiles = FP32[block]._replace(num_stages=1 if kind.kernel == "scored" else 2)
    else:
        tiles = TABLES.get(gpu.family, HOPPER)[kind.kernel, block].of(kind)
    if kind.kernel == "decode":
        tiles = tiles._replace(block_m=kind.num_queries)
    return fit(kind, tiles, gpu)


def stored_tiles(kind: Kind, gpu: Gpu) -> Tiles | None:
    """What was measured and stored for a kind of call, if that can be used."""
    entry = stored.find(kind.key(gpu))
    if entry is None:
        return None
    try:
        tiles = Tiles(**{name: entry[name] for name in Tiles._fields})
    except (KeyError, TypeError):
        tiles = Tiles(0, 0, 0, 0)
    if kind.kernel == "decode" and _is_valid(tiles):
        tiles = tiles._replace(block_m=kind.num_queries)
    if not _is_valid(tiles) or not fits(kind, tiles, gpu):
        stored.warn_once(f"stored tiles of {kind.key(gpu)!r} cannot be used")
        return None
    return tiles


def _is_valid(tiles: Tiles) -> bool:
    """Whether the compiler takes them."""
    allowed = {
        "block_m": (16, 32, 64, 128, 256),
        "block_n": (16, 32, 64, 128, 256),
        "num_warps": (1, 2, 4, 8, 16),
        "num_stages": range(1, 9),
        "waves": range(1, 17),
    }
    return all(
        type(value) is int and value in allowed[name] for name, value in tiles._asdict().items()
    )


def usual_tiles(kind: Kind, gpu: Gpu) -> Tiles:
    """What a call takes: stored tiles if there are any, else those that ship."""
    return avoid_trap(kind, stored_tiles(kind, gpu) or table_tiles(kind, gpu), gpu)


def launch_arguments(tiles: Tiles, kernel: str, call: Call) -> dict[str, Any]:
    """The tiles as a kernel's launch takes them."""
    arguments: dict[str, Any] = {
        "BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n,
        "num_warps": tiles.num_warps, "num_stages": tiles.num_stages,
    }
    if kernel == "decode":
        programs = call.num_samples * call.k.shape[1]
        wanted = tiles.waves * gpu_of(call.q.device).processors // programs
        most = min(MOST_SPLITS, triton.cdiv(call.num_keys, SPLIT_KEYS))
        arguments["num_splits"] = max(1, min(wanted, most))
    return arguments


def _tiles(kernel: str, call: Call) -> dict[str, Any]:
    tiles = usual_tiles(Kind.of(kernel, call), gpu_of(call.q.device))
    return launch_arguments(tiles, kernel, call)


def forward_tiles(call: Call) -> dict[str, Any]:
    """BLOCK_M, BLOCK_N, num_warps and num_stages of the forward kernel."""
    return _tiles("forward", call)


def dkdv_tiles(call: Call) -> dict[str, Any]:
    """The same of the kernel for dk and dv."""
    return _tiles("dkdv", call)


def dq_tiles(call: Call) -> dict[str, Any]:
    """The same of the kernel for dq."""
    return _tiles("dq", call)


def decode_tiles(call: Call) -> dict[str, Any]:
    """The same of the kernel for few queries, and num_splits."""
    return _tiles("decode", call)


def scored_tiles(call: Call) -> dict[str, Any]:
    """The same of the kernel for dbias and dmask."""
    return _tiles("scored", call)
