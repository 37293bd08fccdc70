"""What a figure of speed-ups shows, as plain data: a line a case, with forward and backward."""

from dataclasses import dataclass, replace

from flashpoint.errors import InputError
from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.result import OURS, Result, Row

USUAL_DIM = 64
"""Head dim that labels leave out."""

LONGER = {
    "mask": "bool mask",
    "bias": "bias without gradient",
    "learned bias": "bias with gradient",
    "launched": "launched one by one",
}
"""Words of cases that say too little by themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speedup:
    """How many times as fast as the best rival, who that is, and what is promised."""

    value: float
    rival: str
    must: float | None

    @property
    def is_kept(self) -> bool:
        """Whether nothing is promised beyond it."""
        return self.must is None or self.value >= self.must


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A case in both directions; None where one was not measured, or has no rival."""

    label: str
    forward: Speedup | None
    backward: Speedup | None


def arrange_lines(result: Result) -> list[Line]:
    """The cases of a result in their order, with what is measured of each."""
    found: dict[Case, dict[str, Speedup]] = {}
    for row in result.rows:
        speedup = _speedup(row)
        if speedup is not None and not row.is_overhead:
            is_backward = row.case.mode in ("backward", "training")
            modes = found.setdefault(replace(row.case, mode="forward"), {})
            modes["backward" if is_backward else "forward"] = speedup
    if not found:
        raise InputError("--plot has nothing to draw: no case has a speed-up.")
    return [
        Line(label=label(case), forward=modes.get("forward"), backward=modes.get("backward"))
        for case, modes in found.items()
    ]


def label(case: Case) -> str:
    """What a case is, for people who do not know its shape by heart.

    Example:
        >>> from flashpoint.lab.bench.cases import Shape
        >>> label(Case(shape=Shape(1, 8, 2048, 128), dtype="bf16", mode="forward", causal=True))
        'causal, head dim 128, 2k tokens'
    """
    shape = case.shape
    group, length = shape.heads // shape.num_kv_heads, shape.length
    words = {
        case.dtype: case.dtype != "bf16",
        **{LONGER.get(word, word): True for word in case.specials},
        f"head dim {shape.dim}": shape.dim != USUAL_DIM,
        f"GQA {group}": group > 1,
        f"{length // 1024}k tokens" if length % 1024 == 0 else f"{length:,} tokens": True,
    }
    return ", ".join(word for word, holds in words.items() if holds)


def _speedup(row: Row) -> Speedup | None:
    """Of a row with a right result of ours and of a rival."""
    value, best = row.speedup(row.rivals), row.best_of(row.rivals)
    if value is None or best is None or row.is_wrong(row.of(OURS)):
        return None
    must = row.limits.speed[0].must if row.limits.speed else None
    return Speedup(value=value, rival=best.provider, must=must)
