"""The table of all activations, with words around it for someone who sees it first."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flashpoint.lab.bench.activations import FACTOR, ActivationRow, Deviation
from flashpoint.lab.bench.cases import Shape
from flashpoint.lab.bench.environment import Environment
from flashpoint.lab.cli.terminal import plain_table
from flashpoint.lab.runs.formats import brief

_NEXT = (
    ("flashpoint doctor", "what is installed and what works here"),
    ("flashpoint bench", "long sequences, training and memory"),
    ("flashpoint --help", "all commands"),
)
_EXAMPLE = """\
from flashpoint import attention
o = attention(q, k, v, activation="relu")  # q, k, v: [B, H, L, D]"""


def render(
    rows: Sequence[ActivationRow], shape: Shape, environment: Environment
) -> RenderableType:
    """Header, table, verdict and what to type next."""
    headings = ("output error", "gradient error", "flashpoint", "SDPA", "ratio")
    table = plain_table("h", "dtype", *headings, left=2, padding=(0, 1, 0, 0))
    table.add_column("")
    for _, group in groupby(rows, key=lambda row: row.dtype):
        for row in group:
            table.add_row(*_cells(row))
        table.add_section()
    return Group(
        _header(shape, environment), Text(), table, Text(), _verdict(rows), Text(), _footer()
    )


def _header(shape: Shape, environment: Environment) -> Text:
    """What the table is about."""
    return Text.assemble(
        ("Attention without softmax", "bold"),
        ": every score passes through a function h on its own,\n\n",
        "    o_i = 1/n  sum_j  h(q_i . k_j / sqrt(D))  v_j\n\n",
        "Every built-in h at (B, H, L, D) = ",
        (str(shape), "bold"),
        f" on {environment.device} ({environment.threads} threads): the largest error of the "
        "result and of its gradients, relative to the definition computed in fp64, and the time "
        "of forward beside PyTorch's softmax attention (SDPA).",
    )


def _cells(row: ActivationRow) -> list[Text]:
    """One line of the table."""
    return [
        Text(row.activation),
        Text(row.dtype, style="dim"),
        _error(row.output),
        _error(row.gradients),
        Text(brief(row.flashpoint.median_s)),
        Text(brief(row.sdpa.median_s)),
        Text(f"{row.ratio:.2f}", style="green" if row.ratio <= 1 else ""),
        Text("right", style="green") if row.is_right else Text("WRONG", style="bold red"),
    ]


def _error(deviation: Deviation) -> Text:
    """The error, and below it its bound where it is beyond."""
    if deviation.is_right:
        return Text(f"{deviation.error:.1e}")
    return Text(f"{deviation.error:.1e}\n> {deviation.bound:.1e}", style="bold red")


def _verdict(rows: Sequence[ActivationRow]) -> Text:
    """One sentence on all errors."""
    wrong = sum(not row.is_right for row in rows)
    rule = f"{FACTOR:g}x plain PyTorch's error at the same dtype plus one rounding"
    if wrong:
        return Text(f"{wrong} of {len(rows)} rows are wrong: beyond {rule}.", style="bold red")
    return Text(f"All {len(rows)} rows are right: within {rule}.", style="green")


def _footer() -> RenderableType:
    """What to type next."""
    commands = Table.grid(padding=(0, 3))
    for command, purpose in _NEXT:
        commands.add_row(Text(f"  {command}", style="bold"), Text(purpose))
    example = Text("\n".join(f"  {line}" for line in _EXAMPLE.splitlines()), style="bold")
    return Group(Text("Next:"), commands, Text(), Text("In Python:"), example)
