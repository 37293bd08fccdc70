"""How good translations are: BLEU and chrF by sacreBLEU, of segments and of whole documents."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from flashpoint.errors import require
from flashpoint.lab.data.text.document_kinds import open_documents
from flashpoint.lab.data.text.documents import Documents
from flashpoint.lab.evaluation.translation import Translated, Translator
from flashpoint.lab.training.text import TextConfig

LENGTHS = (128, 256, 512, 1024, 2048)
"""Source tokens up to which documents are counted together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Of some documents.

    Attributes:
        bleu, chrf: of segments, each against its own reference.
        document_bleu: of documents as the model first gave them, each as one line.
        exact: share of segments that are as their references.
        num_documents, num_segments: that were counted.
    """

    bleu: float
    chrf: float
    document_bleu: float
    exact: float
    num_documents: int
    num_segments: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TranslationScores:
    """What came out.

    Attributes:
        all: of all documents.
        by_length: of those of similar length, by what the length is, as "129-256".
        signatures: of sacreBLEU, by metric.
        repeated_share: segments that were translated again to keep segments apart.
    """

    all: Scores
    by_length: dict[str, Scores]
    signatures: dict[str, str]
    repeated_share: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a JSON file."""
        return asdict(self)


def evaluate_translation(
    config: TextConfig,
    translator: Translator,
    *,
    data: str | None = None,
    on_count: Callable[[int, int], None] = lambda done, total: None,
) -> TranslationScores:
    """Translate all documents of a place and compare.

    Args:
        config: of the run, gives languages and the place.
        translator: the run's model.
        data: another place than the run's validation data.
        on_count: told how many segments are done, and of how many.
    """
    where = config.data.validation if data is None else data
    documents = open_documents(where, "validation", config.data.languages)
    sources = [[source for source, _ in document.segments] for document in documents]
    require_sacrebleu()
    translated = translator.translate(sources, on_count)
    counts = [len(ids) for ids in translator.pieces.encode_sources(sources)]
    return score(documents, translated, counts)


def score(
    documents: Documents, translated: Sequence[Translated], num_tokens: Sequence[int]
) -> TranslationScores:
    """Compare translations with the documents' targets.

    Args:
        documents: with the references.
        translated: one for each of them.
        num_tokens: of the source of each, to sort them by length.
    """
    metrics = import_module("sacrebleu.metrics", require_sacrebleu())
    bleu, chrf = metrics.BLEU(), metrics.CHRF()

    def scores(chosen: Sequence[int]) -> Scores:
        found = [text for n in chosen for text in translated[n].segments]
        wanted = [[target for _, target in documents[n].segments] for n in chosen]
        flat = [target for targets in wanted for target in targets]
        texts = [translated[n].text for n in chosen]
        return Scores(
            bleu=bleu.corpus_score(found, [flat]).score,
            chrf=chrf.corpus_score(found, [flat]).score,
            document_bleu=bleu.corpus_score(texts, [[" ".join(t) for t in wanted]]).score,
            exact=sum(map(str.__eq__, found, flat)) / len(flat),
            num_documents=len(chosen),
            num_segments=len(flat),
        )

    groups: dict[str, list[int]] = {}
    for number in sorted(range(len(documents)), key=lambda n: num_tokens[n]):
        groups.setdefault(length_name(num_tokens[number]), []).append(number)
    everything = scores(range(len(documents)))
    return TranslationScores(
        all=everything,
        by_length={name: scores(chosen) for name, chosen in groups.items()},
        signatures={"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())},
        repeated_share=sum(t.num_repeated for t in translated) / everything.num_segments,
    )


def length_name(num_tokens: int) -> str:
    """The group of a document by the tokens of its source.

    Example:
        >>> length_name(128), length_name(129), length_name(5000)
        ('1-128', '129-256', 'over 2048')
    """
    low = 0
    for high in LENGTHS:
        if num_tokens <= high:
            return f"{low + 1}-{high}"
        low = high
    return f"over {LENGTHS[-1]}"


def require_sacrebleu() -> str:
    """The library's name, or a line that says what to install."""
    return require("sacrebleu", "BLEU").__name__
