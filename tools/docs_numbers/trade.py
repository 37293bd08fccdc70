"""What leaving softmax gains and what it costs: the sentence and the table of the README."""

import numpy as np

from docs_numbers.documents import FOLDER, TWINS, bleu_gaps, pair_scores
from docs_numbers.images import TOKENS, cifar_top1
from docs_numbers.sentences import sentence_bleu
from docs_numbers.sharpness import power_top1
from docs_numbers.speed import GPU_FILES, ordinary
from docs_numbers.stored import PERCENT, Stored
from docs_numbers.tables import between, numbers, table
from flashpoint.errors import InputError
from flashpoint.lab.study.studies.sentences import DIRECTIONS

PENALIZED = "relu, factor and penalty"
"""ReLUFormer as that file has it."""


@numbers("headline")
def _headline(stored: Stored) -> str:
    steps, _ = _training_steps(stored)
    powers, penalized = _translation_gaps(stored)
    return (
        f"On an H200, attention is {_kernels(stored, 'forward')} times as fast as PyTorch's best "
        f"softmax kernels forward, {_kernels(stored, 'backward')} times backward. A training step "
        f"of a ViT is {steps} times as fast.\n\n"
        f"What it costs, in small models: on images `relu` loses {between(_top1_lost(stored), 1)} "
        "points and `relu4/sum` none; in translation `relu` loses "
        f"{between(penalized, 0)} BLEU and `relu4/sum` {between(powers, 0)}. On documents "
        "`relu4/sum` with softmax in cross-attention alone was ahead of softmax, in three runs."
    )


