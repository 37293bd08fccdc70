"""Tables of speed, of the stored benchmarks, and of random calls that were checked."""

from collections.abc import Iterator
from typing import NamedTuple

from docs_numbers.stored import PERCENT, Stored
from docs_numbers.tables import between, numbers, table
from flashpoint.errors import InputError
from flashpoint.lab.bench.result import OURS, Result, Row
from flashpoint.lab.bench.suites import TIMM

GPU_FILES = {
    "long": "h200_long",
    "vit": "h200_vit",
    "vit-model": "h200_vit_model",
    "decode": "h200_decode",
    "sums": "h200_sums",
}
"""By suite."""
CORNERS_FILE = "h200_corners"
"""Of that suite; its tables are in ``corners``."""
NEWEST = "triton_3_9"
"""Folder of the same suites with the newest Triton."""
CPU_FILE = "cpu_amd_epyc_zen5_2_threads"
VIT_LENGTHS = (49, 196, 577, 784)
RATED_BYTES_PER_S = 4.8e12
"""Of an H200's memory, by its data sheet."""
TERA = 1e12
MODELS = {"vit_s16": "ViT-S/16", "vit_s8": "ViT-S/8"}


def ordinary(result: Result, **wanted: object) -> list[Row]:
    """Rows that are no overhead of calling and have these fields, in the order of the file."""

    def fits(row: Row) -> bool:
        places = (row.case, row.case.shape)
        return all(
            any(getattr(place, field, None) == value for place in places)
            for field, value in wanted.items()
        )

    return [row for row in result.rows if not row.is_overhead and fits(row)]


def speedup(result: Result, **wanted: object) -> float:
    """Of the only row that has these fields."""
    found = [row.speedup(row.best_sdpa) for row in ordinary(result, **wanted)]
    if len(found) != 1 or found[0] is None:
        raise InputError(f"{len(found)} rows of the stored benchmark have {wanted}, not one.")
    return found[0]


def microseconds(row: Row, provider: str = OURS) -> float:
    """Median of a provider that was measured."""
    timing = row.of(provider).timing
    if timing is None:
        raise InputError(f"{provider} has no time at {row.case}.")
    return 1e6 * timing.median_s


@numbers("speed-long")
def _long(stored: Stored) -> str:
    places = ((1024, False), (4096, False), (16384, False), (4096, True))
    found = stored.bench(GPU_FILES["long"])

    def cell(mode: str, dim: int, length: int, causal: bool) -> str:
        wanted = {"mode": mode, "dim": dim, "length": length, "causal": causal}
        return f"{speedup(found, activation='relu', **wanted):.2f}"

    rows = [
        [f"{mode}, head dim {dim}", *(cell(mode, dim, *place) for place in places)]
        for mode in ("forward", "backward")
        for dim in (64, 128)
    ]
    return table(["", "L = 1k", "4k", "16k", "4k causal"], rows)


@numbers("speed-vit")
def _vit(stored: Stored) -> str:
    found = stored.bench(GPU_FILES["vit"])
    kinds = [("none", ""), ("layer", " with qk-LayerNorm")]
    rows = [
        [
            f"{mode}{words}",
            *(
                f"{speedup(found, mode=mode, length=length, qk_norm=norm):.2f}"
                for length in VIT_LENGTHS
            ),
        ]
        for norm, words in kinds
        for mode in ("forward", "backward")
    ]
    return table(["tokens", *VIT_LENGTHS], rows)


@numbers("speed-sums")
def _sums(stored: Stored) -> str:
    found = stored.bench(GPU_FILES["sums"])
    cases = [row.case for row in found.rows]
    kinds = dict.fromkeys((case.shape, case.causal, case.qk_norm) for case in cases)
    rows = []
    for shape, causal, norm in kinds:
        words = ", causal" if causal else ", qk-LayerNorm" if norm != "none" else ""
        wanted = {"shape": shape, "causal": causal, "qk_norm": norm}
        cells = []
        for mode in ("forward", "backward"):
            (row,) = ordinary(found, mode=mode, **wanted)
            cells.append(_beside_limit(row, speedup(found, mode=mode, **wanted)))
        rows.append([f"{shape}{words}", *cells])
    return table(["relu4/sum, B, H, L, D", "forward", "backward"], rows)


def _beside_limit(row: Row, reached: float) -> str:
    if not row.limits.speed:
        return f"{reached:.2f}"
    must = row.limits.speed[0].must
    words = _reached([reached], must) if reached < must else f"{reached:.2f}"
    return f"{words} of {must:.2f}"


@numbers("speed-newest")
def _newest(stored: Stored) -> str:
    """Of the same suites, how many limits each of two Tritons misses."""
    rows = []
    for suite in ("long", "vit", "decode", "sums"):
        pair = [stored.bench(name) for name in _both(suite)]
        missed = [
            [one[:3] for one in _limits(result) if one.reached < one.must] for result in pair
        ]
        counts = [
            f"{len(rows_missed)} (`{result.environment.commit}`)"
            for rows_missed, result in zip(missed, pair, strict=True)
        ]
        rows.append([f"`{suite}`", *counts])
    head = ["suite", "limits missed, Triton 3.6 (commit)", "Triton 3.9 (commit)"]
    return table(head, rows)


