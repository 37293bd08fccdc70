"""The page of a few runs, from their folders: side by side how good, how long, how large."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flashpoint.lab.report.attention import attention
from flashpoint.lab.report.curves import curves
from flashpoint.lab.report.figure import SERIES
from flashpoint.lab.report.html import Cell, Child, Html, join, table, tag
from flashpoint.lab.report.metrics import METRICS, Metric, final, metrics_of
from flashpoint.lab.report.page import Section, build_page
from flashpoint.lab.report.provenance import commands, environment
from flashpoint.lab.runs.formats import count, duration
from flashpoint.lab.runs.run_files import RunFiles, mapping_of, number, read_runs
from flashpoint.words import is_shift, word_of

NOTE = (
    "Accuracy and loss are those of the validation data at the end. Training time leaves out "
    "validation and checkpoints. The best of each column is green."
)
_PLAIN = {
    "floor": 1e-3,
    "alpha": 1.0,
    "length": "visible",
    "gain": 1.0,
    "scale": None,
    "bias": 0.0,
}


def report_runs(folders: Sequence[Path], *, title: str) -> str:
    """One page with all that the folders hold: table, curves, attention, provenance.

    Args:
        folders: of runs, in the order of the page; unfinished ones are shown as far as they are.
        title: the page's heading.
    """
    runs = read_runs(folders)
    sections = [
        Section(title="Runs", anchor="runs", body=run_table(runs)),
        Section(title="Curves", anchor="curves", body=curves(runs)),
        Section(title="Environment", anchor="environment", body=environment(runs)),
        Section(title="To repeat it", anchor="commands", body=commands(runs)),
    ]
    if seen := attention(runs):
        sections.insert(2, Section(title="Attention", anchor="attention", body=seen))
    return build_page(title, _summary(runs), sections)


def _summary(runs: Sequence[RunFiles]) -> Html:
    """The result in a sentence, or what is being trained."""
    known = [(run, metrics_of([run])) for run in runs if metrics_of([run])]
    if not known:
        return join(["Not validated yet: ", ", ".join(run.name for run in runs), "."])
    parts: dict[str, list[Html]] = {}
    for run, (metric, *_) in known:
        value = tag("strong", metric.show(final(run, metric)))
        parts.setdefault(metric.label, []).append(join([f"{describe_attention(run)} ", value]))
    sentences = [
        join([f"{label.capitalize()} on validation data: ", join(values, ", "), "."])
        for label, values in parts.items()
    ]
    return join(sentences, " ")


def run_table(runs: Sequence[RunFiles]) -> Html:
    """One row for each run; of the metrics, those that some run has."""
    metrics = metrics_of(runs)
    units = {str(run.record.get("unit", "images")) for run in runs if run.record}
    unit = units.pop() if len(units) == 1 else "samples"
    head = (
        *("run", "attention", *(metric.label for metric in metrics), "best", "training time"),
        *(f"{unit}/s", "parameters", "training FLOPs"),
    )
    rows = [_row(run, i, runs, metrics) for i, run in enumerate(runs)]
    return join([table(head, rows, label="runs", file="runs.csv"), tag("p", NOTE, class_="note")])


def describe_attention(run: RunFiles) -> str:
    """The mathematics in a few words.

    Example:
        >>> from pathlib import Path
        >>> config = {"model": {"attention": {"activation": "relu", "alpha": 0.5}}}
        >>> describe_attention(RunFiles(path=Path(), name="", config=config, record={}, train=[],
        ...                             validation=[], statistics=None, maps=[]))
        'relu, alpha 0.5'

    Weights divided by their own sum have it behind a slash, 'relu4/sum'; cross-attention is named
    where it is another.
    """
    model = mapping_of(run.config, "model")
    words, cross = _label(model.get("attention", "relu")), model.get("cross_attention")
    return words if cross is None else f"{words}; cross {_label(cross)}"


def _label(spec: object) -> str:
    """An attention by its word and what is not as usual."""
    if not isinstance(spec, Mapping):
        return str(spec)
    bias = spec.get("bias")
    word = word_of(spec.get("activation", "relu"), bias, spec.get("normalize", "length"))
    changed = [
        f"{name} {spec[name]}"
        for name, plain in _PLAIN.items()
        if spec.get(name, plain) != plain and not (name == "bias" and is_shift(bias))
    ]
    return ", ".join([word, *changed])


def _row(
    run: RunFiles, place: int, runs: Sequence[RunFiles], metrics: Sequence[Metric]
) -> list[Child | Cell]:
    chip = tag("span", class_="chip", style=f"background:var({SERIES[place % len(SERIES)]})")
    sizes = [number(run.record, name) for name in ("samples_per_s", "num_parameters", "flops")]
    seconds = number(run.record, "seconds")
    return [
        join([chip, run.name]),
        describe_attention(run),
        *(_marked(run, runs, metric) for metric in metrics),
        _best(run),
        Cell(duration(seconds), seconds),
        *(Cell(count(size), size) for size in sizes),
    ]


def _best(run: RunFiles) -> Cell:
    """How good the best checkpoint is, and which one it is."""
    best, metric = mapping_of(run.record, "best"), next(iter(metrics_of([run])), METRICS[0])
    value, step = number(best, metric.name), number(best, "step")
    return Cell(metric.show(value) + (f" at step {step:.0f}" if step else ""), value)


def _marked(run: RunFiles, runs: Sequence[RunFiles], metric: Metric) -> Cell:
    """The cell in green where no other run is better; never where there is nothing to compare."""
    values = [value for other in runs if (value := final(other, metric)) is not None]
    best = (max if metric.is_share else min)(values, default=None)
    value = final(run, metric)
    is_best = len(runs) > 1 and len(set(values)) > 1 and value == best
    return Cell(tag("span", metric.show(value), class_="best" if is_best else ""), value)
