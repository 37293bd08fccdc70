"""One bit per score, so that dq of relu needs no scores of its own.

The keys side stores which scores are positive, the queries side gates its dW by them. 64 queries
x 16 keys make 32 words of 32 bits, one per lane of a warp:

    words[head of q, block of 64 queries, group of 16 keys, lane]    lengths to whole 128

Bit 16 e + 8 a + c of lane 4 g + t stands for key 8 a + 2 t + e of its group and query 8 c + g of
its block. That is where the accumulator of the queries side has them: the thread (g, t) of warp w
holds queries 16 w + g and 16 w + 8 + g, thus c = 2 w and 2 w + 1. On the keys side the thread
(g, t) holds key 8 a + g and query 8 c + 2 t + e. Packed at the same bits, its halves e are the
elements (g, 2 t + e) of an 8 x 8 matrix of 16 bits, and one movmatrix transposes it.

The keys side writes, for each 64 keys of a tile of 128, the blocks of queries that meet them: bits
of hidden pairs are 0. Where dk has a launch of its own, the same threads read these words and
transpose them back. The queries side takes 0 for groups that no query of its block sees, for those
were not written; nor were blocks of queries behind the last one, whose do is 0.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def count_block_words(num_keys):
    """Words of 64 queries."""
    return gl.cdiv(num_keys, 128) * 256


@gluon.jit
def count_head_words(num_queries, num_keys):
    """Words of a head."""
    return gl.cdiv(num_queries, 128) * 2 * count_block_words(num_keys)


@gluon.jit
def find_words(words, head, first_row, sizes, SIDE: gl.constexpr):
    """Where the words of 64 rows begin; heads count from the first one of the launch.

    Keys: for the first query head of their group, the others' follow by ``count_head_words``.
    """
    num_rows, num_columns = sizes.num_rows, sizes.num_columns
    if SIDE == "keys":
        skipped = head * sizes.group * count_head_words(num_columns, num_rows)
        return words + (skipped + first_row * 2)
    else:
        skipped = first_row // 64 * count_block_words(num_columns)
        return words + (head * count_head_words(num_rows, num_columns) + skipped)


@gluon.constexpr_function
def packing_asm(dtype):
    """From 16 pairs of numbers (2 c + a counts them) and 32 times one place: 32 times their word.

    It is stored there, transposed. The last instruction does nothing but keep the compiler from
    moving all this between the products.
    """
    pairs = "".join(
        f" set.neu.u32.{dtype}x2 alive, ${32 + 2 * c + a}, zero;"
        f" lop3.b32 word{a}, alive, {0x00010001 << (8 * a + c)}, word{a}, 0xEA;"
        for c in range(8)
        for a in range(2)
    )
    results = "".join(f" mov.b32 ${n}, word0;" for n in range(32))
    return (
        "{ .reg .b32 alive, zero, word<2>; mov.b32 zero, 0; mov.b32 word0, 0; mov.b32 word1, 0;"
        + pairs
        + " or.b32 word0, word0, word1; movmatrix.sync.aligned.m8n8.trans.b16 word1, word0;"
        " st.global.b32 [$48], word1; bar.warp.sync -1;" + results + " }"
    )


@gluon.jit
def store_signs(values, words):
    """Store which of values [64 keys, 64 queries] are not 0 (NaN is not), from ``words`` on.

    Gives every element the word of its thread.
    """
    LAYOUT: gl.constexpr = values.type.layout
    keys = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    queries = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    # the same for the 32 elements of a thread: 32 (key // 16) + lane
    places = ((keys >> 4) * 32 + (keys & 7) * 4)[:, None] + ((queries & 7) >> 1)[None, :]
    NAME: gl.constexpr = "bf16" if values.dtype == gl.bfloat16 else "f16"
    OPERANDS: gl.constexpr = "=r" + ",=r" * 31 + ",r" * 16 + ",l" * 32
    pointers = (words + places).to(gl.int64)
    return gl.inline_asm_elementwise(
        packing_asm(NAME), OPERANDS, [values, pointers], gl.int32, False, 32
    )


@gluon.constexpr_function
def signs_layout(groups):
    """An accumulator [64, 16 groups] seen as [8 c, 8 g, groups, 2 a, 4 t, 2 e]."""
    registers = [[0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]]
    registers += [[0, 0, 2**bit, 0, 0, 0] for bit in range(groups.bit_length() - 1)]
    lanes = [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 2, 0]]
    lanes += [[0, 2**bit, 0, 0, 0, 0] for bit in range(3)]
    warps = [[2, 0, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [8, 8, groups, 2, 4, 2])


@gluon.jit
def load_signs(words, block, end, BLOCK: gl.constexpr, ENDS: gl.constexpr):
    """Signs of key block ``block``: [8 g, groups, 4 t]; ENDS: 0 for groups from key ``end`` on."""
    GROUPS: gl.constexpr = BLOCK // 16
    LAYOUT: gl.constexpr = gl.SliceLayout(
        0, gl.SliceLayout(3, gl.SliceLayout(5, signs_layout(GROUPS)))
    )
    rows = gl.arange(0, 8, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))[:, None, None]
    groups = gl.arange(0, GROUPS, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :, None]
    pairs = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]
    lanes = rows * 4 + pairs
    pointers = words + block * (GROUPS * 32) + (groups * 32 + lanes)
    if ENDS:
        seen = (groups * 16 < end - block * BLOCK) & (lanes >= 0)
        return gl.load(pointers, mask=seen, other=0)
    else:
        return gl.load(pointers)


@gluon.jit
def spread_signs(signs, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    """What ``load_signs`` gave as [64 queries, BLOCK keys]: every element has its word."""
    GROUPS: gl.constexpr = BLOCK // 16
    signs = signs[None, :, :, :][:, :, :, None, :][:, :, :, :, :, None]
    whole = gl.full([8, 8, GROUPS, 2, 4, 2], 0, gl.int32, signs_layout(GROUPS))
    signs = gl.broadcast(signs, whole)[0].reshape([64, BLOCK])
    return gl.convert_layout(signs, LAYOUT, assert_trivial=True)


@gluon.constexpr_function
def own_signs_layout():
    """An accumulator [64 keys, 64 queries] seen as [4 warps, 2 a, 8 g, 8 c, 4 t, 2 e]."""
    registers = [[0, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0]]
    registers += [[0, 0, 0, 2**bit, 0, 0] for bit in range(3)]
    lanes = [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 2, 0]]
    lanes += [[0, 0, 2**bit, 0, 0, 0] for bit in range(3)]
    warps = [[1, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [4, 2, 8, 8, 4, 2])


@gluon.jit
def load_own_signs(words, block, sizes):
    """What ``store_signs`` left for query block ``block``: [4 warps, 8 g, 4 t], one a thread."""
    LAYOUT: gl.constexpr = gl.SliceLayout(
        1, gl.SliceLayout(3, gl.SliceLayout(5, own_signs_layout()))
    )
    warps = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))[:, None, None]
    rows = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :, None]
    pairs = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]
    at = words + block * count_block_words(sizes.num_rows)
    return gl.load(at + (warps * 32 + rows * 4 + pairs))


@gluon.jit
def spread_own_signs(signs, LAYOUT: gl.constexpr):
    """What ``load_own_signs`` gave, transposed back: every element has its thread's word."""
    signs = gl.inline_asm_elementwise(
        "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", "=r,r", [signs], gl.int32, False, 1
    )
    signs = signs[:, None, :, :][:, :, :, None, :][:, :, :, :, :, None]
    whole = gl.full([4, 2, 8, 8, 4, 2], 0, gl.int32, own_signs_layout())
    signs = gl.broadcast(signs, whole)[0].reshape([64, 64])
    return gl.convert_layout(signs, LAYOUT, assert_trivial=True)


