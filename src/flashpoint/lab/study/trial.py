"""The work of one trial, in its folder, from where it stands; every runner calls this.

As a program it does the trials in the folders it is given, or those that come line by line on its
standard input, and answers each that has finished with an empty line. It ends after a failure, so
that nothing of it reaches the next trial.
"""

import gc
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeAlias

from flashpoint.errors import FlashpointError, InputError
from flashpoint.lab.runs import names, trials, writing
from flashpoint.lab.runs.failure import Preempted
from flashpoint.lab.runs.locks import InUse, locked
from flashpoint.lab.study import store
from flashpoint.lab.study.measures.registry import MEASURES
from flashpoint.lab.study.plan import Measurement, Training

if TYPE_CHECKING:
    from flashpoint.lab.training.config import TrainConfig

Ending: TypeAlias = Literal["finished", "failed", "stopped"]

FAILED, STOPPED = 1, 75
"""Exit statuses: the failure is recorded; the trial was asked to stop and can go on."""
KEEP = "--keep-checkpoints"
SECONDS_FOR_AN_ORPHAN = 60.0
"""Time for a process whose runner was killed to save its run and leave."""


def do_trial(folder: Path, *, keep_checkpoints: bool = False) -> Ending:
    """Do what ``trial.json`` says, unless it is done; say how it ended.

    A failure is recorded in the folder. What the trial prints goes to its log.

    Args:
        folder: of the trial.
        keep_checkpoints: leave them when the trial has finished.
    """
    with _logged(folder / names.LOG) as log:
        (folder / names.FAILURE).unlink(missing_ok=True)
        try:
            _do(folder, log)
        except Preempted as stop:
            _write(log, f"{stop}\n")
            return "stopped"
        except Exception as error:  # noqa: BLE001 (whatever it is, the others go on)
            is_ours = isinstance(error, FlashpointError)
            _write(log, f"error: {error}\n" if is_ours else traceback.format_exc())
            reason = str(error) if is_ours else f"{type(error).__name__}: {error}"
            trials.record_failure(folder, reason)
            return "failed"
    if not keep_checkpoints:
        trials.tidy(folder)
    return "finished"


def _do(folder: Path, log: IO[bytes]) -> None:
    work = store.read_trial(folder).work
    trials.read_record(folder)  # a broken one is said by its name
    trials.read_evaluations(folder)
    _forget_earlier_trials()
    if isinstance(work, Measurement):
        _measure(folder, work)
    else:
        _wait_until_free(folder)
        _train(folder, work, log)


def _train(folder: Path, work: Training, log: IO[bytes]) -> None:
    """Train, then look at the model of seed 0 and ask each what is not answered yet."""
    from rich.console import Console

    from flashpoint.lab.study.evaluations import run_evaluation
    from flashpoint.lab.study.powers import register_powers
    from flashpoint.lab.training import config_file, loop
    from flashpoint.lab.training.run_folder import LostError

    register_powers()
    config = _without_gpu(config_file.parse(work.config), log)
    with open(log.fileno(), "w", closefd=False) as text:
        try:
            loop.train(config, folder, console=Console(file=text, width=200))
        except LostError as error:  # whose advice, --fresh, would here remove the whole study
            raise InputError(
                f"{folder} began and has lost its checkpoints. Restore them, or remove it to do "
                "the trial again."
            ) from error
    if config.seed == 0:
        _inspect(folder, log)
    answers = trials.read_evaluations(folder)
    for evaluation in work.afterwards:
        if evaluation.name not in answers:
            _write(log, f"{evaluation.name}: {evaluation.kind} {dict(evaluation.options)}\n")
            numbers = run_evaluation(evaluation.kind, folder, evaluation.options)
            answers[evaluation.name] = {**numbers}
            writing.write_json(folder / names.EVALUATIONS, answers)


