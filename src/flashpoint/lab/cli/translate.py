"""``flashpoint translate``: documents through a run's model, line by line."""

import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, TypeAlias

import typer

from flashpoint.errors import InputError
from flashpoint.lab.cli.run_arguments import Checkpoint, Device, RunFolder, path_of
from flashpoint.lab.evaluation import search
from flashpoint.lab.runs.formats import counted

if TYPE_CHECKING:
    from flashpoint.lab.evaluation.translation import Translator
    from flashpoint.lab.training.run_folder import Run

LINES_AT_ONCE = 2000
"""Read before anything is translated: parts of similar length go together."""

Beam: TypeAlias = Annotated[
    int,
    typer.Option(min=1, max=int(search.BEAM.high), help="Hypotheses of beam search; 1: greedy."),
]
LengthPenalty: TypeAlias = Annotated[
    float,
    typer.Option(
        min=search.LENGTH_PENALTY.low,
        max=search.LENGTH_PENALTY.high,
        help="Of beam search: 0 prefers short translations, 1 long ones.",
    ),
]
Parts: TypeAlias = Annotated[
    int, typer.Option(min=1, max=int(search.PARTS.high), help="Parts of documents at a time.")
]


def translate(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Text; without it, standard input.", parser=path_of),
    ] = None,
    beam: Beam = 5,
    length_penalty: LengthPenalty = 1.0,
    batch_size: Parts = 32,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Translate a file or standard input to standard output, one line for each line.

    \b
    flashpoint translate runs/mine letter.txt > brief.txt
    echo "How are you?" | flashpoint translate runs/mine --beam 1

    A line is a segment, an empty line ends a document. The model sees as many lines of a document
    at once as fit three quarters of the length it was trained on. If it gives another number of
    lines, they are translated again in halves, at last one by one. A line that is too long goes
    in parts, which are joined again. Invalid UTF-8 is replaced by U+FFFD.
    """
    with _opened(file) as lines:
        _, translator, _ = open_translator(
            run,
            checkpoint,
            device,
            beam=beam,
            length_penalty=length_penalty,
            batch_size=batch_size,
        )
        _translate(translator, lines)


def open_translator(
    folder: Path,
    checkpoint: str,
    device: str,
    *,
    beam: int,
    length_penalty: float,
    batch_size: int,
) -> "tuple[Run, Translator, int]":
    """A run, its model at a checkpoint as a translator, and the checkpoint's step."""
    from flashpoint.lab.cli.run_arguments import open_with_model
    from flashpoint.lab.data.text.pieces import load_pieces
    from flashpoint.lab.evaluation.translation import Translator
    from flashpoint.lab.runs.names import PIECES
    from flashpoint.models.reluformer import ReLUFormer

    chosen = search.Search(beam_size=beam, length_penalty=length_penalty, batch_size=batch_size)
    run, model, step = open_with_model(folder, checkpoint, device)
    if not isinstance(model, ReLUFormer):
        raise InputError(
            f"{folder} trained {type(model).__name__}, which translates nothing. There is "
            "`flashpoint evaluate`, of images `flashpoint inspect` too."
        )
    chosen = replace(chosen, is_bf16=run.config.precision == "bf16")
    pieces = load_pieces(folder / PIECES)
    data = run.config.data
    translator = Translator(model, pieces, data.length, chosen, by_segment=data.by_segment)
    return run, translator, step


@contextmanager
def _opened(file: Path | None) -> Generator[IO[bytes]]:
    """The bytes to read."""
    if file is None or str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
    with opened:
        yield opened


def _translate(translator: "Translator", lines: Iterable[bytes]) -> None:
    """All lines in their order; written as soon as some are done."""
    from flashpoint.lab.cli.run_arguments import counting

    texts = _Texts(lines)
    num_repeated = 0
    for batch in _batches(texts):
        documents = _documents(batch)
        with counting("Translating") as on_count:
            results = translator.translate(documents, on_count)
        num_repeated += sum(result.num_repeated for result in results)
        segments = (text for result in results for text in result.segments)
        out = "".join(f"{next(segments) if line.strip() else ''}\n" for line in batch)
        _write(out)
        typer.echo(f"{counted(texts.num_lines, 'line')} translated", err=True)
    if not texts.num_lines:
        typer.echo("the input is empty, nothing is translated", err=True)
    if texts.num_invalid:
        typer.echo(
            f"{counted(texts.num_invalid, 'line')} with invalid UTF-8, the first is line "
            f"{texts.first_invalid}; the wrong bytes were replaced by U+FFFD.",
            err=True,
        )
    if num_repeated:
        typer.echo(
            f"{counted(num_repeated, 'line')} translated again in smaller parts, to keep lines "
            "apart.",
            err=True,
        )


def _write(text: str) -> None:
    """To standard output, now. A reader that is gone ends the command, without a word."""
    try:
        sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(
            f"standard output cannot be written: {error.strerror}. Translations end in the middle."
        ) from error


class _Texts:
    """Lines as text; counts those that are not."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.num_lines = self.num_invalid = self.first_invalid = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.num_lines += 1
            try:
                yield line.decode("utf-8-sig" if self.num_lines == 1 else "utf-8")
            except UnicodeDecodeError:
                self.num_invalid += 1
                self.first_invalid = self.first_invalid or self.num_lines
                yield line.decode("utf-8", errors="replace")


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lines up to the end of a document, once there are enough; at twice as many, anywhere."""
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        is_end = not text.strip()
        if len(batch) >= (LINES_AT_ONCE if is_end else 2 * LINES_AT_ONCE):
            yield batch
            batch = []
    if batch:
        yield batch


def _documents(lines: Iterable[str]) -> list[list[str]]:
    """The lines between empty ones.

    Example:
        >>> _documents(["a", "b", "", " ", "c"])
        [['a', 'b'], ['c']]
    """
    documents: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            documents[-1].append(line)
        elif documents[-1]:
            documents.append([])
    return [document for document in documents if document]
