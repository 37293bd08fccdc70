"""What leaving softmax gains and what it costs: the sentence and the table of the README."""

from docs_numbers.documents import FOLDER, pair_scores
from docs_numbers.images import TOKENS, cifar_top1
from docs_numbers.speed import GPU_FILES, ordinary
from docs_numbers.stored import PERCENT, Stored
from docs_numbers.tables import between, numbers, table
from flashpoint.errors import InputError


@numbers("headline")
def _headline(stored: Stored) -> str:
    steps, _ = _training_steps(stored)
    return (
        f"On an H200, attention is {_kernels(stored, 'forward')} times as fast as PyTorch's best "
        f"softmax kernels forward, {_kernels(stored, 'backward')} times backward. A training step "
        f"of a ViT is {steps} times as fast."
    )


@numbers("trade")
def _trade(stored: Stored) -> str:
    """One row for each use."""
    steps, memory = _training_steps(stored)
    lost = [
        cifar_top1(stored, patch, "softmax").mean() - cifar_top1(stored, patch, "relu").mean()
        for patch in TOKENS
    ]
    relu, softmax = (pair_scores(stored, twin)["all"]["bleu"] for twin in ("relu", "softmax"))
    found = _found(stored)
    rows = [
        [
            "training ViTs",
            f"steps {steps} times as fast, {memory} of the memory",
            f"{between(lost, 1)} points of top-1 on CIFAR-10",
            "use `relu`",
        ],
        [
            "long inputs, where attention dominates",
            f"forward {_kernels(stored, 'forward')} times as fast, "
            f"backward {_kernels(stored, 'backward')}",
            "follows softmax at lengths beyond training",
            "use `relu`",
        ],
        [
            "translating documents",
            f"{_tokens(stored):.2f} times as many tokens a second",
            f"`relu` {relu:.1f} BLEU, softmax {softmax:.1f}",
            "stay with softmax; `relu4/sum` is worth a try",
        ],
        [
            "finding one item among many",
            "as above",
            f"`relu` finds {found[0]}, `relu4/sum` {found[1]}, softmax {found[2]}",
            "do not use `relu`",
        ],
    ]
    return table(["for", "gain on an H200", "cost beside softmax", "so"], rows)


def _training_steps(stored: Stored) -> tuple[str, str]:
    """Speed-up and share of the memory, of whole ViTs."""
    speedups, shares = [], []
    for row in stored.bench(GPU_FILES["vit-model"]).models:
        ours, theirs = row.of("relu").peak, row.of("softmax").peak
        if not (row.speedup and ours and theirs and ours.extra_bytes and theirs.extra_bytes):
            raise InputError(f"{row.case.model} was not measured in full.")
        speedups.append(row.speedup)
        shares.append(ours.extra_bytes / theirs.extra_bytes)
    return between(speedups), between(shares)


def _kernels(stored: Stored, mode: str) -> str:
    """Speed-ups of relu over the lengths and head dims of the suite "long"."""
    rows = ordinary(stored.bench(GPU_FILES["long"]), mode=mode, activation="relu")
    return between([row.speedup(row.best_sdpa) or 0.0 for row in rows], 1)


def _tokens(stored: Stored) -> float:
    """Tokens a second of relu over those of softmax, at 512 tokens."""
    rows = stored.read_json(f"benchmarks/results/{FOLDER}/speed_512.json")["rows"]
    rates = {row["attention"]: row["tokens_per_s"]["median"] for row in rows}
    return rates["relu, factor"] / rates["softmax"]


def _found(stored: Stored) -> list[str]:
    """Share of answers that are right, of relu, relu4/sum and softmax."""
    trials = ("relu-alpha-1", "relu4-sum", "softmax")
    values = (
        stored.values("retrieval", f"{trial}-trained_pairs32-", "pairs128.exact").mean()
        for trial in trials
    )
    return [f"{PERCENT * value:.0f}%" for value in values]
