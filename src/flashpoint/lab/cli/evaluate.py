"""``flashpoint evaluate``: how good a run's model is: accuracy, BLEU or perplexity."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from flashpoint.errors import InputError
from flashpoint.lab.cli.run_arguments import (
    IMAGES_AT_MOST,
    LANGUAGE_TASKS,
    Checkpoint,
    ClassList,
    Device,
    JsonFile,
    RunFolder,
)
from flashpoint.lab.evaluation import search

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flashpoint.lab.evaluation.classification import Classification
    from flashpoint.lab.evaluation.translation_scores import TranslationScores

IMAGES_AT_ONCE, PARTS_AT_ONCE = 256, 32
BEAM, LENGTH_PENALTY = 5, 1.0


class Labels(StrEnum):
    """What ``--labels`` takes."""

    ALL = "all"
    MATCHING = "matching"


Data: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Images with classes, as in a config: a folder, shards:PATTERN, digits, ... Or "
        "documents: documents:DIR:test, text:PREFIX, jsonl:FILE, ... Or passages:DIR:test.",
        show_default="the run's validation data",
    ),
]
LabelsOption: TypeAlias = Annotated[
    Labels,
    typer.Option(
        help="all: the data have the model's classes. matching: only classes that both have "
        "may answer, found by WordNet id or name."
    ),
]


BatchSize: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=IMAGES_AT_MOST,
        help="Images, or parts of documents, at a time.",
        show_default=f"{IMAGES_AT_ONCE}, or {PARTS_AT_ONCE} of text",
    ),
]
Beam: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=int(search.BEAM.high),
        help="Of text: hypotheses; 1 is greedy.",
        show_default=str(BEAM),
    ),
]
LengthPenalty: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=search.LENGTH_PENALTY.low,
        max=search.LENGTH_PENALTY.high,
        help="Of text: 0 prefers short ones, 1 long.",
        show_default=str(LENGTH_PENALTY),
    ),
]


def evaluate(
    run: RunFolder,
    data: Data = None,
    classes: ClassList = None,
    labels: LabelsOption = Labels.ALL,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    checkpoint: Checkpoint = "best",
    batch_size: BatchSize = None,
    device: Device = "auto",
    json_file: JsonFile = None,
) -> None:
    """How good a run's model is, on its validation data or on others.

    Of images: top-1, top-5 and loss. Of translations: BLEU of segments and of documents, and
    chrF. Of language models: loss and perplexity.

    \b
    flashpoint evaluate runs/mine
    flashpoint evaluate runs/i21k --data /data/imagenet --labels matching
    flashpoint evaluate runs/i1k --data hf:DIR --classes wordnet_ids.txt
    flashpoint evaluate runs/en_de --data documents:DIR:test
    flashpoint evaluate runs/linux_doc --data passages:DIR:test
    """
    from flashpoint.lab.cli import run_arguments
    from flashpoint.lab.training.run_folder import open_run

    run_arguments.require_writable(json_file, "--json")
    task = open_run(run).config.task
    if task in LANGUAGE_TASKS:
        others = (classes, beam, length_penalty, batch_size)
        if labels is not Labels.ALL or any(x is not None for x in others):
            raise InputError(
                f"{run} is a language model: it takes --data, --checkpoint, --device and --json."
            )
        _evaluate_language(run, data, checkpoint, device, json_file)
        return
    if task == "text":
        if labels is not Labels.ALL or classes is not None:
            raise InputError(f"--labels and --classes are for images; {run} translates text.")
        options = {
            "beam": beam or BEAM,
            "length_penalty": LENGTH_PENALTY if length_penalty is None else length_penalty,
            "batch_size": batch_size or PARTS_AT_ONCE,
        }
        _evaluate_text(run, data, checkpoint, device, options, json_file)
        return
    if beam is not None or length_penalty is not None:
        raise InputError(f"--beam and --length-penalty are for text; {run} classifies images.")
    size = batch_size or IMAGES_AT_ONCE
    _evaluate_images(run, data, classes, labels, checkpoint, device, size, json_file)


def _evaluate_images(
    run: Path,
    data: str | None,
    classes: Path | None,
    labels: Labels,
    checkpoint: str,
    device: str,
    batch_size: int,
    json_file: Path | None,
) -> None:
    from rich.console import Console

    from flashpoint.lab.cli import run_arguments
    from flashpoint.lab.evaluation.classification import data_at, evaluate_run

    found, model, step = run_arguments.open_classifier(run, checkpoint, device)
    with run_arguments.counting("Evaluating") as on_count:
        result = evaluate_run(
            found,
            model,
            data=data,
            classes=str(classes) if classes else None,
            is_matching=labels is Labels.MATCHING,
            batch_size=batch_size,
            on_count=on_count,
        )
    where = data_at(found.config.data, data).validation
    title = f"{run}, step {step}, on {where}"
    Console(stderr=json_file == run_arguments.STDOUT).print(_draw(result, title))
    _warn_of_unmatched(result)
    run_arguments.warn_of_broken(result.broken)
    if json_file is not None:
        context = {
            "run": str(run),
            "step": step,
            "data": where,
            "classes": str(classes) if classes else None,
            "labels": labels.value,
        }
        run_arguments.write_json({**context, **result.to_dict()}, json_file)


def _warn_of_unmatched(result: "Classification") -> None:
    """Say which classes were left out, if some were."""
    from flashpoint.lab.cli import run_arguments
    from flashpoint.lab.evaluation.class_matching import some

    if result.unmatched:
        run_arguments.warn(
            f"{len(result.unmatched)} classes of the data are unknown to the model, their "
            f"{result.left_out} images left out: {some(result.unmatched)}."
        )


def _evaluate_text(
    run: Path,
    data: str | None,
    checkpoint: str,
    device: str,
    options: dict[str, Any],
    json_file: Path | None,
) -> None:
    from rich.console import Console

    from flashpoint.lab.cli import run_arguments
    from flashpoint.lab.cli.translate import open_translator
    from flashpoint.lab.evaluation.translation_scores import evaluate_translation

    found, translator, step = open_translator(run, checkpoint, device, **options)
    with run_arguments.counting("Translating") as on_count:
        result = evaluate_translation(found.config, translator, data=data, on_count=on_count)
    where = data or found.config.data.validation
    title = f"{run}, step {step}, on {where}, beam {options['beam']}"
    Console(stderr=json_file == run_arguments.STDOUT).print(_draw_scores(result, title))
    if json_file is not None:
        context = {"run": str(run), "step": step, "data": where, **options}
        run_arguments.write_json({**context, **result.to_dict()}, json_file)


def _evaluate_language(
    run: Path, data: str | None, checkpoint: str, device: str, json_file: Path | None
) -> None:
    from rich.console import Console, Group
    from rich.text import Text

    from flashpoint.lab.cli import run_arguments
    from flashpoint.lab.cli.terminal import plain_table
    from flashpoint.lab.data.text.pieces import load_pieces
    from flashpoint.lab.evaluation.language import measure_loss, open_text
    from flashpoint.lab.runs.names import PIECES

    found, model, step = run_arguments.open_with_model(run, checkpoint, device)
    where = data or found.config.data.validation
    place = next(model.parameters()).device
    text = open_text(found.config, load_pieces(run / PIECES), where, "validation", place)
    numbers = measure_loss(model, text)
    table = plain_table("perplexity", "loss", "tokens", left=0)
    table.add_row(
        f"{numbers['perplexity']:.2f}", f"{numbers['loss']:.4f}", f"{len(text.ids) - 1:,}"
    )
    title = Text(f"{run}, step {step}, on {where}", style="bold")
    Console(stderr=json_file == run_arguments.STDOUT).print(Group(title, table))
    if json_file is not None:
        context = {"run": str(run), "step": step, "data": where, "tokens": len(text.ids) - 1}
        run_arguments.write_json({**context, **numbers}, json_file)


def _draw_scores(result: "TranslationScores", title: str) -> "RenderableType":
    """The scores of all documents and by length, and how they were computed."""
    from rich.console import Group
    from rich.text import Text

    from flashpoint.lab.cli.terminal import plain_table

    headings = ("source tokens", "BLEU", "d-BLEU", "chrF", "documents", "segments")
    table = plain_table(*headings)
    for name, scores in {"all": result.all, **result.by_length}.items():
        table.add_row(
            name,
            f"{scores.bleu:.2f}",
            f"{scores.document_bleu:.2f}",
            f"{scores.chrf:.2f}",
            f"{scores.num_documents:,}",
            f"{scores.num_segments:,}",
        )
    signatures = [f"{name} {signature}" for name, signature in result.signatures.items()]
    repeated = (
        f"{result.repeated_share:.1%} of the segments were translated again in smaller parts to "
        "keep segments apart; d-BLEU is of what came first."
    )
    return Group(Text(title, style="bold"), table, *map(Text, [*signatures, repeated]))


def _draw(result: "Classification", title: str) -> "RenderableType":
    """The numbers, under a line that says of what."""
    from rich.console import Group
    from rich.text import Text

    from flashpoint.lab.cli.terminal import plain_table

    table = plain_table("top-1", "top-5", "loss", "images", "classes", left=0)
    table.add_row(
        f"{result.top1:.2%}",
        f"{result.top5:.2%}",
        f"{result.loss:.4f}",
        f"{result.num_images:,}",
        f"{result.num_classes:,}",
    )
    return Group(Text(title, style="bold"), table)
