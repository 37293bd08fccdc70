"""Every split of the GPUs and every strategy, and the fastest that fits."""

from dataclasses import asdict, dataclass
from typing import Any

from flashpoint.errors import InputError, check_choice
from flashpoint.lab.runs.formats import counted
from flashpoint.lab.scaling.estimate import Choice, Estimate, Setting, divisors, estimate
from flashpoint.lab.scaling.traffic import ALONE, HABITS, why_not

STRATEGIES = tuple(HABITS)
_ALONE_ONLY = "one GPU a sample has nothing to send, and no strategy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What was asked and what came of it.

    Attributes:
        estimates: one for each split and strategy, data first; with activations kept where they
            fit, else recomputed.
        refused: why other splits and strategies cannot be, in words.
    """

    setting: Setting
    estimates: tuple[Estimate, ...]
    refused: tuple[str, ...]

    @property
    def best(self) -> Estimate | None:
        """The fastest that fits; ties go to the earlier. None if none fits."""
        fitting = [found for found in self.estimates if found.fits]
        return min(fitting, key=lambda found: found.seconds.step, default=None)

    @property
    def smallest(self) -> Estimate:
        """The one that needs least memory."""
        return min(self.estimates, key=lambda found: found.memory.total)


def survey(
    setting: Setting,
    *,
    sequence: int | None = None,
    strategy: str | None = None,
    recomputes: bool | None = None,
) -> Survey:
    """Estimate what is possible.

    Args:
        setting: the model, the GPUs and their rates.
        sequence: ranks that share a sample; None: every divisor of the number of GPUs.
        strategy: the only one to look at.
        recomputes: activation checkpointing, yes or no; None: where the rest does not fit.

    Raises:
        InputError: nothing that was asked for is possible.
    """
    if strategy is not None:
        check_choice("strategy", strategy, STRATEGIES)
    found: list[Estimate] = []
    refused: dict[str, list[int]] = {}
    for ranks in [sequence] if sequence else divisors(setting.num_gpus):
        problem = _why_no_split(setting, ranks)
        if problem:
            refused.setdefault(problem[0], []).append(problem[1])
            continue
        for name in _strategies(ranks, strategy):
            problem = why_not(name, setting.load, ranks)
            if problem:
                refused.setdefault(f"{name}: {problem}", []).append(ranks)
            else:
                found.append(_estimate(setting, ranks, name, recomputes))
    reasons = tuple(reason.format(_listed(counts)) for reason, counts in refused.items())
    if not found:
        raise InputError(f"{next(iter(reasons), _ALONE_ONLY)}. {_advice(strategy)}")
    return Survey(setting=setting, estimates=tuple(found), refused=reasons)


def parallel_of(choice: Choice) -> dict[str, int | str]:
    """The section ``parallel`` of a training's config.

    Example:
        >>> parallel_of(Choice(data=2, sequence=8, strategy="ring", recomputes=False))
        {'data': 2, 'sequence': 8, 'strategy': 'ring'}
    """
    if choice.sequence == 1:
        return {"data": choice.data}
    return {"data": choice.data, "sequence": choice.sequence, "strategy": choice.strategy}


def to_plain(found: Survey) -> dict[str, Any]:
    """As plain data for JSON, with sums and the best one marked."""
    setting, best = found.setting, found.best
    return {
        "estimate": True,
        "model": setting.load.name,
        "tokens": setting.tokens,
        "batch": setting.batch,
        "gpus": setting.num_gpus,
        "memory_bytes": setting.memory_bytes,
        "links": asdict(setting.links),
        "rates": {
            "device": setting.rates.device,
            "files": list(setting.rates.sources),
            "matrix_flops_per_s": setting.rates.matrix_flops_per_s,
            "memory_bytes_per_s": setting.rates.memory_bytes_per_s,
        },
        "parallel": parallel_of(best.choice) if best else None,
        "estimates": [_plain(one, one is best) for one in found.estimates],
        "refused": list(found.refused),
    }


def _plain(one: Estimate, is_best: bool) -> dict[str, Any]:
    data = asdict(one)
    data["seconds"] |= {"waiting": one.seconds.waiting, "step": one.seconds.step}
    data["memory"]["total"] = one.memory.total
    return {**data, "best": is_best}


def _estimate(setting: Setting, ranks: int, name: str, recomputes: bool | None) -> Estimate:
    """Activations are kept if they fit, unless the caller says."""
    data = setting.num_gpus // ranks
    ways = [recomputes] if recomputes is not None else [False, True]
    made = [
        estimate(setting, Choice(data=data, sequence=ranks, strategy=name, recomputes=way))
        for way in ways
    ]
    return next((one for one in made if one.fits), made[-1])


def _strategies(ranks: int, asked: str | None) -> tuple[str, ...]:
    if ranks == 1:
        return () if asked else (ALONE,)
    return (asked,) if asked else STRATEGIES


def _why_no_split(setting: Setting, ranks: int) -> tuple[str, int] | None:
    """What does not divide, with a gap for the number that follows; None if all does."""
    data = setting.num_gpus // ranks
    if setting.num_gpus % ranks:
        return f"{counted(setting.num_gpus, 'GPU')} cannot be divided into groups of {{}}", ranks
    if setting.tokens % ranks:
        return f"{counted(setting.tokens, 'token')} cannot be divided among {{}} ranks", ranks
    if setting.batch % data:
        return f"{counted(setting.batch, 'sample')} cannot be divided among {{}} groups", data
    return None


def _listed(counts: list[int]) -> str:
    """In words.

    Example:
        >>> _listed([32, 64, 128])
        '32, 64 or 128'
    """
    *others, last = map(str, counts)
    return f"{', '.join(others)} or {last}" if others else last


def _advice(strategy: str | None) -> str:
    if strategy == "ulysses":
        return "Take fewer ranks with --sequence, or strategy ring, gather or reduce."
    return "Change --gpus, --sequence, --tokens or --batch."
