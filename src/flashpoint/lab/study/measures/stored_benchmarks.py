"""Times of the operator from files that ``flashpoint bench --json`` wrote.

Numbers are named "NVIDIA H200|forward|relu|full|none|bf16|64|4096|ours_s": device, mode,
activation, full or causal, norm of q and k, dtype, head dim, keys; and "softmax_s" is the best of
softmax's kernels.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flashpoint
from flashpoint.errors import InputError
from flashpoint.lab.bench.result import OURS, Result, Row
from flashpoint.lab.bench.result_file import read

FOLDER = Path("benchmarks", "results")


def measure(options: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of our operator and of softmax's best, of all rows of all stored files.

    Args:
        options: folder, of the files; without it the checkout's.
    """
    folder = Path(options["folder"]) if "folder" in options else _find()
    files = sorted(folder.glob("*.json"))
    if not files:
        raise InputError(f"{folder} holds no .json files of `flashpoint bench --json FILE`.")
    found: dict[str, float] = {}
    for file in files:
        result = read(file)
        for row in result.rows:
            found |= _times(result, row)
    return found


def _find() -> Path:
    """Where the files are: here, or in the checkout that this package is a part of."""
    checkout = Path(flashpoint.__file__).resolve().parents[2]
    for folder in (FOLDER, checkout / FOLDER):
        if folder.is_dir():
            return folder
    raise InputError(f"there is no {FOLDER} here. Run this in a checkout of Flashpoint.")


def _times(result: Result, row: Row) -> dict[str, float]:
    """Both times of a row of a usual case, about computing, not about calling, that has both."""
    ours, best = row.of(OURS).timing, row.best_of(row.best_sdpa)
    case, shape = row.case, row.case.shape
    is_told_by_name = case.is_usual and shape.queries is None and not row.is_overhead
    if not (is_told_by_name and ours and best and best.timing):
        return {}
    sight = "causal" if case.causal else "full"
    what = (case.mode, case.activation, sight, case.qk_norm)
    parts = (result.environment.device, *what, case.dtype, shape.dim, shape.length)
    name = "|".join(map(str, parts))
    return {f"{name}|ours_s": ours.median_s, f"{name}|softmax_s": best.timing.median_s}
