"""``flashpoint report``: runs as one page that opens in any browser."""

import os
from pathlib import Path
from typing import Annotated

import typer

TITLE = "Flashpoint: runs"


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The page.", show_default="report.html in the runs' folder"
        ),
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Its heading.")] = TITLE,
) -> None:
    """Write one page with the table, curves and attention of runs; it needs no network."""
    from flashpoint.report.page import write_page
    from flashpoint.report.run_report import report_runs

    page = report_runs(runs, title=title)
    file = _default_file(runs) if out is None else out
    write_page(page, file)
    typer.echo(f"{file} ({len(page) / 1e6:.1f} MB), open it in a browser.")


def _default_file(runs: list[Path]) -> Path:
    """In the run itself, or in the folder that all runs share."""
    shared = Path(os.path.commonpath([os.path.abspath(run) for run in runs])) / "report.html"
    return Path(os.path.relpath(shared)) if not any(run.is_absolute() for run in runs) else shared
