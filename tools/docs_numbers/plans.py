"""What ``flashpoint plan`` prints, and its estimates beside measured steps."""

import io
from dataclasses import replace

from rich.console import Console

from docs_numbers.speed import GPU_FILES, MODELS
from docs_numbers.stored import Stored
from docs_numbers.tables import numbers, table
from flashpoint.lab.cli.plan_view import render
from flashpoint.lab.scaling.estimate import Choice, Estimate, Setting, estimate
from flashpoint.lab.scaling.lengths import result_of
from flashpoint.lab.scaling.links import Links
from flashpoint.lab.scaling.load import load_of
from flashpoint.lab.scaling.rates import rates_of, stored_rates
from flashpoint.lab.scaling.survey import Survey, survey
from flashpoint.lab.scaling.traffic import ALONE
from flashpoint.models.registry import image_model_config

LENGTHS = "benchmarks/results/sequence/h200.json"
LINKS = Links(node_bytes_per_s=450e9, network_bytes_per_s=50e9, gpus_per_node=8)
MEMORY = 141e9
COLUMNS = 100


def setting(stored: Stored, model: str, tokens: int, batch: int, num_gpus: int) -> Setting:
    """With what the command takes by default."""
    return Setting(
        load=load_of(model),
        tokens=tokens,
        batch=batch,
        num_gpus=num_gpus,
        memory_bytes=MEMORY,
        rates=stored_rates(stored.root),
        links=LINKS,
    )


@numbers("plan-example")
def _example(stored: Stored) -> str:
    found = survey(setting(stored, "vit_l16", 2**20, 256, 256), sequence=16)
    console = Console(file=io.StringIO(), width=COLUMNS, color_system=None)
    with console.capture() as capture:
        console.print(render(found))
    lines = [line.rstrip() for line in capture.get().rstrip().splitlines()]
    return "\n".join(["```", *lines, "```"])


@numbers("plan-splits")
def _splits(stored: Stored) -> str:
    found = survey(setting(stored, "vit_l16", 2**20, 256, 256))
    sizes = dict.fromkeys(one.choice.sequence for one in found.estimates)
    rows = [_row(_fastest(found, size)) for size in sizes]
    return table(["data x sequence", "fastest", "s a step", "waiting", "GB a GPU", ""], rows)


def _fastest(found: Survey, sequence: int) -> Estimate:
    alike = [one for one in found.estimates if one.choice.sequence == sequence]
    return min(alike, key=lambda one: (not one.fits, one.seconds.step))


def _row(one: Estimate) -> list[str]:
    choice, seconds = one.choice, one.seconds
    notes = ["recomputes"] * choice.recomputes + ["does not fit"] * (not one.fits)
    return [
        f"{choice.data} x {choice.sequence}",
        "" if choice.strategy == ALONE else f"`{choice.strategy}`",
        f"{seconds.step:.0f}",
        f"{seconds.waiting / seconds.step:.0%}",
        f"{one.memory.total / 1e9:.0f}",
        ", ".join(notes),
    ]


@numbers("plan-measured")
def _measured(stored: Stored) -> str:
    alone = Choice(data=1, sequence=1, strategy=ALONE, recomputes=False)
    rows: list[list[str]] = []
    for row in stored.bench(GPU_FILES["vit-model"]).models:
        timing = row.of("relu").timing
        assert timing is not None
        tokens = image_model_config(row.case.model).grid ** 2
        found = estimate(setting(stored, row.case.model, tokens, row.case.batch, 1), alone)
        step = found.seconds.step
        name = f"{MODELS[row.case.model]}, {row.case.batch} images"
        times = [f"{1e3 * x:.1f} ms" for x in (step, timing.median_s)]
        rows.append([name, *times, f"{timing.median_s / step:.2f}"])
    return table(["one H200", "estimate", "measured", "measured / estimate"], rows)


@numbers("plan-lengths")
def _lengths(stored: Stored) -> str:
    """Attention of long sequences in head dim 64, with what was measured there and without."""
    longer = result_of(stored.read_json(LENGTHS), LENGTHS)
    suites = [stored.bench(GPU_FILES[suite]) for suite in ("long", "vit", "decode")]
    rows: list[list[str]] = []
    for row in longer.rows:
        case, length, measured = row.case, row.case.shape.length, row.flops_per_s()
        if case.shape.dim != 64 or measured is None:
            continue
        others = tuple(one for one in longer.rows if one.case.shape.length != length)
        without = rates_of([*suites, replace(longer, rows=others)], ["others"])
        made = [
            rates.attention(case.mode, 64, length)
            for rates in (stored_rates(stored.root), without)
        ]
        speeds = [f"{rate / 1e12:.0f}" for rate in (measured, *made)]
        rows.append([f"{case.mode}, {length:,} tokens", *speeds])
    head = ["TFLOP/s, head dim 64", "measured", "estimate", "estimate from other lengths"]
    return table(head, rows)
