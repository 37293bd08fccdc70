"""Trials done in this process, as plainly as can be."""

from importlib import import_module

from training.runs import train_quietly

from flashpoint.study.evaluations import run_evaluation
from flashpoint.study.outcome import Outcome
from flashpoint.study.plan import Measurement
from flashpoint.training import config_file


def do(trial, folder):
    """The outcome of one trial, in a folder of its own."""
    work = trial.work
    if isinstance(work, Measurement):
        module, _, name = work.function.partition(":")
        numbers = getattr(import_module(module), name)(work.options)
    else:
        out = folder / trial.name
        record, _ = train_quietly(config_file.parse(work.config, ["device=cpu"]), out)
        numbers = {**record.validation, "seconds": record.seconds, "flops": record.flops}
        for evaluation in work.afterwards:
            found = run_evaluation(evaluation.kind, out, evaluation.options)
            numbers |= {f"{evaluation.name}.{key}": value for key, value in found.items()}
    return Outcome(name=trial.name, factors=trial.factors, status="finished", numbers=numbers)
