"""What one GPU shows of sequences on several: ``benchmarks/sequence.py``."""

from collections.abc import Mapping
from typing import Any

from docs_numbers.stored import Stored
from docs_numbers.tables import numbers, table

FILE = "benchmarks/results/sequence/h200.json"
LEAST_COPY = 0.1
"""Of the time of computing: shorter copies vanish in what computing differs by."""
FROM = {"cpu": "the host, pinned", "cuda": "the same GPU"}


@numbers("sequence-chunks")
def _chunks(stored: Stored) -> str:
    rows = stored.read_json(FILE)["chunks"]
    dims = sorted({row["dim"] for row in rows})
    ratios = {(row["mode"] + way, row["dim"]): value for row in rows for way, value in _ways(row)}
    head = ["time over one call", *(f"head dim {dim}" for dim in dims)]
    names = dict.fromkeys(name for name, _ in ratios)
    return table(head, [[name, *(f"{ratios[name, dim]:.3f}" for dim in dims)] for name in names])


def _ways(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """One by one, and in a row; files from before have no calls in a row."""
    in_a_row = [(", in a row", row["in_a_row"])] if "in_a_row" in row else []
    return [("", row["ratio"]), *in_a_row]


@numbers("sequence-overlap")
def _overlap(stored: Stored) -> str:
    head = ["tokens of a block", "comes from", "computed", "copied", "both at once", "hidden"]
    rows = [
        [f"{row['length']:,}", FROM[row["from"]], *_times(row), _hidden(row)]
        for row in stored.read_json(FILE)["overlap"]
    ]
    return table(head, rows)


def _hidden(row: Mapping[str, Any]) -> str:
    """Of the copy; nothing where the copy is so short that the share would be noise."""
    compute, copy = (row["times"][name]["median_s"] for name in ("compute", "copy"))
    return f"{min(row['hidden'], 1):.0%}" if copy > LEAST_COPY * compute else ""


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
