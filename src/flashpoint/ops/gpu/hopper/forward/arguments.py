"""What the warps of the forward kernel share, by name; ``kernel.py`` fills it in."""

from triton.language.core import base_value

from flashpoint.ops.gpu.hopper.tiles import aggregate


@aggregate
class Sizes:
    """How much there is of everything; H of queries, group of them share a head of keys.

    section: heads of a section, None where all come at once.
    """

    B: base_value
    H: base_value
    group: base_value
    section: base_value
    row_tiles: base_value
    Lq: base_value
    Lk: base_value


@aggregate
class Totals:
    """Where results go from registers: a pointer to fp32 and its strides; or None, by ``o``."""

    pointer: base_value
    batch: base_value
    head: base_value
    row: base_value


@aggregate
class Norms:
    """Gains, pointers or None, and eps of the norms of q and k."""

    q_gain: base_value
    k_gain: base_value
    q_eps: base_value
    k_eps: base_value


@aggregate
class Numbers:
    """What scores and outputs are multiplied by, and added."""

    gain: base_value
    alpha: base_value
    scale: base_value
    bias_number: base_value
    shrink: base_value
    moved: base_value


@aggregate
class Options:
    """What is compiled in.

    DEGREE: of relu or a power of it, 0 of other activations. PIECES: those of the head dim,
    Q_IN_REGISTERS of them. O_BY_Q: whether outputs leave by the slots of Q. ADDS: whether they
    are added to what is there.
    """

    WEIGH: base_value
    HAS_SCALE: base_value
    HAS_BIAS_NUMBER: base_value
    SHRINKS: base_value
    FORM: base_value
    CAUSAL: base_value
    POWER: base_value
    Q_NORM: base_value
    K_NORM: base_value
    ROOTS_LAST: base_value
    DEGREE: base_value
    D: base_value
    DV: base_value
    PIECES: base_value
    PIECE: base_value
    SCHEDULE: base_value
    Q_IN_REGISTERS: base_value
    O_BY_Q: base_value
    HAS_SUMS: base_value
    BY_SUM: base_value
    ADDS: base_value


@aggregate
class Program:
    """All that a program's warps share: descriptors, shared memory, numbers.

    ``sums`` points to rows' sums of weights, or is None; ``o_buffers`` are those that outputs
    leave by, ``k_ready`` the barriers of normalized keys, ``turns`` those of schedule "turns".
    """

    q: base_value
    k: base_value
    v: base_value
    o: base_value
    sums: base_value
    totals: base_value
    queries: base_value
    keys: base_value
    values: base_value
    o_buffers: base_value
    k_ready: base_value
    turns: base_value
    sizes: base_value
    norms: base_value
    numbers: base_value
    options: base_value
