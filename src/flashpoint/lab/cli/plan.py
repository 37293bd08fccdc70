"""``flashpoint plan``: what a training step on many GPUs would take, before there are any."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from flashpoint.lab.cli.run_arguments import STDOUT, JsonFile, path_of, require_writable

if TYPE_CHECKING:
    from flashpoint.lab.scaling.estimate import Setting
    from flashpoint.lab.scaling.links import Links
    from flashpoint.lab.scaling.rates import Rates
    from flashpoint.lab.scaling.survey import Survey

MOST = 1_000_000
GIGA = 1e9

Model: TypeAlias = Annotated[
    str, typer.Option("--model", metavar="NAME", help="A model of images: `flashpoint models`.")
]
Tokens: TypeAlias = Annotated[
    int, typer.Option(min=1, max=1_000_000_000, metavar="COUNT", help="Of one sample.")
]
Gpus: TypeAlias = Annotated[int, typer.Option(min=1, max=MOST, metavar="COUNT", help="In all.")]
Batch: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST,
        metavar="COUNT",
        help="Samples of a step, over all GPUs.",
        show_default="one a GPU",
    ),
]
Sequence: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST,
        metavar="COUNT",
        help="GPUs that share a sample.",
        show_default="every divisor of --gpus",
    ),
]
Strategy: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="gather, ring, reduce or ulysses.", show_default="each of them"
    ),
]
Recompute: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--recompute/--keep",
        help="Run blocks again in backward (checkpointing), or keep all activations.",
        show_default="recompute where the rest does not fit",
    ),
]
Link: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0.001, max=1e6, metavar="GB/S", help="That a GPU sends inside its node, one way."
    ),
]
Network: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0.001, max=1e6, metavar="GB/S", help="That a GPU sends to other nodes, one way."
    ),
]
GpusPerNode: TypeAlias = Annotated[int, typer.Option(min=1, max=MOST, metavar="COUNT")]
GpuMemory: TypeAlias = Annotated[
    float, typer.Option("--memory", min=0.001, max=1e6, metavar="GB", help="Of a GPU.")
]
RatesFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--rates",
        metavar="FILE",
        parser=path_of,
        help="What `flashpoint bench --device cuda --json FILE` measured on your GPU.",
        show_default="stored files of an H200",
    ),
]
PlotFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help="Draw time and memory: png, svg or pdf.", parser=path_of
    ),
]


def plan(
    model: Model,
    tokens: Tokens,
    gpus: Gpus,
    batch: Batch = None,
    sequence: Sequence = None,
    strategy: Strategy = None,
    recompute: Recompute = None,
    link: Link = 450.0,
    network: Network = 50.0,
    gpus_per_node: GpusPerNode = 8,
    memory: GpuMemory = 141.0,
    rates: RatesFile = None,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Estimate a training step on many GPUs: time, traffic and memory of every strategy.

    \b
    flashpoint plan --model vit_l16 --tokens 1048576 --gpus 256
    flashpoint plan --model vit_l16 --tokens 65536 --gpus 16 --batch 4 --network 25
    flashpoint plan --model vit_b16 --tokens 16384 --gpus 8 --strategy ulysses --keep
    flashpoint plan --model vit_l16 --tokens 65536 --gpus 8 --rates mine.json --memory 80

    GPUs are split into groups, and each group shares its samples. Rates of one GPU are measured,
    link speeds are yours to give, such as bus bandwidths of nccl-tests, and the rest is
    arithmetic: nothing runs. docs/scaling.md says what is counted.
    """
    from flashpoint.lab.scaling.links import Links
    from flashpoint.lab.scaling.survey import survey

    _refuse_files(json_file, plot_file)
    speeds = {"node_bytes_per_s": GIGA * link, "network_bytes_per_s": GIGA * network}
    links = Links(**speeds, gpus_per_node=gpus_per_node)
    setting = _make_setting(model, tokens, gpus, batch or gpus, GIGA * memory, rates, links)
    found = survey(setting, sequence=sequence, strategy=strategy, recomputes=recompute)
    _publish(found, json_file, plot_file)


def _make_setting(
    model: str,
    tokens: int,
    gpus: int,
    batch: int,
    memory_bytes: float,
    rates: Path | None,
    links: "Links",
) -> "Setting":
    """What the words of the command line mean."""
    from flashpoint.lab.scaling.estimate import Setting
    from flashpoint.lab.scaling.load import load_of

    return Setting(
        load=load_of(model),
        tokens=tokens,
        batch=batch,
        num_gpus=gpus,
        memory_bytes=memory_bytes,
        rates=_read_rates(rates),
        links=links,
    )


def _read_rates(file: Path | None) -> "Rates":
    from flashpoint.lab.scaling.rates import read_rates, stored_rates

    return stored_rates() if file is None else read_rates([file])


def _refuse_files(json_file: Path | None, plot_file: Path | None) -> None:
    """Refuse files that could not be written, before anything is computed."""
    require_writable(json_file, "--json")
    if plot_file is not None:
        from flashpoint.lab.bench.plot import require_drawable

        require_drawable(plot_file)
        require_writable(plot_file, "--plot")


def _publish(found: "Survey", json_file: Path | None, plot_file: Path | None) -> None:
    """Show the table and write the files; with JSON on stdout all else goes to stderr."""
    from rich.console import Console

    from flashpoint.lab.cli.plan_view import render
    from flashpoint.lab.cli.run_arguments import write_json
    from flashpoint.lab.runs.formats import counted
    from flashpoint.lab.scaling.survey import to_plain

    to_stderr = json_file == STDOUT
    Console(stderr=to_stderr).print(render(found))
    estimates = counted(len(found.estimates), "estimate")
    if json_file is not None:
        write_json(to_plain(found), json_file)
        if not to_stderr:
            typer.echo(f"{json_file}: {estimates}")
    if plot_file is not None:
        from flashpoint.lab.scaling.plot import draw

        draw(found, plot_file)
        typer.echo(f"{plot_file}: time and memory of {estimates}", err=to_stderr)
