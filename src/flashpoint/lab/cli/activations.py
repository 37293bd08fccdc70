"""``flashpoint activations``: every activation, checked and timed on this machine."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashpoint.lab.bench.activations import ActivationRow
    from flashpoint.lab.bench.cases import Shape


def activations(
    shape: Annotated[
        str, typer.Option(metavar="B,H,L,D", help="By default that of a small ViT.")
    ] = "8,6,197,64",
    dtype: Annotated[str, typer.Option(help="Any of bf16,fp16,fp32.")] = "fp32,bf16",
) -> None:
    """Show the operator: the error and the time of every activation on this machine."""
    from rich.console import Console

    from flashpoint.lab.bench.cases import parse_dtypes, parse_shape
    from flashpoint.lab.bench.environment import describe
    from flashpoint.lab.cli.activations_view import render

    sizes = parse_shape(shape)
    rows = _measure(sizes, parse_dtypes(dtype))
    Console().print(render(rows, sizes, describe()))
    if not all(row.is_right for row in rows):
        raise typer.Exit(1)


def _measure(shape: "Shape", dtypes: "Sequence[str]") -> "list[ActivationRow]":
    """Measure all activations and show on stderr how far it is."""
    from rich.console import Console
    from rich.progress import track

    from flashpoint.lab.bench.activations import measure_activations
    from flashpoint.ops.activation import BUILTIN

    console = Console(stderr=True)
    return list(
        track(
            measure_activations(shape, dtypes),
            description="Measuring every activation",
            total=len(BUILTIN) * len(dtypes),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
    )
