"""Who meets whom, and W and dS of a tile in registers.

A tile of scores is [ROWS, BLOCK]; which of the two are keys is said by SIDE, as in ``kernel.py``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashpoint.ops.gpu.activations import power_of, relu
from flashpoint.ops.gpu.hopper.backward.signs import gate_by_signs
from flashpoint.ops.gpu.hopper.sigmoids import FARTHEST
from flashpoint.ops.gpu.hopper.tiles import clip
from flashpoint.ops.gpu.normalizer import over_power_roughly


@gluon.jit
def find_blocks(
    first_row, last_row, sizes, BLOCK: gl.constexpr, SIDE: gl.constexpr, CAUSAL: gl.constexpr
):
    """Column blocks [first, last) that rows meet, at least 1, and how many of them are masked.

    Those are the first ones (keys) or the last ones (queries), at least 1 of them too.
    """
    num_columns = sizes.num_columns
    shift = num_columns - sizes.num_rows
    blocks = gl.cdiv(num_columns, BLOCK)
    first = 0
    last = blocks
    masked = 0
    if CAUSAL:
        if SIDE == "keys":
            first = gl.minimum(gl.maximum(first_row + shift, 0) // BLOCK, blocks - 1)
            whole = gl.minimum(gl.cdiv(gl.maximum(last_row + shift, 0), BLOCK), blocks)
            masked = gl.maximum(whole - first, 1)
        else:
            last = gl.cdiv(gl.maximum(gl.minimum(last_row + 1 + shift, num_columns), 1), BLOCK)
            whole = gl.maximum(first_row + 1 + shift, 0) // BLOCK
            masked = gl.maximum(last - whole, 1)
    return first, last, masked


@gluon.jit
def spread(first, values):
    """Columns of values, from ``first`` on, as two summands: two per thread, and constants.

    The addition is opaque: the compiler would keep one loop variable per column.
    """
    BLOCK: gl.constexpr = values.shape[1]
    layout: gl.constexpr = gl.SliceLayout(0, values.type.layout)
    columns = gl.arange(0, BLOCK, layout)
    start = gl.full([BLOCK], first, gl.int32, layout)
    near = gl.inline_asm_elementwise(
        "add.s32 $0, $1, $2;", "=r,r,r", [columns & 7, start], gl.int32, True, 1
    )
    return near, columns & (BLOCK - 8)


@gluon.jit
def hide(values, limits, first, SIDE: gl.constexpr, OTHER: gl.constexpr = 0.0):
    """OTHER where rows do not meet columns: before limits (keys), from limits on (queries)."""
    near, far = spread(first, values)
    ends = limits[:, None] - near[None, :]
    if SIDE == "keys":
        return gl.where(far[None, :] >= ends, values, OTHER)
    else:
        return gl.where(far[None, :] < ends, values, OTHER)


@gluon.jit
def lift(values, first, factor, program, SIDE: gl.constexpr, MASKED: gl.constexpr):
    """values times factor (where LIFTS) and, for keys, n ** -alpha of the n keys a column sees.

    Columns that are not MASKED see a key. Those behind the last one meet zeros: any number does.
    """
    POWER: gl.constexpr = program.options.POWER
    LIFTS: gl.constexpr = program.options.LIFTS
    if POWER != "none" and SIDE == "keys":
        first += 1 + program.sizes.num_rows - program.sizes.num_columns
        near, far = spread(first, values)
        seen = near.to(gl.float32) + far.to(gl.float32)
        if MASKED:
            seen = gl.maximum(seen, 1.0)
        normalizer = over_power_roughly(seen, program.numbers.alpha, POWER)
        values *= (normalizer * factor if LIFTS else normalizer)[None, :]
    elif LIFTS:
        values *= factor
    return values


@gluon.jit
def gate(dweights, weights):
    """dweights, in the type of weights, where weights is not 0 (NaN is not), else 0."""
    if weights.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 pair, alive, zero; mov.b32 zero, 0;"
            " set.neu.u32.bf16x2 alive, $3, zero; cvt.rn.bf16x2.f32 pair, $2, $1;"
            " and.b32 $0, pair, alive; }",
            "=r,r,r,r", [dweights, weights], gl.bfloat16, True, 2,
        )
    else:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 pair, alive, zero; mov.b32 zero, 0;"
            " set.neu.u32.f16x2 alive, $3, zero; cvt.rn.f16x2.f32 pair, $2, $1;"
            " and.b32 $0, pair, alive; }",
            "=r,r,r,r", [dweights, weights], gl.float16, True, 2,
        )


@gluon.jit
def fetch_offsets(
    offsets, first, program,
    BLOCK: gl.constexpr, SIDE: gl.constexpr, LAYOUT: gl.constexpr, WHOLE: gl.constexpr = False,
):
    """Those of a tile's queries, to add to dW; 0 where there are none.

    offsets: [ROWS] of queries; where these are columns, a pointer to those of their head.
    WHOLE: columns as a tile in registers of its own, so that dW may begin there.
    """
    if program.offsets is None:
        return 0.0
    elif SIDE == "keys":
        columns = gl.arange(0, BLOCK, gl.SliceLayout(0, LAYOUT))
        at = (offsets + first + columns)[None, :]
        if WHOLE:
            ROWS: gl.constexpr = program.rows.a_buffers.shape[3]
            at += gl.full([ROWS, BLOCK], 0, gl.int32, LAYOUT)
        return gl.load(at)
    else:
        rows: gl.constexpr = gl.SliceLayout(1, LAYOUT)
        return gl.convert_layout(offsets, rows, assert_trivial=True)[:, None]


@gluon.jit
def weigh_with_slopes(scores, limits, first, options, SIDE: gl.constexpr, MASKED: gl.constexpr):
    """W and h' of scores that hold a factor log2(e); queries need no W."""
    WEIGH: gl.constexpr = options.WEIGH
    GRADIENT: gl.constexpr = options.GRADIENT
    if MASKED:
        scores = hide(scores, limits, first, SIDE, FARTHEST)
    if SIDE == "keys":
        weights, slopes = WEIGH(scores)
    else:
        slopes = GRADIENT(scores)
        weights = slopes
    return weights, slopes


