"""Tables of what is promised and aimed at, as the stored benchmarks state it beside each case."""

from docs_numbers.speed import CPU_FILE, GPU_FILES, MODELS, ordinary
from docs_numbers.stored import Stored
from docs_numbers.tables import numbers, table
from flashpoint.lab.bench.entry import SpeedLimit
from flashpoint.lab.bench.result import Row

FLEX, FLASH = "flex_log", "sdpa_flash"


def _text(limit: SpeedLimit) -> str:
    return f"{limit.must:.2f}" + (f" / {limit.aim:.2f}" if limit.aim is not None else "")


def _over_sdpa(rows: list[Row]) -> str:
    """The limit that all these rows share, or nothing where none has one."""
    found = {_text(one) for row in rows for one in row.limits.speed if FLEX not in one.rivals}
    return ", ".join(sorted(found))


@numbers("limits-cpu")
def _cpu(stored: Stored) -> str:
    result = stored.bench(CPU_FILE)
    rows: list[list[str]] = []
    for shape in dict.fromkeys(row.case.shape for row in result.rows):
        found = [row for row in result.rows if row.case.shape == shape]
        slack = {row.limits.memory_slack_bytes for row in found} - {None}
        words = " (call overhead, forward)" if found[0].is_overhead else ""
        rows.append(
            [
                f"{shape}{words}",
                *(
                    _over_sdpa([row for row in found if row.case.dtype == dtype])
                    for dtype in ("bf16", "fp32")
                ),
                *(f"SDPA's + {one / 1e6:.0f} MB" for one in slack if one),
                *([] if slack else [""]),
            ]
        )
    return table(["B, H, L, D", "bf16", "fp32", "peak extra memory"], rows)


@numbers("limits-long")
def _long(stored: Stored) -> str:
    result = stored.bench(GPU_FILES["long"])
    lengths = (1024, 4096, 16384)
    cases = [row.case for row in result.rows]
    kinds = dict.fromkeys(
        (case.mode, case.shape.dim, case.causal, case.activation) for case in cases
    )
    rows: list[list[str]] = []
    for mode, dim, causal, activation in kinds:
        wanted = {"mode": mode, "dim": dim, "causal": causal, "activation": activation}
        name = f"{'causal ' if causal else ''}{mode}, {activation}, D = {dim}"
        cells = [_over_sdpa(ordinary(result, length=length, **wanted)) for length in lengths]
        rows.append([name, *cells])
    return table(["must / aim", "L = 1k", "4k", "16k"], rows)


@numbers("limits-vit")
def _vit(stored: Stored) -> str:
    result = stored.bench(GPU_FILES["vit"])
    works = [(norm, mode) for norm in ("none", "layer") for mode in ("forward", "backward")]
    rows: list[list[str]] = []
    for shape in dict.fromkeys(row.case.shape for row in ordinary(result)):
        found = [
            _over_sdpa(ordinary(result, shape=shape, mode=mode, qk_norm=norm))
            for norm, mode in works
        ]
        rows.append([str(shape), *found])
    names = [mode if norm == "none" else f"{mode}, qk-LayerNorm" for norm, mode in works]
    return table(["B, H, L, D: must / aim", *names], rows)


@numbers("limits-more")
def _more(stored: Stored) -> str:
    long = stored.bench(GPU_FILES["long"]).rows
    flex = {_text(one) for row in long for one in row.limits.speed if FLEX in one.rivals}
    kept = {row.limits.kept_share for row in long} - {None}
    steps = [
        [
            f"a training step of {MODELS[row.case.model]}, {row.case.batch} images, "
            f"over {' and '.join(limit.rivals)}",
            _text(limit),
        ]
        for row in stored.bench(GPU_FILES["vit-model"]).models
        for limit in row.limits
    ]
    rows = [
        ["decoding, one query (`decode`)", _over_sdpa([*stored.bench(GPU_FILES["decode"]).rows])],
        ["relu in `long`, over `flex_log`", ", ".join(sorted(flex))],
        *([f"bytes kept for backward in `long`, over `{FLASH}`", f"at most {s}"] for s in kept),
        *steps,
    ]
    return table(["", "must / aim"], rows)