def _both(suite: str) -> tuple[str, str]:
    return GPU_FILES[suite], f"{NEWEST}/{GPU_FILES[suite]}"


@numbers("speed-models")
def _models(stored: Stored) -> str:
    rows = []
    for row in stored.bench(GPU_FILES["vit-model"]).models:
        ours, theirs = row.of("relu"), row.of("softmax")
        if not (row.speedup and ours.peak and theirs.peak and ours.timing and theirs.timing):
            raise InputError(f"{row.case.model} was not measured in full.")
        memory = (ours.peak.extra_bytes or 0) / (theirs.peak.extra_bytes or 1)
        ends = (
            theirs.timing.p20_s / ours.timing.p80_s,
            theirs.timing.p80_s / ours.timing.p20_s,
        )
        rows.append(
            [
                *(MODELS[row.case.model], f"{row.case.batch} images"),
                *(f"{row.speedup:.2f}", between(ends)),
                *(f"{row.images_per_s('relu'):,.0f}", f"{memory:.2f}"),
            ]
        )
    head = ["model", "batch", "speed-up", "spread (p20 to p80)", "images a second", "memory"]
    return table(head, rows)


@numbers("speed-missed")
def _missed(stored: Stored) -> str:
    """Every limit that the stored benchmarks miss; cases of one kind in one row."""
    groups: dict[tuple[str, float], list[Target]] = {}
    for target in _targets(stored):
        if target.reached < target.must:
            groups.setdefault((target.what, target.must), []).append(target)
    rows = [
        [
            *(what, ", ".join(dict.fromkeys(one.tokens for one in found))),
            *(f"{must:.2f}", _reached([one.reached for one in found], must)),
        ]
        for (what, must), found in groups.items()
    ]
    return table(["what", "tokens", "target", "reached"], rows)


def _reached(values: list[float], must: float) -> str:
    """With a digit more where rounding would hide the miss."""
    is_near = f"{max(values):.2f}" == f"{must:.2f}"
    return between(values, 3 if is_near else 2)


class Target(NamedTuple):
    """What, over how many tokens, the speed-up that is promised, and the one measured."""

    what: str
    tokens: str
    must: float
    reached: float


def _targets(stored: Stored) -> Iterator[Target]:
    for row in stored.bench(GPU_FILES["vit-model"]).models:
        name, batch = MODELS[row.case.model], row.case.batch
        for limit in row.limits:
            (rival,) = limit.rivals
            reached = row.speedup_over(rival)
            if reached is not None:
                beside = ", over timm's" if rival == TIMM else ""
                what = f"training step of {name}, {batch} images{beside}"
                yield Target(what, "", limit.must, reached)
    for suite in ("vit", "long", "decode", "sums"):
        yield from _limits(stored.bench(GPU_FILES[suite]))


def _limits(result: Result) -> Iterator[Target]:
    for row in result.rows:
        for limit in row.limits.speed:
            reached = row.speedup(limit.rivals)
            if reached is not None:
                tokens = f"{row.case.shape.length:,}"
                yield Target(_words(row), tokens, limit.must, reached)


def _words(row: Row) -> str:
    case, shape = row.case, row.case.shape
    if case.is_memory_bound:
        return f"decoding, one query, head dim {shape.dim}"
    name = "" if case.activation == "relu" else f"{case.activation}, "
    norm = " with qk-LayerNorm" if case.qk_norm != "none" else ""
    mask = ", causal" if case.causal else ""
    return f"{name}{case.mode}{norm}, head dim {shape.dim}{mask}"


@numbers("speed-host")
def _host(stored: Stored) -> str:
    rows = []
    overheads = [row for row in stored.bench(GPU_FILES["vit"]).rows if row.is_overhead]
    names = {"forward": "forward", "recording": "forward, graph recorded", "backward": "backward"}
    for mode, words in names.items():
        found = [row for row in overheads if row.case.mode == mode]
        ours, theirs = (
            between([microseconds(row, name) for row in found], 0) for name in (OURS, "sdpa")
        )
        rows.append([words, f"{ours} us", f"{theirs} us"])
    return table(["host time of a call", "Flashpoint", "SDPA"], rows)


