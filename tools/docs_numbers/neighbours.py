"""fp32 on a CPU, alone and beside processes that use its cores, too."""

from collections.abc import Mapping
from typing import Any

from docs_numbers.stored import Stored
from docs_numbers.tables import between, numbers, table

FOLDER = "benchmarks/results/neighbours"
FILE = f"{FOLDER}/cpu.json"
OTHERS = {
    **{"sigmoid": "sigmoid", "gelu": "gelu", "mask": "padding masked", "bias": "bias"},
    "decoding": "one query",
}
"""By the end of a file's name."""


@numbers("speed-neighbours")
def _neighbours(stored: Stored) -> str:
    """Our time over SDPA's: a line a shape, and in brackets that of PyTorch's products."""
    rows = stored.read_json(FILE)["rows"]
    counts = sorted({row["neighbours"] for row in rows})
    lines: dict[str, dict[int, str]] = {}
    for row in rows:
        ratios = f"{row['ratio']:.2f} ({row['ratio_of_products']:.2f})"
        lines.setdefault(_call_of(row), {})[row["neighbours"]] = ratios
    head = [_beside(count) for count in counts]
    return table(["B, H, L, D", *head], [[call, *by.values()] for call, by in lines.items()])


@numbers("speed-neighbours-others")
def _others(stored: Stored) -> str:
    """The same of other calls, from the best shape to the worst; one small head left out."""
    lines = []
    for name, words in OTHERS.items():
        rows = stored.read_json(f"{FOLDER}/cpu_{name}.json")["rows"]
        rows = [row for row in rows if row["shape"]["heads"] > 1]
        for mode in ("forward", "backward"):
            of_mode = [row for row in rows if row["mode"] == mode and not row["causal"]]
            if not of_mode:
                continue
            cells = []
            for count in sorted({row["neighbours"] for row in of_mode}):
                found = [row for row in of_mode if row["neighbours"] == count]
                ours, products = (
                    between([row[ratio] for row in found])
                    for ratio in ("ratio", "ratio_of_products")
                )
                cells.append(f"{ours} ({products})")
            lines.append([f"{words}, {mode}", *cells])
    return table(["", *map(_beside, range(len(lines[0]) - 1))], lines)


def _call_of(row: Mapping[str, Any]) -> str:
    sizes = ", ".join(str(row["shape"][name]) for name in ("batch", "heads", "length", "dim"))
    return f"{sizes}, {row['mode']}{', causal' if row['causal'] else ''}"


def _beside(count: int) -> str:
    """Whom a call shares its cores with."""
    return "alone" if count == 0 else f"beside {count} process{'es' if count > 1 else ''}"