@numbers("trade")
def _trade(stored: Stored) -> str:
    """One row for each use."""
    steps, memory = _training_steps(stored)
    softmax, power = (power_top1(stored, arm).mean() for arm in ("softmax", "relu4-sum"))
    bleu = _bleu(stored)
    mixed, raised, beside = (
        f"{stored.values('sharpness', f'documents-{arm}-', 'translation.bleu').mean():.1f}"
        for arm in ("relu4-sum-softmax-in-cross", "relu4-2-sum", "softmax")
    )
    found = _found(stored)
    rows = [
        [
            "training ViTs",
            f"`relu`: steps {steps} times as fast, {memory} of the memory; `relu4/sum`: attention "
            f"{_normed_sums(stored)} times as fast",
            f"on CIFAR-10 `relu` {between(_top1_lost(stored), 1)} points of top-1 below, "
            f"`relu4/sum` level ({power - softmax:+.1f})",
            "use `relu4/sum`, or `relu` for the fastest steps",
        ],
        [
            "long inputs, where attention dominates",
            f"forward {_kernels(stored, 'forward')} times as fast, "
            f"backward {_kernels(stored, 'backward')}",
            "trained at 64 tokens and tested at 576, `relu` is as good as softmax, and both are "
            "poor; no longer images were trained",
            "try `relu` on images",
        ],
        [
            "translating",
            f"none in time: `relu` with its penalty trains at {_tokens(stored, PENALIZED)} of "
            "softmax's speed",
            f"documents: `relu` with its penalty {bleu[0]} BLEU, `relu4/sum` with qk-norm "
            f"{bleu[1]}, softmax {bleu[2]}; `relu4/sum` with softmax in cross-attention alone "
            f"{mixed} and `relu4+2/sum` {raised} beside softmax's {beside}; sentences from "
            f"German: {', '.join(sentence_bleu(stored, 'De-En'))}, the last two with qk-norm "
            f"{' and '.join(sentence_bleu(stored, 'De-En', normed=True))}",
            "keep softmax in cross-attention; try `relu4/sum` in self-attention",
        ],
        [
            "a model that softmax trained",
            "as for training",
            f"a ViT with `relu4/sum` {_kept(stored, 'converted')} points as it is, "
            f"{_kept(stored, 'adapted')} after a fifth of its training again",
            "`relu4/sum`, then `flashpoint adapt`",
        ],
        [
            "finding one item among many",
            "as for long inputs",
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


def _top1_lost(stored: Stored) -> list[float]:
    """Points of relu / L on CIFAR-10, after 60 epochs."""
    pairs = [[cifar_top1(stored, patch, one) for one in ("softmax", "relu")] for patch in TOKENS]
    pairs.append([power_top1(stored, one) for one in ("softmax", "relu-length")])
    return [float(softmax.mean() - relu.mean()) for softmax, relu in pairs]


def _translation_gaps(stored: Stored) -> tuple[list[float], list[float]]:
    """BLEU that relu4/sum loses, with and without a norm of q and k, and that ReLUFormer loses."""

    def lost(study: str, softmax: str, twin: str) -> float:
        found = (stored.values(study, f"{one}-", "translation.bleu") for one in (softmax, twin))
        return float(np.subtract(*(bleu.mean() for bleu in found)))

    at_512 = [f"{arm}-length512" for arm in ("softmax", "relu4-sum")]
    normed = [f"{arm}-qk-norm-length512" for arm in ("softmax", "relu4-sum")]
    documents = [f"documents-{arm}" for arm in ("softmax", "relu4-sum")]
    powers = [
        *(lost("document-length", *twins) for twins in (at_512, normed)),
        lost("sharpness", *documents),
    ]
    longest = [pair_scores(stored, twin)["all"]["bleu"] for twin in TWINS]
    penalized = [*bleu_gaps(stored), longest[0] - longest[1]]
    for direction in DIRECTIONS:
        normed_power, normed_softmax = map(float, sentence_bleu(stored, direction, normed=True))
        relu, power, softmax = map(float, sentence_bleu(stored, direction))
        powers += [softmax - power, normed_softmax - normed_power]
        penalized.append(softmax - relu)
    return powers, penalized


def _kernels(stored: Stored, mode: str) -> str:
    """Speed-ups of relu over the lengths and head dims of the suite "long"."""
    rows = ordinary(stored.bench(GPU_FILES["long"]), mode=mode, activation="relu")
    return between([row.speedup(row.best_sdpa) or 0.0 for row in rows], 1)


def _normed_sums(stored: Stored) -> str:
    """Speed-ups of relu4/sum with norms of q and k, at the lengths of images, both ways."""
    rows = ordinary(stored.bench(GPU_FILES["sums"]), qk_norm="layer")
    return between([row.speedup(row.best_sdpa) or 0.0 for row in rows], 1)


def _tokens(stored: Stored, attention: str) -> str:
    """Tokens a second over those of softmax, at 512 tokens, compiled."""
    rows = stored.read_json(f"benchmarks/results/{FOLDER}/speed_512_compiled.json")["rows"]
    rates = {row["attention"]: row["tokens_per_s"]["median"] for row in rows}
    return f"{rates[attention] / rates['softmax']:.2f}"


def _bleu(stored: Stored) -> list[str]:
    """At 512 tokens, of ReLUFormer, relu4/sum with a norm of q and k, and softmax."""
    return [
        f"{stored.values('document-length', f'{arm}-length512-', 'translation.bleu').mean():.1f}"
        for arm in ("relu", "relu4-sum-qk-norm", "softmax")
    ]


def _kept(stored: Stored, stage: str) -> str:
    """Points of top-1 that a converted ViT has more than softmax."""
    found = stored.values("adapt", "softmax-", f"relu4_sum_20.{stage}").mean()
    return f"{PERCENT * found - stored.top1('adapt', 'softmax').mean():+.2f}"


def _found(stored: Stored) -> list[str]:
    """Share of answers that are right, of relu, relu4/sum and softmax."""
    trials = ("relu-alpha-1", "relu4-sum", "softmax")
    values = (
        stored.values("retrieval", f"{trial}-trained_pairs32-", "pairs128.exact").mean()
        for trial in trials
    )
    return [f"{PERCENT * value:.0f}%" for value in values]