@numbers("speed-memory")
def _memory(stored: Stored) -> str:
    """What attention keeps for backward, beside FlashAttention."""
    backward = [row for row in stored.bench(GPU_FILES["long"]).rows if row.of(OURS).kept_bytes]
    shares = [
        (row.of(OURS).kept_bytes or 0) / (row.of("sdpa_flash").kept_bytes or 1) for row in backward
    ]
    decoded = stored.bench(GPU_FILES["decode"]).rows
    ours, cudnn = (
        between(
            [
                PERCENT * (row.bytes_per_s(provider) or 0.0) / RATED_BYTES_PER_S
                for row in decoded
                if row.case.shape.batch > 1
            ],
            0,
        )
        for provider in (OURS, "sdpa_cudnn")
    )
    rows = [
        ["bytes kept for backward, over FlashAttention's", between(shares)],
        ["bandwidth while decoding at batch 16, of the rated", f"{ours}% (cuDNN: {cudnn}%)"],
    ]
    return table(["memory", "H200"], rows)


@numbers("speed-gpu-files")
def _gpu_files(stored: Stored) -> str:
    rows = []
    for suite, name in (*GPU_FILES.items(), ("corners", CORNERS_FILE)):
        if not stored.has_bench(name):
            continue
        at = stored.bench(name).environment
        cudnn = int(at.cudnn or 0)
        versions = [at.torch.partition("+")[0], ".".join((at.triton or "").split(".")[:2])]
        versions.append(f"{cudnn // 10000}.{cudnn // 100 % 100}")
        place = f"[{name}.json](results/{name}.json)"
        rows.append([f"`{suite}`", place, f"`{_short(at.commit)}`", *versions])
    return table(["suite", "stored file", "commit", "torch", "Triton", "cuDNN"], rows)


def _short(commit: str | None) -> str:
    return (commit or "?")[:7]


@numbers("speed-cpu")
def _cpu(stored: Stored) -> str:
    found = stored.bench(CPU_FILE)
    shapes = list(dict.fromkeys(row.case.shape for row in found.rows if not row.is_overhead))
    kinds = [(mode, dtype) for mode in ("forward", "training") for dtype in ("bf16", "fp32")]
    rows = [
        [
            str(shape),
            *(
                f"{1 / speedup(found, shape=shape, mode=mode, dtype=dtype):.2f}"
                for mode, dtype in kinds
            ),
        ]
        for shape in shapes
    ]
    return table(["B, H, L, D", *(f"{mode} {dtype}" for mode, dtype in kinds)], rows)


@numbers("speed-cpu-more")
def _cpu_more(stored: Stored) -> str:
    found = stored.bench(CPU_FILE)
    longest = max(row.case.shape.length for row in found.rows)
    extra = [
        (row.of(OURS).extra_bytes or 0) - (row.of("sdpa").extra_bytes or 0)
        for row in ordinary(found, length=longest)
    ]
    call, recorded = (
        next(row for row in found.rows if row.is_overhead and row.case.mode == mode)
        for mode in ("forward", "recording")
    )
    at = found.environment
    rows = [
        [f"peak extra memory at L = {longest}", f"at most SDPA's + {max(extra) / 1e6:.0f} MB"],
        *(
            [f"a call on {row.case.shape.length} tokens{words}", _beside(row)]
            for row, words in ((call, ""), (recorded, ", graph recorded"))
        ),
        [
            "measured",
            f"{at.device}, {at.threads} threads, torch {at.torch}, `{_short(at.commit)}`",
        ],
    ]
    return table(["", "CPU"], rows)


def _beside(row: Row) -> str:
    ours, theirs = microseconds(row), microseconds(row, "sdpa")
    return f"{ours:.0f} us, {ours / theirs:.1f} times SDPA's"


@numbers("checks")
def _checks(stored: Stored) -> str:
    rows = []
    for path in sorted((stored.root / "benchmarks" / "checks").glob("*.json")):
        found = stored.read_json(f"benchmarks/checks/{path.name}")
        at = found["environment"]
        torch, triton = (".".join(at[name].split(".")[:2]) for name in ("torch", "triton"))
        rows.append(
            [
                f"[{path.name}](../benchmarks/checks/{path.name})",
                *(at["device"], torch, triton, f"`{at['commit']}`"),
                *(found["judged"], len(found["misses"]), f"{found['worst']['ratio']:.2f}"),
            ]
        )
    if not rows:
        raise InputError("benchmarks/checks holds no JSON file.")
    head = ["file", "device", "torch", "Triton", "commit", "cases", "outside the budget"]
    return table([*head, "worst, as a share of it"], rows)


@numbers("speed-rates")
def _rates(stored: Stored) -> str:
    """Of one large product, and of attention forward without a mask."""
    found = stored.bench(GPU_FILES["long"])
    rows = [["one matrix product", f"{found.matrix_flops_per_s['bf16'] / TERA:.0f}"]]
    wanted = {"activation": "relu", "mode": "forward", "length": 16384, "causal": False}
    for dim in (64, 128):
        (row,) = ordinary(found, dim=dim, **wanted)
        for provider, name in ((OURS, "Flashpoint"), ("sdpa_cudnn", "cuDNN")):
            rate = (row.flops_per_s(provider) or 0.0) / TERA
            rows.append([f"{name}, forward, 16k tokens, head dim {dim}", f"{rate:.0f}"])
    return table(["bf16 on an H200", "TFLOP/s"], rows)
