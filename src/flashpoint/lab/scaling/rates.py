"""How fast one GPU is, read out of files of ``flashpoint bench`` and of longer sequences.

Three rates make an estimate: of the attention kernels by head dim and length, of one large matrix
product, and of memory. Nothing is measured here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.bench.cases import Mode, QkNorm
from flashpoint.lab.bench.result import OURS, Result, Row
from flashpoint.lab.bench.result_file import from_json
from flashpoint.lab.runs.stored import parse_json, read_text
from flashpoint.lab.scaling.lengths import is_of_lengths, result_of

DTYPE = "bf16"
FOLDER = "benchmarks/results/"
STORED = tuple(
    f"{FOLDER}{name}.json" for name in ("h200_long", "h200_vit", "h200_decode", "sequence/h200")
)
"""Of one H200; the package carries them too."""

_ADVICE = "Measure with `flashpoint bench --device cuda --json FILE`."


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Of one GPU, in bf16.

    Attributes:
        device: its name.
        sources: the files.
        rows: what was measured of relu over all keys, each with a right result.
        matrix_flops_per_s: of one large matrix product; the median over files.
        memory_bytes_per_s: the fastest at which any measured call reads and writes its tensors.
    """

    device: str
    sources: tuple[str, ...]
    rows: tuple[Row, ...]
    matrix_flops_per_s: float
    memory_bytes_per_s: float

    def attention(self, mode: Mode, dim: int, length: int, qk_norm: QkNorm = "none") -> float:
        """FLOP/s of the kernels: straight lines over the logarithm of the length.

        Beyond the measured lengths it is the rate of the nearest one.
        """
        fitting = [
            row
            for row in self.rows
            if (row.case.mode, row.case.shape.dim, row.case.qk_norm) == (mode, dim, qk_norm)
        ]
        if not fitting:
            known = sorted({row.case.shape.dim for row in self.rows if row.case.mode == mode})
            raise InputError(
                f"{', '.join(self.sources)}: no {mode} of relu in {DTYPE} with head dim {dim} "
                f"was measured, only {', '.join(map(str, known)) or 'none'}. {_ADVICE}"
            )
        return _interpolate(_points(fitting), length)

    def longest(self, dim: int, qk_norm: QkNorm = "none") -> int:
        """The longest sequence measured; 0 where there is none."""
        return max(
            (
                row.case.shape.length
                for row in self.rows
                if (row.case.shape.dim, row.case.qk_norm) == (dim, qk_norm)
            ),
            default=0,
        )


def stored_rates(root: Path | None = None) -> Rates:
    """Those of this repository; None takes the checkout, or else the installed package."""
    files = [_find(name) if root is None else root / name for name in STORED]
    return rates_of(list(map(_read, files)), [name.removeprefix(FOLDER) for name in STORED])


def read_rates(files: Sequence[Path]) -> Rates:
    """The rates of one GPU out of files of ``flashpoint bench --json``.

    A file of ``benchmarks/sequence.py`` beside them adds longer sequences.

    Raises:
        InputError: a file is none of these, or they lack a rate.
    """
    return rates_of(list(map(_read, files)), [file.name for file in files])


def _read(file: Path) -> Result:
    text = read_text(file)
    data = parse_json(text, dict[str, Any], str(file))
    return result_of(data, str(file)) if is_of_lengths(data) else from_json(text, str(file))


def rates_of(results: Sequence[Result], names: Sequence[str]) -> Rates:
    """The same out of results; ``names`` are for errors and for whoever reads an estimate."""
    devices = sorted({result.environment.device for result in results})
    if len(devices) > 1:
        raise InputError(f"{', '.join(names)} are of several devices: {', '.join(devices)}.")
    products = [
        result.matrix_flops_per_s[DTYPE]
        for result in results
        if DTYPE in result.matrix_flops_per_s
    ]
    rows = [row for result in results for row in result.rows if _counts(row)]
    moved = [rate for row in rows if (rate := row.bytes_per_s())]
    if not products or not moved:
        missing = "rows of relu" if products else "rate of a large matrix product"
        raise InputError(f"{', '.join(names)} holds no {missing} in {DTYPE}. {_ADVICE}")
    return Rates(
        device=devices[0],
        sources=tuple(names),
        rows=tuple(row for row in rows if row.case.shape.queries is None),
        matrix_flops_per_s=median(products),
        memory_bytes_per_s=max(moved),
    )


def _counts(row: Row) -> bool:
    """Whether it is a right result of relu over all keys, in the dtype."""
    case, ours = row.case, row.of(OURS)
    is_plain = case.dtype == DTYPE and case.activation == "relu" and not case.causal
    return is_plain and not row.is_overhead and ours.timing is not None and not row.is_wrong(ours)


def _points(rows: Sequence[Row]) -> list[tuple[int, float]]:
    """Lengths and rates, the median where a length was measured with several shapes."""
    by_length: dict[int, list[float]] = {}
    for row in rows:
        by_length.setdefault(row.case.shape.length, []).append(row.flops_per_s() or 0.0)
    return [(length, median(by_length[length])) for length in sorted(by_length)]


def _interpolate(points: Sequence[tuple[int, float]], length: int) -> float:
    """Linear in the logarithm of the length; constant outside.

    Example:
        >>> _interpolate([(1024, 500.0), (4096, 700.0)], 2048)
        600.0
    """
    if length <= points[0][0]:
        return points[0][1]
    for (low, slow), (high, fast) in pairwise(points):
        if length <= high:
            share = math.log2(length / low) / math.log2(high / low)
            return slow + share * (fast - slow)
    return points[-1][1]


def _find(name: str) -> Path:
    package = Path(__file__).resolve().parents[2]
    for path in (package.parents[1] / name, package / name):
        if path.is_file():
            return path
    raise UnsupportedError(
        f"{name} is neither in a checkout around Flashpoint nor in the package. Install it again, "
        "or give --rates FILE."
    )