def _without_gpu(config: "TrainConfig", log: IO[bytes]) -> "TrainConfig":
    """Studies capture updates as CUDA graphs, for speed alone; on a CPU they run as they are."""
    from flashpoint.lab.training.ranks import choose_device

    if not config.is_captured or choose_device(config.device).type == "cuda":
        return config
    _write(log, f"compile='none' instead of {config.compile!r}, which needs a GPU\n")
    return replace(config, compile="none")


def _inspect(folder: Path, log: IO[bytes]) -> None:
    """Keep attention for the report; where that fails, as after NaN, the run stays as it is."""
    from flashpoint.lab.study.evaluations import inspect_attention

    try:
        inspect_attention(folder)
    except Exception as error:  # noqa: BLE001 (pictures may fail in any way; the trained run is whole)
        _write(log, f"attention is not shown: {type(error).__name__}: {error}\n")
        shutil.rmtree(folder / names.ATTENTION, ignore_errors=True)


def _measure(folder: Path, work: Measurement) -> None:
    if trials.read_record(folder):
        return
    from flashpoint.lab.training.environment import describe_environment
    from flashpoint.lab.training.ranks import choose_device

    start = time.perf_counter()
    numbers = MEASURES[work.function](work.options)
    content = {
        "numbers": dict(numbers),
        "seconds": time.perf_counter() - start,
        "environment": describe_environment(choose_device("auto"), 1),
    }
    writing.write_json(folder / names.RECORD, content)


def _forget_earlier_trials() -> None:
    """Undo what earlier trials of this process left: compiled code, memory, and its peak."""
    import torch

    if "torch._dynamo" in sys.modules:  # else nothing is compiled, and to load it takes a second
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _settle_modules() -> None:
    """Let no collection of garbage walk again through what the first trial loaded.

    All that is left of it now are modules and what they keep. A walk through them takes a fifth of
    a second, and a small trial has two or three.
    """
    if not gc.get_freeze_count():
        _forget_earlier_trials()
        gc.freeze()


def _wait_until_free(folder: Path) -> None:
    """Let a process that still holds the run save it and leave; longer than that, go on."""
    end = time.monotonic() + SECONDS_FOR_AN_ORPHAN
    while time.monotonic() < end:
        try:
            with locked(folder / names.LOCK):
                return
        except InUse:
            time.sleep(0.2)


@contextmanager
def _logged(file: Path) -> Generator[IO[bytes]]:
    """Let all that this process prints go to a file."""
    before = [os.dup(number) for number in (1, 2)]
    with file.open("ab", buffering=0) as log:
        begun = time.strftime("%Y-%m-%d %H:%M:%S")
        _write(log, f"{begun}, process {os.getpid()}\n")
        try:
            _redirect(log.fileno(), log.fileno())
            yield log
        finally:
            _redirect(*before)
            for number in before:
                os.close(number)


def _redirect(out: int, error: int) -> None:
    """Point standard output and standard error to open files."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(out, 1)
    os.dup2(error, 2)


def _write(log: IO[bytes], text: str) -> None:
    log.write(text.encode(errors="replace"))


def _incoming() -> Iterator[str]:
    """Lines of standard input; when it ends, the runner is gone and this process stops.

    It is read in a thread of its own, so that the end is seen while a trial goes on, and through
    a file of its own: processes that a trial forks close sys.stdin, and would wait for its lock.
    """
    from queue import SimpleQueue

    lines: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        with os.fdopen(os.dup(0)) as incoming:
            for line in incoming:
                lines.put(line.rstrip("\n"))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield lines.get()


def main(arguments: Iterable[str]) -> int:
    """Do trials one after the other until one does not finish."""
    words = list(arguments)
    folders = [word for word in words if word != KEEP]
    with os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        for folder in folders or _incoming():
            ending = do_trial(Path(folder), keep_checkpoints=KEEP in words)
            if ending != "finished":
                return FAILED if ending == "failed" else STOPPED
            answers.write(b"\n")
            _settle_modules()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
