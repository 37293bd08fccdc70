"""Made-up outcomes of a study's own plan."""

from flashpoint.lab.study.outcome import Outcome
from flashpoint.lab.study.plan import Settings
from flashpoint.lab.study.registry import STUDIES

SMOKE = Settings(scale="smoke", seeds=1, images="digits", documents="recall:2-8,10000")
SMALL = Settings(scale="small", seeds=3, images="cifar10:DIR", documents="documents:DIR")
PAPER = Settings(scale="paper", seeds=3, images="DIR", documents="documents:DIR")


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
