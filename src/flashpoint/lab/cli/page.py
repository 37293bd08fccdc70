"""``flashpoint page``: models of runs in one file that any browser runs."""

from pathlib import Path
from typing import Annotated

import typer

from flashpoint.errors import InputError
from flashpoint.lab.cli.run_arguments import Checkpoint, path_of

TITLE = "Attention with and without softmax"
MOST_RUNS = 4


def page(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Up to four runs on the same images.", parser=path_of
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.", parser=path_of)] = Path(
        "page.html"
    ),
    title: Annotated[str, typer.Option(metavar="TEXT", help="Its heading.")] = TITLE,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Where images to click come from.",
            show_default="the first run's validation data",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, max=64, help="Images to click.")] = 20,
    checkpoint: Checkpoint = "best",
    runtime: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The package onnxruntime-web, as `npm pack` leaves it.",
            show_default="fetched by npm once",
            parser=path_of,
        ),
    ] = None,
) -> None:
    """Write a page in which visitors try models: one file, by a double click, no network.

    They draw a digit, or drop a picture, and see what each model says, where every head looks, how
    many attention weights are exactly zero, and how long an answer takes beside the twin. The
    models are inside as ONNX graphs and run in the browser.

    \b
    flashpoint page runs/demo/relu runs/demo/softmax
    flashpoint page runs/cifar10 runs/cifar10_softmax --out cifar10.html
    """
    from flashpoint.lab.browser.contents import Opened, gather
    from flashpoint.lab.browser.page import build_page
    from flashpoint.lab.browser.runtime import read_runtime
    from flashpoint.lab.cli.run_arguments import open_classifier, require_writable
    from flashpoint.lab.report.page import write_page

    if len(runs) > MOST_RUNS:
        raise InputError(f"{len(runs)} runs were given, and a page shows {MOST_RUNS} at most.")
    require_writable(out if out.parent.is_dir() else None, "--out")
    found = read_runtime(runtime)
    opened = [open_classifier(run, checkpoint, "cpu") for run in runs]
    models = [Opened(run=run, model=model, step=step) for run, model, step in opened]
    content = build_page(title, gather(models, data, samples), found)
    write_page(content, out)
    typer.echo(f"{out} ({len(content) / 1e6:.1f} MB), open it in a browser.")