@gluon.constexpr_function
def gating_asm(dtype):
    """Two numbers, twice their word, shift and selector: the numbers, or 0.

    The shift brings a bit to the top of its byte, the selector spreads that over 16 bits.
    """
    return (
        "{ .reg .b32 pair, alive; shl.b32 alive, $3, $5; prmt.b32 alive, alive, 0, $7;"
        f" cvt.rn.{dtype}x2.f32 pair, $2, $1; and.b32 $0, pair, alive; }}"
    )


@gluon.jit
def gate_by_signs(dweights, signs, SIDE: gl.constexpr, DTYPE: gl.constexpr):
    """dweights as DTYPE where the score is positive, else 0; every element has its word."""
    LAYOUT: gl.constexpr = dweights.type.layout
    rows = (gl.arange(0, dweights.shape[0], gl.SliceLayout(1, LAYOUT)) >> 3)[:, None]
    columns = (gl.arange(0, dweights.shape[1], gl.SliceLayout(0, LAYOUT)) >> 3)[None, :]
    a, c = (rows, columns) if SIDE == "keys" else (columns, rows)
    operands = [dweights, signs, 7 - c, gl.where(a % 2 == 0, 0xAA88, 0xBB99)]
    if DTYPE == gl.bfloat16:
        return gl.inline_asm_elementwise(
            gating_asm("bf16"), "=r" + ",r" * 8, operands, gl.bfloat16, True, 2
        )
    else:
        return gl.inline_asm_elementwise(
            gating_asm("f16"), "=r" + ",r" * 8, operands, gl.float16, True, 2
        )
