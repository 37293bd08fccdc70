"""Tables of translated sentences, in both directions."""

import numpy as np

from docs_numbers.stored import Stored
from docs_numbers.tables import by_seed, difference, numbers, spread, table
from flashpoint.lab.study.settings import NORMED, RELU4_SUM, name_of
from flashpoint.lab.study.studies.sentences import DIRECTIONS, KINDS, PAPER_BLEU, VANILLA, WHOLE


def sentence_bleu(stored: Stored, direction: str, *, normed: bool = False) -> list[str]:
    """Of ReLUFormer, relu4/sum and softmax; of the last two if q and k are normed."""
    normed_kinds = (NORMED[RELU4_SUM], NORMED[VANILLA])
    kinds = normed_kinds if normed else (WHOLE, RELU4_SUM, VANILLA)
    found = (_values(stored, direction, kind, "translation.bleu") for kind in kinds)
    return [f"{values.mean():.1f}" for values in found]


def _values(stored: Stored, direction: str, kind: str, number: str) -> np.ndarray:
    """By seed, of one kind of attention in one direction."""
    return stored.values("sentences", f"{_trial(direction, kind)}-", number)


def _trial(direction: str, kind: str) -> str:
    """How names of these trials begin."""
    return name_of({"direction": direction, "attention": kind})


@numbers("sentences")
def _sentences(stored: Stored) -> str:
    rows = []
    for direction in DIRECTIONS:
        softmax = _values(stored, direction, VANILLA, "translation.bleu")
        for kind in KINDS:
            if not stored.has("sentences", f"{_trial(direction, kind)}-"):
                continue
            bleu, loss = (
                _values(stored, direction, kind, number) for number in ("translation.bleu", "loss")
            )
            beside = ["", ""] if kind == VANILLA else difference(bleu, softmax)
            paper = PAPER_BLEU.get(kind, "") if direction == "De-En" else ""
            rows.append(
                [direction, kind, by_seed(bleu, ".1f"), spread(bleu), *beside, spread(loss), paper]
            )
    head = ["direction", "attention", "BLEU by seed", "BLEU", "less softmax", "interval"]
    return table([*head, "validation loss", "the paper's BLEU"], rows)
