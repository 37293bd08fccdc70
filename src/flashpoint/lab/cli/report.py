"""``flashpoint report``: runs as one page that opens in any browser."""

import os
from pathlib import Path
from typing import Annotated

import typer

from flashpoint.lab.cli.paths import path_of
from flashpoint.lab.runs.names import PAGE

TITLE = "Flashpoint: runs"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders, or folders of studies.", parser=path_of
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page.",
            show_default=f"{PAGE} in the runs' folder",
            parser=path_of,
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Its heading.", show_default=TITLE)
    ] = None,
) -> None:
    """Write one page with the table, curves and attention of runs; it needs no network.

    Of studies it is the page of `flashpoint study report`.
    """
    from flashpoint.lab.cli import study_report
    from flashpoint.lab.report.page import write_page
    from flashpoint.lab.report.run_report import report_runs
    from flashpoint.lab.runs.trials import find_studies

    if any(find_studies(run) for run in runs):
        study_report.write_report(runs, out, title or study_report.TITLE)
        return
    page = report_runs(runs, title=title or TITLE)
    file = _default_file(runs) if out is None else out
    write_page(page, file)
    typer.echo(f"{file} ({len(page) / 1e6:.1f} MB), open it in a browser.")


def _default_file(runs: list[Path]) -> Path:
    """In the run itself, or in the folder that all runs share."""
    shared = Path(os.path.commonpath([os.path.abspath(run) for run in runs])) / PAGE
    return Path(os.path.relpath(shared)) if not any(run.is_absolute() for run in runs) else shared
