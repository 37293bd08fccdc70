"""Key-value recall as parallel text, generated: a source is pairs and a query, a target a value.

A source reads p1 p2 ... pN kI, its target vI, where the pair pI is one character of its own for
every key with every value. A model learns what pairs hold and to find one by its key, not which
value stands beside which key. (With a key and a value as two characters, and 64 values, most runs
of tiny models, all with softmax among them, stayed with a guess for thousands of updates.) Keys
of a source differ, values need not. Queries, the keys alone, are characters too. ``NUM_PIECES``
subword pieces have room for these characters and for no longer pieces: each is one piece, if the
samples to train on have it often enough, as 10,000 of 2 to 8 pairs do.
"""

import hashlib
import re
from dataclasses import dataclass

import numpy as np

from flashpoint.errors import InputError, describe
from flashpoint.lab.data.text.documents import Document, Documents

NUM_KEYS = 128
VALUES = "ABCDEFGH"
NUM_TRAINING = 100_000
MAX_TRAINING = 10_000_000
NUM_HELD_OUT = 1_000
NUM_PIECES = 256 + 5 + 1 + NUM_KEYS * len(VALUES) + NUM_KEYS + len(VALUES)
"""Bytes, special pieces, the space in front of a text, and the characters."""

FIRST_PAIR = 0x4E00  # of the Chinese characters
FIRST_QUERY = 0xAC00  # of the Korean ones
_PLACE = re.compile(r"(\d{1,40})(?:-(\d{1,40}))?(?:,(\d{1,40}))?")


@dataclass(frozen=True, slots=True)
class Recall:
    """What is generated.

    Attributes:
        fewest, most: pairs of a source; its number is drawn from them, its logarithm evenly.
        num_training: sources to train on.
    """

    fewest: int
    most: int
    num_training: int = NUM_TRAINING

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most <= NUM_KEYS:
            raise InputError(
                f"recall:{self.fewest}-{self.most} must name numbers of pairs that rise from 1 to "
                f"{NUM_KEYS}, the keys there are."
            )
        if not 1 <= self.num_training <= MAX_TRAINING:
            raise InputError(
                f"recall must have 1 to {MAX_TRAINING} samples to train on, not "
                f"{describe(self.num_training)}."
            )

    @classmethod
    def parse(cls, text: str) -> "Recall":
        """From "16", "2-64", or "2-64,5000": pairs, and how many samples to train on.

        Example:
            >>> Recall.parse("2-64").most
            64
        """
        match = _PLACE.fullmatch(text)
        if match is None:
            raise InputError(
                f"'recall:{text}' must name numbers of pairs, as recall:16 or recall:2-64; "
                "recall:2-64,5000 also names how many samples to train on."
            )
        low, high, count = match.groups()
        return cls(int(low), int(high or low), int(count or NUM_TRAINING))


def open_recall(text: str, split: str, languages: tuple[str, str]) -> Documents:
    """The samples of a split, the same ones every time, each a document of one segment.

    Args:
        text: as ``Recall.parse`` reads it.
        split: any name but "train" is held out, and differs from others.
        languages: what the two sides are called.
    """
    recall = Recall.parse(text)
    name = f"recall:{recall.fewest}-{recall.most}:{split}"
    count = recall.num_training if split == "train" else NUM_HELD_OUT
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    rng = np.random.default_rng(seed)
    samples = [Document(str(number), "recall", (_sample(recall, rng),)) for number in range(count)]
    return Documents(name, samples, languages)


def best_guess(pairs: int) -> float:
    """How often the value that a source has most often is right: all that helps without its key.

    The pairs fall evenly into a cell for each value; P(no cell holds more than m) is that of as
    many Poisson numbers given their sum.

    Example:
        >>> best_guess(1), round(best_guess(32), 3)
        (1.0, 0.22)
    """
    counts = np.arange(pairs + 1)
    factorials = np.cumsum(np.log(np.maximum(counts, 1)))

    def poisson(mean: float) -> np.ndarray:
        return np.exp(counts * np.log(mean) - mean - factorials)

    cell, whole = poisson(pairs / len(VALUES)), poisson(float(pairs))
    most = 0.0
    for m in range(pairs):
        sums = np.ones(1)
        for _ in VALUES:
            sums = np.convolve(sums, cell[: m + 1])[: pairs + 1]
        below = sums[pairs] / whole[pairs] if len(sums) > pairs else 0.0
        most += 1.0 - min(below, 1.0)
    return float(most / pairs)


def _sample(recall: Recall, rng: np.random.Generator) -> tuple[str, str]:
    """One source and its target."""
    low, high = np.log(recall.fewest), np.log(recall.most + 1)
    count = min(int(np.exp(rng.uniform(low, high))), recall.most)
    keys = rng.permutation(NUM_KEYS)[:count]
    values = rng.integers(len(VALUES), size=count)
    pairs = FIRST_PAIR + keys * len(VALUES) + values
    asked = int(rng.integers(count))
    query = chr(FIRST_QUERY + int(keys[asked]))
    return "".join(map(chr, pairs.tolist())) + query, VALUES[values[asked]]
