"""The suite ``corners``: what is promised, and what the stored benchmark reached."""

from docs_numbers.speed import CORNERS_FILE
from docs_numbers.stored import Stored
from docs_numbers.tables import numbers, table
from flashpoint.lab.bench.cases import Shape
from flashpoint.lab.bench.corners import ENTRIES
from flashpoint.lab.bench.plot_style import NAMES
from flashpoint.lab.bench.speedups import Speedup, arrange_lines, label

FIGURE = "figures/corners.png"
"""Seen from docs. Drawn by ``flashpoint bench --from ... --plot`` of what ``newest`` gives."""


@numbers("limits-corners")
def _limits(stored: Stored) -> str:
    """As the suite states them, must / aim."""
    del stored
    cells: dict[tuple[str, Shape], dict[str, str]] = {}
    for entry in ENTRIES:
        ((dtype, limits),) = entry.limits.items()
        (limit,) = limits.speed
        mode = "backward" if entry.mode == "backward" else "forward"
        text = f"{limit.must:.2f}" + (f" / {limit.aim:.2f}" if limit.aim is not None else "")
        name = label(entry.case(dtype, "cuda")), entry.shape
        cells.setdefault(name, {})[mode] = text
    rows = [
        [name, str(shape), found.get("forward", ""), found.get("backward", "")]
        for (name, shape), found in cells.items()
    ]
    return table(["must / aim", "B, H, L, D", "forward", "backward"], rows)


@numbers("speed-corners")
def _speed(stored: Stored) -> str:
    """Speed-ups, those that miss what is promised in bold, and the figure where it is drawn."""
    if not stored.has_bench(CORNERS_FILE):
        return "These cases have not been measured yet."
    rows = [
        [line.label, _cell(line.forward), _cell(line.backward)]
        for line in arrange_lines(stored.bench(CORNERS_FILE))
    ]
    found = table(["", "forward", "backward"], rows)
    has_figure = (stored.root / "docs" / FIGURE).is_file()
    words = "Times as fast as the best softmax attention, by case"
    return f"{found}\n\n![{words}]({FIGURE})" if has_figure else found


def _cell(found: Speedup | None) -> str:
    """The speed-up and over whom."""
    if found is None:
        return ""
    value = f"{found.value:.2f}" if found.is_kept else f"**{found.value:.2f}**"
    return f"{value} ({NAMES[found.rival]})"
