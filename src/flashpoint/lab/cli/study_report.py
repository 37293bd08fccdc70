"""``flashpoint study report``: studies as one page, and their figures as files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flashpoint.errors import InputError
from flashpoint.lab.cli.paths import path_of
from flashpoint.lab.runs.names import PAGE

OUT = Path("runs", "studies")
TITLE = "Flashpoint: studies"


def report(
    folder: Annotated[
        Path | None,
        typer.Argument(
            parser=path_of,
            metavar="DIR",
            help="A folder of studies, or one study's.",
            show_default=str(OUT / "*"),
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=path_of, metavar="FILE", help="The page.", show_default=f"{PAGE} in DIR"
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            parser=path_of, metavar="DIR", help="Write the figures there too, as PNG and SVG."
        ),
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Its heading.")] = TITLE,
) -> None:
    """Write one page with every claim, its verdict and its figures; it needs no network."""
    write_report([_only_studies() if folder is None else folder], out, title, pictures)


def _only_studies() -> Path:
    """The folder of the studies that were run without --out, if it is clear which."""
    from flashpoint.lab.runs.trials import find_studies

    found = [path for path in sorted(OUT.glob("*")) if find_studies(path)]
    if not found:
        raise InputError(f"{OUT} holds no study. Run one: flashpoint study run NAME, or name DIR.")
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise InputError(f"which studies? In {OUT} there are: {names}. Name a folder.")
    return found[0]


def write_report(
    folders: Sequence[Path], out: Path | None, title: str, pictures: Path | None = None
) -> None:
    """The page of all studies in some folders.

    Args:
        folders: of a study, or with folders of studies in them.
        out: the page; None: report.html in the first folder.
        title: its heading.
        pictures: a folder for figures as files; None: none.
    """
    from flashpoint.lab.report.page import write_page
    from flashpoint.lab.report.pictures import write_pictures
    from flashpoint.lab.report.study_report import report_studies
    from flashpoint.lab.study.registry import STUDIES
    from flashpoint.lab.study.sections import read_section

    found = _studies_in(folders)
    sections = [read_section(found[name], STUDIES) for name in STUDIES if name in found]
    page = report_studies(sections, title=title)
    if pictures is not None:
        drawn = [file for part in sections for file in write_pictures(part.findings, pictures)]
        typer.echo(f"{len(drawn)} pictures in {pictures}")
    file = folders[0] / PAGE if out is None else out
    write_page(page, file)
    typer.echo(f"{file} ({len(page) / 1e6:.1f} MB), open it in a browser.")


def _studies_in(folders: Sequence[Path]) -> dict[str, Path]:
    """Folders of studies by their names; refused where it is not clear what to show."""
    from flashpoint.lab.runs.trials import find_studies
    from flashpoint.lab.study.registry import STUDIES
    from flashpoint.lab.study.store import read_study

    found: dict[str, Path] = {}
    for folder in folders:
        paths = find_studies(folder)
        if not paths:
            raise InputError(f"{folder} holds no study. Run one: flashpoint study run NAME.")
        for path in paths:
            name = read_study(path).name
            if name not in STUDIES:
                known = ", ".join(STUDIES)
                raise InputError(f"{path} holds study {name!r}, unknown here. Known: {known}.")
            if name in found:
                raise InputError(f"study {name!r} is in {found[name]} and {path}. Name one.")
            found[name] = path
    return found
