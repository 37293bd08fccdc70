"""``flashpoint data prepare`` in a clone: make a set, and say what was made."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from data_preparation.documents import NAME, Prepared, prepare_documents
from data_preparation.fetching import Report
from data_preparation.images import SETS, prepare_images
from data_preparation.linux_doc import NAME as LINUX_DOC
from data_preparation.linux_doc import prepare_passages
from flashpoint.errors import InputError, hint


def prepare_set(name: str, source: Path | None, folder: Path) -> None:
    """Make the named set in a folder, from a package or a folder of packages."""
    known = (*SETS, NAME, LINUX_DOC)
    if name not in known:
        raise InputError(f"set {name!r} is unknown. {hint(name, known)}Known: {', '.join(known)}.")
    if name == NAME:
        _documents(source, folder)
    elif name == LINUX_DOC:
        _passages(source, folder)
    elif source is not None:
        _images(name, source, folder)
    else:
        raise InputError(f"{name} needs its package: --from FILE. {SETS[name].package.advice}")


def _images(name: str, source: Path, folder: Path) -> None:
    with Console(stderr=True).status(f"reading {source}"):
        written = prepare_images(name, source, folder)
    for file, num_images in written.items():
        typer.echo(f"{file.stem}: {num_images:,} images, complete, in {file}")
    _say_what_next(f"{name}:{folder}", f"--png {name}.png")


@contextmanager
def _reporting() -> Generator[Report]:
    """What happens as a status that changes; as lines where nobody watches."""
    progress = Console(stderr=True)
    with progress.status("looking for packages") as status:

        def report(text: str) -> None:
            status.update(text)
            if not progress.is_terminal:
                typer.echo(text, err=True)

        yield report


def _passages(source: Path | None, folder: Path) -> None:
    with _reporting() as report:
        found = prepare_passages(folder, source, report)
    table = Table("split", "passages", "words", "repeated paragraphs removed")
    for name, (passages, words) in found.splits.items():
        table.add_row(name, f"{passages:,}", f"{words:,}", f"{found.removed[name]:,}")
    Console().print(table)
    typer.echo(f"{found.num_pieces:,} subword pieces lie beside them")
    typer.echo(f"In a config: data.train and data.validation are passages:{folder}")


def _documents(source: Path | None, folder: Path) -> None:
    with _reporting() as report:
        prepared = prepare_documents(folder, source, report)
    typer.echo("After cleaning; below each corpus, what was counted earlier:")
    Console().print(_draw_corpora(prepared))
    Console().print(_draw_splits(prepared))
    _say_what_next(f"documents:{folder}", "--pairs 10")


def _say_what_next(where: str, option: str) -> None:
    typer.echo(f"In a config: data.train and data.validation are {where}")
    typer.echo(f"Look at it: flashpoint data show {where} {option}")


def _draw_corpora(prepared: Prepared) -> Table:
    """A row for each corpus, with the numbers of an earlier extraction."""
    table = Table("corpus", "documents", "aligned", "segments", "unique", "English words")
    for row in prepared.corpora:
        documents, *counts = (f"{number:,}" for number in row.counts)
        table.add_row(row.name, documents, f"{row.num_aligned:,}", *counts)
        documents, *counts = (f"{number:,}" for number in row.known)
        table.add_row("", documents, "", *counts, style="dim")
    return table


def _draw_splits(prepared: Prepared) -> Table:
    """A row for each split that was written."""
    table = Table("split", "documents", "segments", "unique", "English words", "repeats removed")
    for name, counts in prepared.splits.items():
        table.add_row(name, *(f"{n:,}" for n in counts), f"{prepared.removed[name]:,}")
    return table
