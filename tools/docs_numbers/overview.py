"""Tables over all studies: what came out, how they were run, and what the README quotes."""

from collections.abc import Callable, Sequence

import numpy as np

from docs_numbers.documents import TWINS, bleu_gaps, pair_scores
from docs_numbers.images import TOKENS, cifar_top1
from docs_numbers.sentences import sentence_bleu
from docs_numbers.sharpness import power_top1
from docs_numbers.steps import step_ratios
from docs_numbers.stored import PERCENT, Stored
from docs_numbers.tables import Generator, between, claims, listed, numbers, table
from flashpoint.lab.report.verdicts import PAST, count_words
from flashpoint.lab.runs.findings import Verdict
from flashpoint.lab.runs.run_files import RunFiles

DOCUMENTS = "documents-from-english-to-german"
GLANCE: dict[str, tuple[str, Callable[[list[float], Stored], str]]] = {
    "scaling": (
        "sizes",
        lambda v, _: (
            f"in the mean relu / L is at most {-v[0]:.1f} points below softmax at any size; "
            "three seeds do not decide"
        ),
    ),
    "length-power": (
        "the-power-of-the-length-and-the-activation",
        lambda v, _: (
            f"relu is best with alpha near 1; without an activation {v[2]:.1f} points are lost"
        ),
    ),
    "qk-norm": (
        "qk-layernorm",
        lambda v, _: f"relu loses {-v[0]:.1f} points without it, squared relu {-v[1]:.1f}",
    ),
    "gate": (
        "a-gate",
        lambda v, _: f"a gate does not replace the factor; a step takes {v[1]:.1f}% longer",
    ),
    "memory-slots": (
        "slots-of-the-feed-forward-memory",
        lambda v, _: "a relu memory beats softmax's from 128 to 2048 slots and falls back at 4096",
    ),
    "relu-attention": (
        DOCUMENTS,
        lambda v, _: (
            f"the penalty gains {v[2]:.1f} BLEU; ReLUFormer stays {-v[3]:.1f} behind softmax"
        ),
    ),
    "document-length": (
        DOCUMENTS,
        lambda v, stored: (
            f"ReLUFormer is {between(bleu_gaps(stored), 0)} BLEU behind at every length; "
            f"relu4/sum with a norm of q and k is {-v[4]:.1f} behind at 512 tokens"
        ),
    ),
    "sentences": (
        "sentences-in-both-directions",
        lambda v, _: (
            f"relu4/sum is {-v[4]:.1f} BLEU behind softmax in the worse direction, ReLUFormer "
            f"{-v[3]:.1f}; where both have a norm of q and k, relu4/sum {-v[6]:.1f}"
        ),
    ),
    "variance": (
        "variance-at-initialization",
        lambda v, _: f"the closed form holds; a layer has {v[2]:.0f} where paper 2's lemma says 1",
    ),
    "learned-length": (
        "a-learned-power-of-the-length",
        lambda v, _: f"alpha learns its way from 0.5 to {v[2]:.2f}, not to 1: start at 1",
    ),
    "longer-than-trained": (
        "more-tokens-than-in-training",
        lambda v, _: f"divide by the keys seen, not by the training length: {v[1]:.0f} points",
    ),
    "retrieval": (
        "finding-one-key-among-many",
        lambda v, _: (
            "relu follows softmax up to the lengths of training; at four times as many pairs "
            f"it is {-v[2]:.0f} to {-v[3]:.0f} points behind, relu4/sum {-v[5]:.1f}"
        ),
    ),
    "sharpness": (
        "power-sum-and-cross-attention",
        lambda v, _: (
            f"relu4/sum is level with softmax on CIFAR-10 ({v[2]:+.1f} points) and, in the mean, "
            f"in recall ({v[1]:+.1f}); on documents, with softmax in cross-attention alone, its "
            f"loss is {-v[9]:.2f} nats lower, and raised scores take {-v[-1]:.2f} off the mean"
        ),
    ),
    "starts": (
        "how-relu4sum-starts",
        lambda v, _: (
            f"a LayerNorm of q and k takes {-v[0]:.2f} nats off relu4/sum in the mean, which "
            "three seeds do not decide; no other start helps"
        ),
    ),
    "adapt": (
        "a-vit",
        lambda v, _: (
            "a softmax ViT, converted and given a fifth of its training again: "
            f"{v[4]:+.2f} points with relu4/sum, {v[1]:+.2f} with relu"
        ),
    ),
    "adapt-language": (
        "a-language-model",
        lambda v, _: (
            f"after a fifth of its training again, a softmax GPT-2 has lost {-v[6]:.2f} nats to "
            f"relu4/sum and {-v[1]:.2f} to relu; every second layer alone costs {-v[7]:.2f} and "
            f"{-v[2]:.2f}"
        ),
    ),
    "speed": (
        "does-the-gain-arrive",
        lambda _, stored: (
            f"a training step is {between(step_ratios(stored))} times as fast, most "
            "at the fewest tokens"
        ),
    ),
}
"""By study that is stored: its heading in results.md, and a sentence of its verdicts' values."""


def _all_verdicts(stored: Stored) -> list[Verdict]:
    return [verdict for study in GLANCE for verdict in stored.judged(study)]


@numbers("glance")
def _glance(stored: Stored) -> str:
    rows = []
    for study, (anchor, sentence) in GLANCE.items():
        words = [verdict.word for verdict in stored.judged(study)]
        found = [verdict.value for verdict in stored.verdicts(study)]
        values = [float("nan") if value is None else value for value in found]
        rows.append([f"[{study}](#{anchor})", *map(words.count, PAST), sentence(values, stored)])
    return table(["study", *PAST.values(), "what came out"], rows)


