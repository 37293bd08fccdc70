"""``flashpoint bench --suite loader``: images a second from shards, beside a training step's."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from flashpoint.errors import InputError
from flashpoint.lab.bench.loader.suite import (
    LEAST_SHARE,
    LoaderResult,
    measure_loader,
    usual_case,
)
from flashpoint.lab.cli.run_arguments import STDOUT
from flashpoint.lab.cli.terminal import plain_table

FORMAT = "loader 1"
_LEGEND = (
    "Readers: whole batches on the device, without training. Decode only: workers drop what they "
    "have decoded. Training: relu, by the recipe of ImageNet-1k."
)


def bench_loader(
    device: str,
    *,
    is_quick: bool,
    json_file: Path | None,
    check: bool,
    unused: Mapping[str, object],
) -> None:
    """Measure, show, store, and exit with 1 if a limit is asked for and missed.

    Args:
        unused: options of other suites, refused if they are given.
    """
    given = [name for name, value in unused.items() if value]
    if given:
        raise InputError(
            "suite 'loader' measures readers of images and takes no "
            f"{', '.join(f'--{name}' for name in given)}. Leave it out."
        )
    if check and device != "cuda":
        raise InputError("--check has nothing to check: suite 'loader' has a limit on cuda alone.")
    status = Console(stderr=True)
    with status.status("start") as shown:
        result = measure_loader(usual_case(device, is_quick=is_quick), shown.update)
    Console(stderr=json_file == STDOUT).print(render(result))
    if json_file == STDOUT:
        sys.stdout.write(to_json(result))
    elif json_file is not None:
        json_file.write_text(to_json(result))
    if check and result.share < LEAST_SHARE:
        typer.secho(
            f"training from shards reaches {result.share:.3f} of the rate with images on the GPU, "
            f"limit {LEAST_SHARE}",
            fg=typer.colors.RED,
            err=True,
        )
        raise typer.Exit(1)


def to_json(result: LoaderResult) -> str:
    """The result as a file's text."""
    return json.dumps({"format": FORMAT, **asdict(result), "share": result.share}, indent=2) + "\n"


def render(result: LoaderResult) -> RenderableType:
    """A table of rates, and what they mean for training."""
    case, place = result.case, result.environment
    title = Text.assemble(
        ("Images from shards", "bold"),
        (
            f"\n{place.device}, {case.workers} workers; JPEG files of "
            f"{result.bytes_per_image / 1e3:.0f} kB\n{place.versions}\n",
            "dim",
        ),
    )
    table = plain_table("", "images/s", "of the step's rate")
    for name, rate in result.feeds.items():
        table.add_row(name, *_cells(rate, result.resident))
    table.add_section()
    trained = f"{case.model}, batch {case.batch_size}"
    table.add_row(f"{trained}, images on the device", *_cells(result.resident, result.resident))
    table.add_row(f"{trained}, images from shards", *_cells(result.fed, result.resident))
    waits = f"It waited for data {result.data_wait:.0%} of the time."
    return Group(title, table, Text(f"\n{waits} {_LEGEND}", style="dim"))


def _cells(rate: float | None, whole: float) -> tuple[str, str]:
    if rate is None:
        return "not installed", "-"
    return f"{rate:,.0f}", f"{rate / whole:.2f}"
