"""The table of a plan, with the numbers it rests on."""

from collections.abc import Iterator
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flashpoint.lab.cli.terminal import plain_table
from flashpoint.lab.runs.formats import DASH, brief, count, counted
from flashpoint.lab.scaling.estimate import Estimate, attended_length
from flashpoint.lab.scaling.survey import Survey, parallel_of
from flashpoint.lab.scaling.traffic import ALONE

_LEGEND = (
    "split: groups x GPUs that share a sample. kernels: attention. matrix: all other products. "
    "other: norms, GELU, optimizer, packing and adding up. waiting: for messages; hidden: the "
    "share of sending that passes meanwhile. sent: by each GPU. memory: of a GPU; + blocks are "
    "recomputed in backward, ! does not fit."
)


def render(found: Survey) -> RenderableType:
    """What is asked, the table, the best, and what it rests on."""
    said = [_verdict(found), *_config(found), *_refusals(found)]
    lines = [*said, Text(_LEGEND, style="dim"), _basis(found)]
    spaced = [part for line in lines for part in (Text(), line)]
    return Group(_header(found), Text(), _table(found), *spaced)


def _header(found: Survey) -> Text:
    setting = found.setting
    return Text.assemble(
        ("An estimate, not a measurement: ", "bold"),
        f"a training step of {setting.load.name}, {count(setting.load.num_parameters)} "
        f"parameters, {setting.batch:,} x {counted(setting.tokens, 'token')} on "
        f"{counted(setting.num_gpus, 'GPU')}.",
    )


def _table(found: Survey) -> Table:
    headings = ("step", "kernels", "matrix", "other", "waiting", "hidden", "sent", "memory")
    table = plain_table("split", "strategy", *headings, left=2, padding=0)
    best = found.best
    for split, group in groupby(
        found.estimates, key=lambda one: (one.choice.data, one.choice.sequence)
    ):
        table.add_section()
        name = f"{split[0]:,} x {split[1]:,}"
        for one in group:
            style = "bold green" if one is best else "" if one.fits else "dim"
            table.add_row(name, *_cells(one, one is best), style=style)
            name = ""
    return table


def _cells(one: Estimate, is_best: bool) -> Iterator[str]:
    seconds = one.seconds
    name = one.choice.strategy
    yield f"{'-' if name == ALONE else name}{'*' if is_best else ''}"
    yield brief(seconds.step)
    yield brief(seconds.attention)
    yield brief(seconds.products)
    yield brief(seconds.elementwise + seconds.copies)
    yield brief(seconds.waiting) if seconds.waiting else DASH
    yield f"{seconds.hidden / seconds.sending:.0%}" if seconds.sending else DASH
    yield f"{count(one.sequence_bytes + one.gradient_bytes)}B"
    marks = f"{'+' if one.choice.recomputes else ''}{'' if one.fits else '!'}"
    yield f"{count(one.memory.total)}B{marks}"


def _verdict(found: Survey) -> Text:
    best, setting = found.best, found.setting
    if best is None:
        least = found.smallest
        return Text(
            f"Nothing fits into {count(setting.memory_bytes)}B a GPU: the least is "
            f"{count(least.memory.total)}B, {_name(least)}. Take more GPUs.",
            style="bold red",
        )
    rate = setting.batch * setting.tokens / best.seconds.step
    samples = setting.batch // best.choice.data
    return Text(
        f"Best (*): {_name(best)}, {brief(best.seconds.step)} a step, {count(rate)} tokens/s. "
        f"Samples of a group: {samples:,}, at once {best.at_once:,}.",
        style="bold green",
    )


def _config(found: Survey) -> Iterator[Text]:
    """The best one for ``flashpoint train``, as a line of YAML that stands alone."""
    if found.best is None:
        return
    choice = found.best.choice
    fields = ", ".join(f"{name}: {value}" for name, value in parallel_of(choice).items())
    again = ", which does not recompute and so needs more memory" if choice.recomputes else ""
    yield Text(f"For a config of flashpoint train{again}:\nparallel: {{{fields}}}")


def _name(one: Estimate) -> str:
    choice = one.choice
    how = "" if choice.strategy == ALONE else f" by {choice.strategy}"
    again = " with recomputing" if choice.recomputes else ""
    return f"data {choice.data:,} x sequence {choice.sequence:,}{how}{again}"


def _refusals(found: Survey) -> Iterator[Text]:
    if found.refused:
        yield Text(f"Left out: {'; '.join(found.refused)}.")


def _basis(found: Survey) -> Text:
    """Which numbers are measured, which are given."""
    setting, rates, links = found.setting, found.setting.rates, found.setting.links
    dim, shown = setting.load.head_dim, found.best or found.smallest
    longest, length = rates.longest(dim), attended_length(setting, shown.choice)
    forward, backward = (
        rates.attention(mode, dim, length) / 1e12 for mode in ("forward", "backward")
    )
    beyond = f", taken from {longest:,}" if length > longest else ""
    return Text(
        f"Measured on one {rates.device} ({', '.join(rates.sources)}), bf16: attention with head "
        f"dim {dim} {forward:.0f} and {backward:.0f} TFLOP/s forward and backward at the "
        f"{counted(length, 'token')} of {'the best' if found.best else 'the smallest'}{beyond}; a "
        f"matrix product {rates.matrix_flops_per_s / 1e12:.0f} TFLOP/s; memory "
        f"{rates.memory_bytes_per_s / 1e12:.1f} TB/s. Given, not measured: "
        f"{counted(links.gpus_per_node, 'GPU')} a node, "
        f"{links.node_bytes_per_s / 1e9:g} GB/s inside it, "
        f"{links.network_bytes_per_s / 1e9:g} GB/s between nodes, "
        f"{count(setting.memory_bytes)}B a GPU. Real steps take longer: docs/scaling.md."
    )