@numbers("verdicts")
def _verdicts(stored: Stored) -> str:
    found = _all_verdicts(stored)
    return f"{len(GLANCE)} studies, {len(found)} claims: {count_words(found)}."


@numbers("study-runs")
def _runs(stored: Stored) -> str:
    rows = []
    for study in GLANCE:
        section = stored.section(study)
        commits = dict.fromkeys(str(one["commit"])[:7] for one in section.environments)
        scope = section.scope.partition(": ")[2]
        trials = len(stored.outcomes(study))
        rows.append([study, trials, scope, ", ".join(f"`{one}`" for one in commits)])
    return table(["study", "trials", "what was run", "commits"], rows)


@numbers("equal-runs")
def _equal_runs(stored: Stored) -> str:
    """Runs of equal configs and seeds, by the same code, in several studies."""
    alike, apart = [], []
    for group in _repeated(stored):
        curves = [[row["loss"] for row in (*run.train, *run.validation)] for run in group]
        (alike if all(one == curves[0] for one in curves) else apart).append(group)
    images = [group for group in alike if group[0].config["task"] == "vision"]
    largest = {
        step: max(float(np.ptp(_losses_at(group, step))) for group in apart)
        for step in (100, 2000)
    }
    return listed(
        {
            "image configs that ran in several studies": f"{len(images)}, all with equal curves",
            "text configs with equal curves (ReLUFormer)": f"{len(alike) - len(images)}",
            "text configs with other curves (softmax)": f"{len(apart)}",
            "their training losses differ": (
                f"by up to {largest[100]:.4f} at update 100, {largest[2000]:.3f} at update 2,000"
            ),
        }
    )


def _repeated(stored: Stored) -> list[list[RunFiles]]:
    groups: dict[tuple[str, str], list[RunFiles]] = {}
    for study in sorted(GLANCE):
        for run in stored.section(study).runs:
            key = (repr(run.config), run.record["environment"]["commit"])
            groups.setdefault(key, []).append(run)
    return [group for group in groups.values() if len(group) > 1]


def _losses_at(group: Sequence[RunFiles], step: int) -> list[float]:
    return [row["loss"] for run in group for row in run.train if row["step"] == step]


@numbers("quality")
def _quality(stored: Stored) -> str:
    """The costs of leaving softmax, in the order of the columns."""
    tokens = " and ".join(map(str, TOKENS.values()))
    top1 = {
        twin: ", ".join(f"{cifar_top1(stored, patch, twin).mean():.1f}%" for patch in TOKENS)
        for twin in TWINS
    }
    bleu = {twin: f"{pair_scores(stored, twin)['all']['bleu']:.1f}" for twin in TWINS}
    short = [
        stored.values("document-length", f"{arm}-length512-", "translation.bleu").mean()
        for arm in ("relu", "relu4-sum-qk-norm", "softmax")
    ]
    mixed, raised, beside = (
        f"{stored.values('sharpness', f'documents-{arm}-', 'translation.bleu').mean():.1f}"
        for arm in ("relu4-sum-softmax-in-cross", "relu4-2-sum", "softmax")
    )
    kept = [
        PERCENT * stored.values("adapt", "softmax-", number).mean()
        for number in ("relu_20.adapted", "relu4_sum_20.adapted", "top1")
    ]
    recalled = [
        PERCENT * stored.values("retrieval", f"{trial}-trained_pairs32-", "pairs128.exact").mean()
        for trial in ("relu-alpha-1", "relu4-sum", "softmax")
    ]
    powers = [power_top1(stored, arm).mean() for arm in ("relu-length", "relu4-sum", "softmax")]
    rows = [
        [f"CIFAR-10, {tokens} tokens: top-1", top1["relu"], "", top1["softmax"]],
        ["the same recipe run again, 64 tokens: top-1", *(f"{one:.1f}%" for one in powers)],
        ["English to German documents, 8,000 updates: BLEU", bleu["relu"], "", bleu["softmax"]],
        [
            "the same, 2,000 updates, 512 tokens: BLEU (relu4/sum with qk-norm)",
            *(f"{bleu:.1f}" for bleu in short),
        ],
        ["the same, relu4/sum with softmax in cross-attention alone: BLEU", "", mixed, beside],
        ["the same, relu4+2/sum everywhere, no norms: BLEU", "", raised, beside],
        ["German to English sentences, 20 epochs: BLEU", *sentence_bleu(stored, "De-En")],
        ["the same with qk-norm", "", *sentence_bleu(stored, "De-En", normed=True)],
        ["English to German sentences, 20 epochs: BLEU", *sentence_bleu(stored, "En-De")],
        ["the same with qk-norm", "", *sentence_bleu(stored, "En-De", normed=True)],
        [
            "a softmax ViT converted, a fifth of its training again: top-1",
            *(f"{top1:.1f}%" for top1 in kept),
        ],
        ["a key among 128, trained on 32: found", *(f"{share:.0f}%" for share in recalled)],
    ]
    return table(["trained by one recipe", "relu", "relu4/sum", "softmax"], rows)


def _claims_of(study: str) -> Generator:
    return lambda stored: claims(stored, study)


for _study in GLANCE:
    numbers(f"{_study}-claims")(_claims_of(_study))
