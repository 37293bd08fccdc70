"""What a study's numbers rest on, in a line: scale, data, models, length of training, seeds."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any

from flashpoint.lab.data.small_sets import PREPARED
from flashpoint.lab.runs.formats import count
from flashpoint.lab.runs.run_files import RunFiles, number
from flashpoint.lab.study.outcome import Outcome

MODELS = {"vit": "ViT", "reluformer": "ReLUFormer", "gpt2": "GPT-2"}
"""Names of configs that stand for no size."""
NO_TRAINING = "measurements without training"


def describe_scope(scale: str, runs: Sequence[RunFiles], outcomes: Sequence[Outcome]) -> str:
    """The line, from what is stored; ranges where trials differ.

    Args:
        scale: of the study.
        runs: of its trials that trained; without any, it measured.
        outcomes: of all its trials.

    Example:
        >>> seeds = [Outcome(name=str(i), factors={"seed": i}, status="finished") for i in (0, 1)]
        >>> describe_scope("small", [], seeds)
        'small: measurements without training, 2 seeds'
    """
    parts = [*_data(runs), _models(runs), *_lengths(runs)] if runs else [NO_TRAINING]
    return f"{scale}: {', '.join([*parts, *_seeds(outcomes)])}"


def name_data(place: str) -> str:
    """What a config trains on, without the folder where it lies.

    Example:
        >>> name_data("cifar10:data/cifar10"), name_data("data/en-de-docs"), name_data("recall:8")
        ('cifar10', 'en-de-docs', 'recall:8')
    """
    kind, colon, rest = place.partition(":")
    if kind in PREPARED:
        return kind
    return (PurePath(place).name or place) if not colon else f"{kind}:{PurePath(rest).name}"


def _data(runs: Iterable[RunFiles]) -> list[str]:
    places = (str(_of(run, "data", "train")) for run in runs)
    return list(dict.fromkeys(name_data(place) for place in places if place))


def _models(runs: Sequence[RunFiles]) -> str:
    stored = dict.fromkeys(str(_of(run, "model", "name")) for run in runs)
    names = " and ".join(MODELS.get(name, name) for name in stored)
    found = [number(run.record, "num_parameters") for run in runs]
    sizes = [size for size in found if size is not None]
    return f"{names} of {_span(sizes, count)} parameters" if sizes else names


def _lengths(runs: Sequence[RunFiles]) -> list[str]:
    """In epochs where configs count those, else in steps."""
    found = {unit: [number(run.config, unit) for run in runs] for unit in ("epochs", "steps")}
    return [
        f"{_span([size for size in sizes if size is not None], '{:,.6g}'.format)} {unit}"
        for unit, sizes in found.items()
        if any(sizes)
    ]


def _seeds(outcomes: Iterable[Outcome]) -> list[str]:
    """Of trials that differ in nothing else, as far as they are finished."""
    groups = Counter(
        tuple(item for item in outcome.factors.items() if item[0] != "seed")
        for outcome in outcomes
        if outcome.status == "finished" and "seed" in outcome.factors
    )
    if not groups:
        return []
    most = max(groups.values())
    return [f"{_span(groups.values(), str)} {'seed' if most == 1 else 'seeds'}"]


def _span(values: Iterable[float], show: Callable[[Any], str]) -> str:
    """The least and the most, once where they look alike."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys([show(ordered[0]), show(ordered[-1])]))


def _of(run: RunFiles, section: str, name: str) -> object:
    return run.config.get(section, {}).get(name, "")
