"""Tables of the study speed: training steps beside the kernels within them."""

import numpy as np

from docs_numbers.speed import GPU_FILES
from docs_numbers.stored import PERCENT, Stored
from docs_numbers.tables import between, listed, numbers, spread, table

BATCHES = {16: 1024, 64: 512, 256: 128, 1024: 32}
NEAREST = {16: 49, 64: 49, 256: 196, 1024: 784}
"""Lengths that the stored benchmarks have."""
DEPTH, HEADS = 6, 3


def _steps(stored: Stored, tokens: int) -> list[np.ndarray]:
    """Milliseconds with softmax and with relu, by repeat."""
    names = ("softmax_s", "relu_s")
    return [1e3 * stored.values("speed", f"step-tokens{tokens}-", name) for name in names]


def _more(stored: Stored, tokens: int) -> float:
    """Milliseconds that a step takes more with softmax."""
    return float(np.subtract(*_steps(stored, tokens)).mean())


def step_ratios(stored: Stored) -> list[float]:
    """softmax's time over relu's, by tokens."""
    return [float(np.divide(*_steps(stored, tokens)).mean()) for tokens in BATCHES]


def kernels(stored: Stored, mode: str, length: int) -> tuple[float, float]:
    """Seconds of softmax's best and of ours, with norms of q and k, head dim 64."""
    found = stored.outcome("speed", "kernels").numbers
    case = f"NVIDIA H200|{mode}|relu|full|layer|bf16|64|{length}"
    return found[f"{case}|softmax_s"], found[f"{case}|ours_s"]


def _by_kernels(stored: Stored, tokens: int) -> float:
    """Milliseconds that softmax takes more, were a step's attention the nearest benchmark's."""
    length = NEAREST[tokens]
    rows = [row for row in stored.bench(GPU_FILES["vit"]).rows if not row.is_overhead]
    shape = next(row.case.shape for row in rows if row.case.shape.length == length)
    pairs = [kernels(stored, mode, length) for mode in ("forward", "backward")]
    one = sum(softmax - ours for softmax, ours in pairs) / (shape.batch * shape.heads * length)
    return 1e3 * one * DEPTH * HEADS * tokens * BATCHES[tokens]


@numbers("speed")
def _speed(stored: Stored) -> str:
    rows = []
    for tokens, batch in BATCHES.items():
        softmax, relu = _steps(stored, tokens)
        times = [spread(softmax, 3), spread(relu, 3), spread(softmax / relu, 3)]
        alone = f"{_by_kernels(stored, tokens):.2f} ({NEAREST[tokens]})"
        rows.append([tokens, batch, *times, f"{_more(stored, tokens):.2f}", alone])
    head = ["tokens", "batch", "softmax", "relu", "softmax over relu", "difference"]
    return table([*head, "kernels alone"], rows)


@numbers("speed-steps-more")
def _more_numbers(stored: Stored) -> str:
    per_token = {
        tokens: f"{1e6 * _more(stored, tokens) / (tokens * batch):.0f} ns"
        for tokens, batch in BATCHES.items()
    }
    shares = {
        tokens: f"{PERCENT * _by_kernels(stored, tokens) / _more(stored, tokens):.0f}%"
        for tokens in BATCHES
    }
    rows = [
        ["a token takes more with softmax", *per_token.values()],
        ["of the difference, by the kernels", *shares.values()],
    ]
    return table(["", *(f"{tokens} tokens" for tokens in BATCHES)], rows)


@numbers("speed-kernels")
def _kernels(stored: Stored) -> str:
    lengths = (49, 196, 197, 577, 784)
    rows = [
        [mode, *(f"{softmax / ours:.2f}" for softmax, ours in pairs)]
        for mode in ("forward", "backward")
        for pairs in [[kernels(stored, mode, length) for length in lengths]]
    ]
    return table(["kernels with norms, softmax over ours", *lengths], rows)


@numbers("speed-elsewhere")
def _elsewhere(stored: Stored) -> str:
    models = {row.case.model: row.speedup for row in stored.bench(GPU_FILES["vit-model"]).models}
    rates = [
        stored.run(f"cifar10/speed-patch2-{name}").record["samples_per_s"]
        for name in ("relu", "softmax")
    ]
    return listed(
        {
            "a step of this study, softmax's time over relu's": between(step_ratios(stored)),
            "a step of ViT-S/16, 196 tokens (suite `vit-model`)": f"{models['vit_s16']:.2f}",
            "a step of ViT-S/8, 784 tokens (suite `vit-model`)": f"{models['vit_s8']:.2f}",
            "a whole training, 256 tokens, batches of 128 (section CIFAR-10)": (
                f"{rates[0] / rates[1]:.2f}"
            ),
        }
    )
