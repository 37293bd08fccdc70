"""Beside others' software: FlashAttention-4, and timm's loader of images."""

from docs_numbers.speed import microseconds, ordinary
from docs_numbers.stored import Stored
from docs_numbers.tables import numbers, table

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
