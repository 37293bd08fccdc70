"""Named sets of cases, each with the limits that Flashpoint promises next to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flashpoint.lab.bench import corners
from flashpoint.lab.bench.cases import Case, Mode, QkNorm, Shape
from flashpoint.lab.bench.entry import BEST_SDPA, RIVALS, Entry, Limits, SpeedLimit, Suite

LONG = 8192
"""Quick runs on the CPU leave out lengths beyond this one."""


def stated_limits(case: Case) -> Limits:
    """What the suites of the case's device promise for it, if anything."""
    for suite in SUITES.values():
        if suite.device == case.device:
            for entry in suite.entries:
                if entry.describes(case) and case.dtype in entry.limits:
                    return entry.limits[case.dtype]
    return Limits()


def _cpu_entries() -> Iterator[Entry]:
    """Relu without causality, forward and training alike, and the overhead of a call."""
    for shape in (Shape(8, 6, 197, 64), *(Shape(1, 8, n, 64) for n in (1024, 4096, 16384))):
        slack = 64 * 10**6 if shape.length > LONG else None
        limits = {
            dtype: Limits(speed=(_beat_sdpa("cpu", 1 / ratio),), memory_slack_bytes=slack)
            for dtype, ratio in (("bf16", 0.65), ("fp32", 1.0))
        }
        for mode in ("forward", "training"):
            yield Entry(shape=shape, mode=mode, limits=limits)
    tiny = Shape(1, 1, 16, 16)
    limits = {"fp32": Limits(speed=(_beat_sdpa("cpu", 1 / 3.0),))}
    yield Entry(shape=tiny, mode="forward", limits=limits, overhead_dtype="fp32")
    yield Entry(shape=tiny, mode="recording", overhead_dtype="fp32")


def _beat_sdpa(device: str, must: float, aim: float | None = None) -> SpeedLimit:
    """A speed-up over the best softmax attention of a device."""
    return SpeedLimit(rivals=RIVALS[device], must=must, aim=aim)


BEAT_FLEX = SpeedLimit(rivals=("flex_log",), must=4, aim=5)
"""For relu at any shape where FlexAttention's log trick is measured."""

KEPT_SHARE = 0.78
"""q, k and v against q, k, v, o and the statistics of softmax."""


def _gpu_entry(
    shape: Shape,
    mode: Mode,
    must: float | None = None,
    aim: float | None = None,
    *,
    activation: str = "relu",
    causal: bool = False,
    providers: tuple[str, ...] = (),
) -> Entry:
    """A case of full rows in bf16; with ``must`` given, all its promises."""
    limits: dict[str, Limits] = {}
    if must is not None:
        speed = (_beat_sdpa("cuda", must, aim),)
        limits["bf16"] = Limits(
            speed=(*speed, BEAT_FLEX) if activation == "relu" else speed,
            kept_share=KEPT_SHARE if mode == "backward" and "/" not in activation else None,
        )
    return Entry(
        shape=shape,
        mode=mode,
        activation=activation,
        causal=causal,
        limits=limits,
        providers=providers,
    )


def _long_entries() -> Iterator[Entry]:
    """Lengths 1k, 4k and 16k with the same number of tokens, head dims 64 and 128."""
    k1, k4, k16 = Shape(16, 16, 1024, 64), Shape(4, 16, 4096, 64), Shape(1, 16, 16384, 64)
    flex = ("flex_log",)
    yield _gpu_entry(k1, "forward", 1.15, 1.4)
    yield _gpu_entry(k1, "backward", 1.05, 1.2)
    yield _gpu_entry(k4, "forward", 1.40, 1.6, providers=flex)
    yield _gpu_entry(k4, "backward", 1.10, 1.35, providers=flex)
    yield _gpu_entry(k4, "forward", 1.30, 1.5, causal=True)
    yield _gpu_entry(k4, "backward", 1.0, 1.3, causal=True)
    for activation in ("relu2", "sigmoid", "silu"):
        yield _gpu_entry(k4, "forward", 1.2, 1.4, activation=activation)
    yield _gpu_entry(k16, "forward", 1.40, 1.6)
    yield _gpu_entry(k16, "backward", 1.10, 1.35)

    k1, k4, k16 = Shape(16, 8, 1024, 128), Shape(4, 8, 4096, 128), Shape(1, 8, 16384, 128)
    yield _gpu_entry(k1, "forward", 1.0, 1.15)
    yield _gpu_entry(k1, "backward")
    yield _gpu_entry(k4, "forward", 1.10, 1.25, providers=flex)
    yield _gpu_entry(k4, "backward", 1.0, 1.15)
    yield _gpu_entry(k4, "forward", 1.08, 1.2, causal=True)
    yield _gpu_entry(k4, "backward", 1.0, 1.15, causal=True)
    yield _gpu_entry(k16, "forward", 1.15, 1.25)
    yield _gpu_entry(k16, "backward", 1.0, 1.2)


