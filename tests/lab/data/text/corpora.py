"""Made-up parallel documents with words of different lengths, and pieces for them."""

from functools import cache

import numpy as np

from flashpoint.lab.data.text.config import DocumentConfig, PiecesConfig
from flashpoint.lab.data.text.documents import Document, Documents
from flashpoint.lab.data.text.pieces import Pieces, train_pieces


def word(number):
    """A made-up word for each number, of letters alone: segments of different pages differ."""
    return "k" + "".join("aeioubdfgl"[int(digit)] for digit in f"{number:04}")


@cache
def make_documents(number=60, seed=0) -> Documents:
    """Documents of 1 to 30 segments, of 2 to 24 words; the target is the source reversed."""
    rng = np.random.default_rng(seed)
    documents = []
    for n in range(number):
        segments = []
        for _ in range(rng.integers(1, 31)):
            words = [word(w) for w in rng.integers(0, 500, rng.integers(2, 25))]
            segments.append((" ".join(words), " ".join(reversed(words)) + " Ende"))
        documents.append(Document(f"d{n}", "made", tuple(segments)))
    return Documents("made", documents)


@cache
def make_pieces() -> Pieces:
    return train_pieces(make_documents(), PiecesConfig(vocabulary_size=400))


def config(**changes) -> DocumentConfig:
    return DocumentConfig(train="a", validation="b", **({"length": 128} | changes))
