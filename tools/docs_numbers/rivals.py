"""Beside others' software: FlashAttention-4, and timm's loader of images."""

from docs_numbers.speed import CORNERS_FILE, microseconds, ordinary
from docs_numbers.stored import Stored
from docs_numbers.tables import between, numbers, table
from flashpoint.lab.bench.speedups import Line, arrange_lines

FA4_FILE = "fa4/h200_long"
LOADER_FILE = "benchmarks/results/loader/h200.json"
FA4, CUDNN = "fa4", "sdpa_cudnn"


@numbers("speed-fa4")
def _flash_attention(stored: Stored) -> str:
    """Our time, and how many times as long the two others take."""
    rows = []
    for row in ordinary(stored.bench(FA4_FILE), activation="relu"):
        case = row.case
        words = f"{case.shape}{', causal' if case.causal else ''}, {case.mode}"
        ratios = [f"{microseconds(row, rival) / microseconds(row):.2f}" for rival in (FA4, CUDNN)]
        rows.append([words, f"{microseconds(row):,.0f}", *ratios])
    return table(["B, H, L, D", "us", "over FlashAttention-4", "over cuDNN"], rows)


@numbers("speed-loader")
def _loader(stored: Stored) -> str:
    """Images a second, and as a share of what a training step takes."""
    found = stored.read_json(LOADER_FILE)
    resident, fed = found["resident"], found["fed"]
    lines = {**found["feeds"], "training, images on the GPU": resident}
    lines[f"training from shards, waiting {found['data_wait']:.0%} of the time"] = fed
    rows = [[name, f"{rate:,.0f}", f"{rate / resident:.2f}"] for name, rate in lines.items()]
    return table(["", "images/s", "of the step's rate"], rows)


@numbers("headline-rivals")
def _headline(stored: Stored) -> str:
    """Two sentences: how far ahead of FlashAttention-4, and where softmax's kernels are ahead."""
    found = stored.bench(FA4_FILE)
    ahead = {
        mode: between(
            [
                microseconds(row, FA4) / microseconds(row)
                for row in ordinary(found, activation="relu", mode=mode)
            ]
        )
        for mode in ("forward", "backward")
    }
    lines = arrange_lines(stored.bench(CORNERS_FILE))
    kinds = dict.fromkeys(_kind(line.label) for line in lines if _is_behind(line))
    return (
        f"Beside FlashAttention-4 it is {ahead['forward']} times as fast forward, "
        f"{ahead['backward']} times backward. Other calls are slower than softmax's kernels, "
        f"forward or backward: {', '.join(kinds)} ([benchmarks](docs/benchmarks.md))."
    )


def _kind(label: str) -> str:
    """What is unusual about a case: the first of its words, if that is not all that hides keys."""
    first, *rest = label.split(", ")
    return rest[0] if first == "causal" else first


def _is_behind(line: Line) -> bool:
    return any(found is not None and found.value < 1.0 for found in (line.forward, line.backward))