@gluon.jit
def weigh(
    scores, limits, first, program,
    SIDE: gl.constexpr, MASKED: gl.constexpr, DTYPE: gl.constexpr,
):
    """W as DTYPE, and what h' is computed from: the scores, or for relu any number of its sign.

    SLOPED: h' itself, of scores that hold a factor log2(e).
    """
    numbers, options = program.numbers, program.options
    WEIGH: gl.constexpr = options.WEIGH
    if options.FINISHES:
        scores = scores * numbers.scale + numbers.bias_number
    if options.DEGREE > 1:  # h and h' of what is hidden are 0
        scores = relu(scores)
        if MASKED:
            scores = hide(scores, limits, first, SIDE)
        signs = scores
        weights = power_of(scores, options.DEGREE)
        weights = lift(weights, first, numbers.lift_w, program, SIDE, MASKED).to(DTYPE)
    elif options.IS_RELU:
        if MASKED:
            scores = hide(scores, limits, first, SIDE)
        if SIDE == "queries":
            weights = clip(scores, DTYPE)
            signs = weights
        else:
            weights = lift(scores, first, numbers.lift_w, program, SIDE, MASKED)
            weights = clip(weights, DTYPE)
            # a small weight may be lost in fp16, not in bf16
            signs = clip(scores, DTYPE) if options.LIFTS else weights
    elif options.SLOPED:
        weights, signs = weigh_with_slopes(scores, limits, first, options, SIDE, MASKED)
        weights = lift(weights, first, numbers.lift_w, program, SIDE, MASKED).to(DTYPE)
    else:
        signs = scores
        weights = WEIGH(scores)
        if MASKED:
            weights = hide(weights, limits, first, SIDE)
        weights = lift(weights, first, numbers.lift_w, program, SIDE, MASKED).to(DTYPE)
    return weights, signs


@gluon.jit
def differentiate(
    dweights, signs, limits, first, program,
    SIDE: gl.constexpr, MASKED: gl.constexpr, DTYPE: gl.constexpr,
):
    """dS as DTYPE; signs: where SIGNED, those of ``signs.py``.

    Of a power of relu it lacks the factor DEGREE, which comes with the tail. There an infinite dW
    makes NaN where h' is 0, as in no other kernel.
    """
    numbers, options = program.numbers, program.options
    GRADIENT: gl.constexpr = options.GRADIENT
    SIGNED: gl.constexpr = options.SIGNED
    if options.DEGREE > 1:
        dscores = dweights * power_of(signs, options.DEGREE - 1)
        dscores = lift(dscores, first, numbers.lift_ds, program, SIDE, MASKED).to(DTYPE)
    elif options.IS_RELU:
        dscores = lift(dweights, first, numbers.lift_ds, program, SIDE, MASKED)
        dscores = gate_by_signs(dscores, signs, SIDE, DTYPE) if SIGNED else gate(dscores, signs)
    else:
        dscores = dweights * signs if options.SLOPED else GRADIENT(signs, dweights)
        if MASKED:
            dscores = hide(dscores, limits, first, SIDE)
        dscores = lift(dscores, first, numbers.lift_ds, program, SIDE, MASKED).to(DTYPE)
    return dscores
