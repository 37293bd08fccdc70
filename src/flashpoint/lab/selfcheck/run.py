"""One case: computed three ways, and judged."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flashpoint.errors import FlashpointError
from flashpoint.lab.selfcheck.case import DTYPES, Case, Scored
from flashpoint.lab.selfcheck.evaluate import RESULTS, attend, evaluate, evaluate_parts
from flashpoint.lab.selfcheck.judge import Sample, Share, Sums, judge
from flashpoint.lab.selfcheck.values import (
    Values,
    draw,
    dtype_of,
    lay,
    layouts_of,
    rounded,
    steepness,
)
from flashpoint.ops.activation import STEEP

MORE_DRAWS = 14
BEYOND_LUCK = 1000.0  # no chance makes a budget that small
LARGEST_FP16 = 2.0**13  # of results; it ends at 2**16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case.

    Attributes:
        index, line: which case.
        ratio: the share of its error budget that was used; infinite where it raised.
        detail: of a miss or a refusal, what happened, in one line.
        is_refused: the call was refused in one line, so that there is nothing to judge.
    """

    index: int
    line: str
    ratio: float = 0.0
    detail: str = ""
    is_refused: bool = False

    @property
    def is_miss(self) -> bool:
        """Whether the machine computed wrong."""
        return not self.ratio <= 1.0


def run_case(case: Case, device: torch.device) -> Outcome:
    """Compute a case's calls and judge them; what raises is a miss, a one-line refusal none."""
    try:
        share = _judge_case(case, device)
    except FlashpointError as error:
        return Outcome(case.index, str(case), detail=str(error), is_refused=True)
    except Exception as error:  # noqa: BLE001 (whatever breaks here is a finding)
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return Outcome(case.index, str(case), math.inf, said)
    detail = str(share) if share.ratio > 1.0 else ""
    return Outcome(case.index, str(case), share.ratio, detail)


def _judge_case(case: Case, device: torch.device) -> Share:
    """The share of the budget of both calls, each by itself.

    A budget that rests on few numbers can be small by chance: the reference may happen to round
    well. So one that is missed is asked again of 16 draws together, by the same rule: what was
    wrong stays wrong, while the reference's error is no longer a matter of luck.
    """
    sums = sums_of(case)
    samples = [_sample(case, call, device) for call in range(_num_calls(case, device))]
    worst = max((judge([sample], sums) for sample in samples), key=lambda share: share.ratio)
    if not 1.0 < worst.ratio < BEYOND_LUCK:
        return worst
    samples += [_sample(case, 2 + number, device) for number in range(MORE_DRAWS)]
    return judge(samples, sums)


def _num_calls(case: Case, device: torch.device) -> int:
    """Two, for the second may be a replay; in Triton's interpreter nothing is."""
    return 1 if case.impl == "triton" and device.type == "cpu" else 2


def _sample(case: Case, call: int, device: torch.device) -> Sample:
    """A call by the implementation, by the reference in fp64 and by the reference at its dtype."""
    values = draw(case, call, device)
    _fit(case, values)
    words = dict(zip(values, layouts_of(case, values, call), strict=True))
    if "dsums" in values:  # one number may be repeated
        values["dsums"] = lay(values["dsums"], words["dsums"])
    narrow = {name: x.to(dtype_of(case, name)) for name, x in values.items()}
    laid = {name: lay(x, words[name]) for name, x in narrow.items()}
    got, exact = evaluate(case, laid, case.impl), evaluate(case, values, "reference")
    parts = evaluate_parts(case, values, exact)
    if case.dtype == "fp64":
        return Sample(got, exact, _as_if_rounded(case, values, exact), parts)
    return Sample(got, exact, evaluate(case, narrow, "reference"), parts)


def _as_if_rounded(case: Case, values: Values, exact: dict[str, Tensor]) -> dict[str, Tensor]:
    """Results in fp64 with the error that fp64 has, which nothing here can measure.

    Errors go with the epsilon, so those of the reference in fp32 tell: they are larger by the
    ratio of the two, also where h' is saturated or a norm divides by next to nothing.
    """
    narrow = {name: x if x.dtype == torch.bool else x.float() for name, x in values.items()}
    ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    coarse = evaluate(case, narrow, "reference")
    return {name: torch.lerp(x, coarse[name].double(), ratio) for name, x in exact.items()}


def _fit(case: Case, values: Values) -> None:
    """Make fp16 hold the results, and the sums' gradient as large as what do makes of weights.

    Results go with v and with the gradients given, which shrink by powers of two.
    """
    is_half = case.dtype == "fp16"
    v = values["qkv"][:, :, 2] if "qkv" in values else values["v"]
    if is_half:
        v.copy_(rounded(v * _shrink(_largest(attend(case, values)[0])), torch.float16))
    if "dsums" in values:
        values["dsums"].mul_(_factors(case, values, v))
    if is_half:
        exact = evaluate(case, values, "reference")
        shrink = _shrink(max(_largest(x) for name, x in exact.items() if name not in RESULTS))
        for name in values.keys() & {"do", "dsums"}:
            values[name].mul_(shrink)
    for name in values.keys() & {"do", "dsums"}:
        values[name].copy_(rounded(values[name], dtype_of(case, name)))


def _factors(case: Case, values: Values, v: Tensor) -> float | Tensor:
    """How large a weight's gradient is for a do of 1, row by row where these are divided."""
    size = v.abs().mean().item() if v.numel() else 1.0
    length = max(case.Lk, 1) if isinstance(case.length, str) else case.length
    if case.normalize == "length":
        return size * length**-case.alpha
    divisor = attend(case, values)[1] + case.floor * length
    return size / divisor.masked_fill(divisor == 0, 1)


def _largest(x: Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0


def _shrink(size: float) -> float:
    return 2.0 ** min(0, math.floor(math.log2(LARGEST_FP16 / size))) if size else 1.0


def sums_of(case: Case) -> Sums:
    """How long the sums of a case are, by result."""
    group = case.Hq // max(case.Hkv, 1)
    chained = group * case.Lq + case.Lk + case.D + case.Dv
    if case.normalize == "sum" or case.activation in STEEP:
        # Few weights make up a row, so that their scores' own errors are left to chance, too; and
        # scores made again in backward differ from those of the sums.
        chained += math.ceil(steepness(case) ** 2 * case.D)
    scores = case.B * case.Hq * case.Lq * case.Lk
    on_top: dict[str, int] = dict.fromkeys(("o", "sums", "dq", "dk", "dv", "dqkv"), chained)
    on_top |= dict.fromkeys(("dq_gain", "dk_gain"), case.B * case.Lq * case.Hq)
    for name, given in (("dbias", case.bias), ("dmask", case.mask)):
        if isinstance(given, Scored):
            own = max(math.prod(given.shape), 1)
            on_top[name] = scores // own + chained
    return Sums(group, chained, on_top, DTYPES[case.dtype])
