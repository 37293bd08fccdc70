"""Made-up outcomes of a study's own plan."""

from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import settings_of
from flashpoint.lab.study.registry import STUDIES

SMOKE = settings_of("smoke")
SMALL = settings_of("small", 3, "cifar10:DIR", "documents:DIR", "passages:DIR")
PAPER = settings_of("paper", 3, "DIR", "documents:DIR", "passages:DIR")


def planned(name, settings=SMALL):
    return STUDIES[name].plan(settings)


def outcomes(name, numbers, settings=SMALL):
    """A finished outcome for every trial of the plan; ``numbers`` makes them of its factors."""
    return [
        Outcome(
            name=trial.name,
            factors=trial.factors,
            status="finished",
            numbers=numbers(**trial.factors),
        )
        for trial in planned(name, settings)
    ]


def findings(name, numbers, settings=SMALL):
    return STUDIES[name].findings(outcomes(name, numbers, settings))


def words(name, numbers, settings=SMALL):
    """The verdicts' words, in order."""
    return [verdict.word for verdict in findings(name, numbers, settings).verdicts]


def noise(seed):
    """A little for each seed, the mean of three being 0."""
    return (seed - 1) * 1e-4
