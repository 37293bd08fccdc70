"""What one GPU shows of sequences on several: ``benchmarks/sequence.py``."""

from collections.abc import Mapping
from typing import Any

from docs_numbers.stored import Stored
from docs_numbers.tables import numbers, table

FILE = "benchmarks/results/sequence/h200.json"
CHUNKS_FILE = "benchmarks/results/sequence/h200_chunks.json"
"""One part of the same script, with later kernels."""
FROM = {"cpu": "the host, pinned", "cuda": "the same GPU"}


@numbers("sequence-chunks")
def _chunks(stored: Stored) -> str:
    rows = stored.read_json(CHUNKS_FILE)["chunks"]
    dims = sorted({row["dim"] for row in rows})
    ratios = {(row["mode"], row["dim"]): f"{row['ratio']:.2f}" for row in rows}
    head = ["time over one call", *(f"head dim {dim}" for dim in dims)]
    modes = dict.fromkeys(row["mode"] for row in rows)
    return table(head, [[mode, *(ratios[mode, dim] for dim in dims)] for mode in modes])


@numbers("sequence-overlap")
def _overlap(stored: Stored) -> str:
    head = ["tokens of a block", "comes from", "computed", "copied", "both at once", "hidden"]
    rows = [
        [f"{row['length']:,}", FROM[row["from"]], *_times(row), f"{row['hidden']:.0%}"]
        for row in stored.read_json(FILE)["overlap"]
    ]
    return table(head, rows)


def _times(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{1e3 * row['times'][name]['median_s']:.2f} ms" for name in ("compute", "copy", "both")
    ]


@numbers("sequence-long")
def _long(stored: Stored) -> str:
    (row,) = stored.read_json(FILE)["long"]
    ways = [
        [way, f"{row[f'{way}_s']:.1f} s", f"{row[f'{way}_flops_per_s'] / 1e12:.0f} TFLOP/s"]
        for way in ("forward", "backward")
    ]
    memory = [f"{row[name] / 1e9:.1f} GB" for name in ("peak_bytes", "input_bytes")]
    name = f"{row['length']:,} tokens"
    return table([name, "", ""], [*ways, ["memory at its peak, and of q, k, v and do", *memory]])


@numbers("sequence-strategies")
def _strategies(stored: Stored) -> str:
    found = stored.read_json(FILE)
    rows = found["strategies"]
    most = max(
        error / row["limits"][name] for row in rows for name, error in row["errors"].items()
    )
    here = found["environment"]
    cells = {
        "calls by NCCL with one rank, each strategy": len(rows),
        "largest error, over what is allowed": f"{most:.2f}",
        "measured": f"{here['device']}, torch {here['torch']}, `{here['commit']}`",
    }
    return table(["", ""], cells.items())
