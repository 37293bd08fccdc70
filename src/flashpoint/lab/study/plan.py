"""A study as data: what is asked, which trials answer it, and what is made of their outcomes.

Nothing here trains or imports torch: ``trial.py`` does what a trial says, the runners say when.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flashpoint.errors import InputError
from flashpoint.lab.runs.findings import Factor, Findings
from flashpoint.lab.study.measures.registry import known_name
from flashpoint.lab.study.outcome import Outcome

Scale = Literal["smoke", "small", "paper"]
MOST_SEEDS = 1000
Kind = (
    Literal["classify", "probe", "translate", "validate", "learned", "adapt"]
    | Literal["language", "convert_language", "adapt_language"]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the user decides about a study.

    Attributes:
        scale: "smoke" shows in a minute on two cores that everything works; "small" fits a GPU in
            minutes; "paper" is the paper's own setting, on the user's data.
        seeds: runs of each kind that differ in their seed only.
        images: what image studies train on, as ``flashpoint train --data`` takes it.
        documents: the folder of the parallel documents that text studies train on.
        passages: what studies of language models train on.
    """

    scale: Scale
    seeds: int
    images: str
    documents: str
    passages: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise InputError(f"seeds={self.seeds} must lie in [1, {MOST_SEEDS}].")


SEEDS: Mapping[Scale, int] = {"smoke": 1, "small": 3, "paper": 3}
IMAGES: Mapping[Scale, str] = {"smoke": "digits", "small": "cifar10:data/cifar10", "paper": ""}
DOCUMENTS: Mapping[Scale, str] = {
    "smoke": "recall:2-8,10000",
    "small": "data/en-de-docs",
    "paper": "",
}
PASSAGES: Mapping[Scale, str] = {"smoke": "words:400", "small": "data/linux-doc", "paper": ""}
"""What a study is run with where the user says nothing."""


def settings_of(
    scale: Scale,
    seeds: int | None = None,
    images: str | None = None,
    documents: str | None = None,
    passages: str | None = None,
) -> Settings:
    """Settings with a scale's defaults where there is None; "" is a place that must be given.

    Example:
        >>> settings_of("small", seeds=5).images
        'cifar10:data/cifar10'
    """
    return Settings(
        scale=scale,
        seeds=SEEDS[scale] if seeds is None else seeds,
        images=IMAGES[scale] if images is None else images,
        documents=DOCUMENTS[scale] if documents is None else documents,
        passages=PASSAGES[scale] if passages is None else passages,
    )


def options_of(settings: Settings) -> tuple[str, ...]:
    """The options of ``flashpoint study run`` that give these settings.

    Example:
        >>> options_of(settings_of("small", seeds=5))
        ('--scale', 'small', '--seeds', '5')
    """
    usual = settings_of(settings.scale)
    options = ["--scale", settings.scale]
    if settings.seeds != usual.seeds:
        options += ["--seeds", str(settings.seeds)]
    if settings.images != usual.images:
        options += ["--images", settings.images]
    if settings.documents != usual.documents:
        options += ["--documents", settings.documents]
    if settings.passages not in (usual.passages, ""):  # files of earlier versions have none
        options += ["--passages", settings.passages]
    return tuple(options)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What is done with a trained model besides the validation of its run.

    Attributes:
        name: under which its numbers stand in ``Outcome.numbers``, as in "far.top1".
        kind: "classify" is ``flashpoint evaluate`` of a vision run, "probe" is ``flashpoint
            probe``, "translate" is ``flashpoint evaluate`` of a text run, "validate" is what
            training does at its end, "learned" reads alpha, gain and bias off the weights, "adapt"
            is ``flashpoint adapt``, "language" asks a language model, and "convert_language" and
            "adapt_language" one made of it; ``evaluations.py`` does it.
        options: of that, and changes of the run's config by dotted names before it, as
            ``{"data.image_size": 48}``.
    """

    name: str
    kind: Kind
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A run of ``flashpoint train``.

    Attributes:
        config: the whole config, as a YAML file would hold it.
        afterwards: what the trained model is asked.
    """

    config: Mapping[str, Any]
    afterwards: tuple[Evaluation, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Numbers that need no training.

    Attributes:
        function: one of ``measures/registry.py``, by name: it takes the options and gives a flat
            mapping of numbers.
        options: plain data.
        is_alone: it takes time, so that nothing else may run beside it.
    """

    function: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_alone: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", known_name(self.function))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One folder of a study.

    Attributes:
        name: of the folder, unique in the study.
        factors: where the trial stands on every axis of the study, "seed" among them if it has
            one. Figures, tables and verdicts group by these.
        work: what is done.
    """

    name: str
    factors: Mapping[str, Factor]
    work: Training | Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A question, the trials that answer it, and the function that reads the answer.

    Attributes:
        name: as ``flashpoint study run`` takes it.
        question: one line, for lists and for the head of its section.
        source: where the claim stands, as "paper 1, figure 2", or "open".
        claim: what the paper says, or what one would expect, in a sentence or two.
        plan: the trials, in the order in which they should run; the same ones for equal settings.
        findings: figures, tables and verdicts from outcomes, some of which may be missing.
        departures: in which scales are not as the paper has it, and why; empty: sizes and data
            alone.
    """

    name: str
    question: str
    source: str
    claim: str
    plan: Callable[[Settings], tuple[Trial, ...]]
    findings: Callable[[Sequence[Outcome]], Findings]
    departures: str = ""
