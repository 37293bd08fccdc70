"""fp32 on a CPU, alone and beside processes that use its cores, too."""

from collections.abc import Mapping
from typing import Any

from docs_numbers.stored import Stored
from docs_numbers.tables import numbers, table

FILE = "benchmarks/results/neighbours/cpu.json"


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


def _call_of(row: Mapping[str, Any]) -> str:
    sizes = ", ".join(str(row["shape"][name]) for name in ("batch", "heads", "length", "dim"))
    return f"{sizes}, {row['mode']}{', causal' if row['causal'] else ''}"


def _beside(count: int) -> str:
    """Whom a call shares its cores with."""
    return "alone" if count == 0 else f"beside {count} process{'es' if count > 1 else ''}"
