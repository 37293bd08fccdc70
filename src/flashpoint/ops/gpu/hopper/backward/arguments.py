"""What the warps of the backward kernel share, by name; ``kernel.py`` fills it in."""

from triton.language.core import base_value

from flashpoint.ops.gpu.hopper.tiles import aggregate


@aggregate
class Sizes:
    """How much there is of everything; heads are the rows', those of a launch.

    section: those of a section, None where all come at once.
    """

    first_head: base_value
    num_heads: base_value
    section: base_value
    H: base_value
    group: base_value
    row_tiles: base_value
    num_rows: base_value
    num_columns: base_value


@aggregate
class Numbers:
    """What scores, weights and gradients are multiplied by, and added."""

    scale: base_value
    bias_number: base_value
    alpha: base_value
    lift_w: base_value
    lift_ds: base_value
    tail_w: base_value
    tail_ds: base_value


@aggregate
class Options:
    """What is compiled in. LAUNCH: the sides of this launch, "keys", "queries" or "both".

    DEGREE: of a power of relu, 0 of other activations. PIECES: those of the head dim. SLOTS:
    tiles whose rows are in shared memory. IN_REGISTERS: pieces of a that products take from there.
    """

    WEIGH: base_value
    GRADIENT: base_value
    FINISHES: base_value
    IS_RELU: base_value
    SLOPED: base_value
    LIFTS: base_value
    POWER: base_value
    CAUSAL: base_value
    LAUNCH: base_value
    SIGNED: base_value
    DEGREE: base_value
    LAGS: base_value
    D: base_value
    PIECES: base_value
    SLOTS: base_value
    IN_REGISTERS: base_value
    PIECE: base_value
    LAST_PIECE: base_value


@aggregate
class Norm:
    """That of a side's rows: x before it, where x is loaded to, its gain, and what is stored."""

    KIND: base_value
    x: base_value
    buffers: base_value
    gain: base_value
    dgain: base_value
    shares: base_value
    statistics: base_value


@aggregate
class Side:
    """Descriptors of one side of the score matrix, "keys" or "queries", and its rows' norm.

    FROM: what a and c make: "scores", dW that is gated by "signs", or scores beside a dW of b and
    d, "both".
    """

    SIDE: base_value
    FROM: base_value
    a: base_value
    b: base_value
    c: base_value
    d: base_value
    da: base_value
    db: base_value
    norm: base_value


@aggregate
class Rows:
    """Slots of a and b, which are full and empty together."""

    a_buffers: base_value
    b_buffers: base_value
    full: base_value
    empty: base_value


@aggregate
class Columns:
    """The ring of c and d, which are full by themselves and empty together."""

    c_buffers: base_value
    d_buffers: base_value
    c_full: base_value
    d_full: base_value
    empty: base_value


@aggregate
class Program:
    """All of it; ``words`` points to the signs, ``offsets`` to those of dW, or they are None."""

    keys: base_value
    queries: base_value
    rows: base_value
    columns: base_value
    words: base_value
    offsets: base_value
    sizes: base_value
    numbers: base_value
    options: base_value