def _sums_entries() -> Iterator[Entry]:
    """relu4 divided by its sums: long sequences, causal or not, and images with norms."""
    word = "relu4/sum"
    k4, k16 = Shape(4, 16, 4096, 64), Shape(1, 16, 16384, 64)
    for shape in (k4, k16):
        yield _gpu_entry(shape, "forward", 1.35, 1.6, activation=word)
        yield _gpu_entry(shape, "backward", 1.05, 1.2, activation=word)
    for mode in ("forward", "backward"):
        yield _gpu_entry(k4, mode, activation=word, causal=True)
    k4, k16 = Shape(4, 8, 4096, 128), Shape(1, 8, 16384, 128)
    for shape in (k4, k16):
        yield _gpu_entry(shape, "forward", 1.1, activation=word)
        yield _gpu_entry(shape, "backward", 1.0, activation=word)
    for mode in ("forward", "backward"):
        yield _gpu_entry(k4, mode, activation=word, causal=True)
    musts: Mapping[Mode, float] = {"forward": 1.5, "backward": 1.3}
    for shape in VIT_LIMITS:
        for mode, must in musts.items():
            speed = (SpeedLimit(rivals=BEST_SDPA["cuda"], must=must),)
            yield Entry(
                shape=shape,
                mode=mode,
                activation=word,
                qk_norm="layer",
                limits={"bf16": Limits(speed=speed)},
                providers=("sdpa_efficient",),
            )


def _decode_entries() -> Iterator[Entry]:
    """One query over a long cache, 4 query heads to a key head."""
    limits = {"bf16": Limits(speed=(_beat_sdpa("cuda", 1.1, 1.4),))}
    for batch in (1, 16):
        for length in (32768, 131072):
            shape = Shape(batch, 32, length, 128, kv_heads=8, queries=1)
            yield Entry(shape=shape, mode="forward", limits=limits)


VIT_LIMITS: Mapping[Shape, tuple[tuple[float, float], ...]] = {
    Shape(1024, 6, 49, 64): ((1.9, 2.5), (1.5, 2.0), (3.0, 4.0), (1.3, 2.0)),
    Shape(512, 6, 196, 64): ((1.2, 1.7), (1.1, 1.5), (1.6, 2.4), (1.3, 2.0)),
    Shape(256, 12, 197, 64): ((1.2, 1.7), (1.1, 1.5), (1.6, 2.4), (1.3, 2.0)),
    Shape(128, 12, 577, 64): ((1.4, 1.7), (1.2, 1.5), (1.5, 2.0), (1.3, 2.0)),
    Shape(128, 6, 784, 64): ((1.3, 1.6), (1.2, 1.5), (1.5, 2.0), (1.3, 2.0)),
}
"""Windows, small and base models at usual resolutions: the speed-up that is promised and the one
that is hoped for, in the order of ``VIT_WORKS``."""

VIT_WORKS: tuple[tuple[QkNorm, Mode], ...] = (
    *(("none", "forward"), ("none", "backward")),
    *(("layer", "forward"), ("layer", "backward")),
)


def _vit_entries() -> Iterator[Entry]:
    for shape, limits in VIT_LIMITS.items():
        for (norm, mode), (must, aim) in zip(VIT_WORKS, limits, strict=True):
            speed = (SpeedLimit(rivals=BEST_SDPA["cuda"], must=must, aim=aim),)
            yield Entry(
                shape=shape,
                mode=mode,
                qk_norm=norm,
                limits={"bf16": Limits(speed=speed)},
                providers=("sdpa_efficient",),
            )
    for tokens in (49, 196):
        for mode in ("forward", "recording", "backward"):
            yield Entry(
                shape=Shape(1, 6, tokens, 64),
                mode=mode,
                providers=("sdpa",),
                overhead_dtype="bf16",
            )


_VIT, _LONG, _DECODE = tuple(_vit_entries()), tuple(_long_entries()), tuple(_decode_entries())
_SUMS = tuple(_sums_entries())

SUITES: Mapping[str, Suite] = {
    "cpu": Suite(device="cpu", entries=tuple(_cpu_entries())),
    "vit": Suite(device="cuda", entries=_VIT),
    "long": Suite(device="cuda", entries=_LONG),
    "decode": Suite(device="cuda", entries=_DECODE),
    "sums": Suite(device="cuda", entries=_SUMS),
    "corners": Suite(device="cuda", entries=corners.ENTRIES),
    "all": Suite(device="cuda", entries=_VIT + _LONG + _DECODE + _SUMS),
}
"""By name; "all" is what a GPU is measured by unless a suite is named."""
DEFAULT_SUITE: Mapping[str, str] = {"cpu": "cpu", "cuda": "all"}


OUR_TWIN, RIVAL_TWIN, TIMM = "relu", "softmax", "timm"
TWINS = (OUR_TWIN, RIVAL_TWIN)
WHOLE_MODELS = (*TWINS, TIMM)
"""What is measured of a model: two twins of ours, and timm's own model of the same sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCase:
    """A model and a batch; all have norms of q and k.

    Attributes:
        model: as ``flashpoint models`` lists it.
        batch: images of a step.
        image_size: their height and width.
    """

    model: str
    batch: int
    image_size: int = 224
    device: str = "cuda"

    def __str__(self) -> str:
        return f"{self.model}, {self.batch} images"


def _model_limits(must: float, aim: float, over_timm: float) -> tuple[SpeedLimit, SpeedLimit]:
    """Over the twin, which comes first, and over timm's."""
    twin = SpeedLimit(rivals=(RIVAL_TWIN,), must=must, aim=aim)
    return twin, SpeedLimit(rivals=(TIMM,), must=over_timm)


MODEL_LIMITS: Mapping[ModelCase, tuple[SpeedLimit, ...]] = {
    ModelCase(model="vit_s16", batch=1024): _model_limits(1.12, 1.22, 1.35),
    ModelCase(model="vit_s8", batch=256): _model_limits(1.2, 1.4, 1.45),
}
"""The suite vit-model: whole models, and what is promised for relu beside the others."""
