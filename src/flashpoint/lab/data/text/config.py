"""What models of text learn from, as data; checked when it is made."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from flashpoint.bounds import Bounds, check_bounds
from flashpoint.errors import InputError, check_choice

PieceKind = Literal["unigram", "bpe"]
SampleKind = Literal["documents", "segments"]

MIN_LENGTH, MAX_LENGTH = 16, 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class PiecesConfig:
    """Subword pieces, which source and target share.

    Attributes:
        kind: how they are found: "bpe" (seconds), or "unigram" (minutes).
        vocabulary_size: pieces in all, with the 256 bytes and the special ones.
        file: a SentencePiece model to take instead; empty: one is trained.
    """

    kind: PieceKind = "bpe"
    vocabulary_size: Annotated[int, Bounds(300, 1_000_000)] = 8192
    file: str = ""

    def __post_init__(self) -> None:
        check_choice("data.pieces.kind", self.kind, get_args(PieceKind))
        check_bounds(self, "data.pieces.")


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentConfig:
    """Where documents are and how they become samples.

    Attributes:
        train, validation: a place each, as ``open_documents`` reads it: "documents:DIR",
            "text:PREFIX", "jsonl:FILE", "hf:DIR", "recall:PAIRS".
        source, target: the languages' codes.
        samples: what a sample holds: of "documents" as many segments as fit, of "segments" one,
            as sentence-level translation has it; join and resolutions are about documents.
        length: tokens that a side of a sample has at most, its end included. Documents are cut
            between segments to fit; a longer segment is left out.
        join: whether short documents, and what is left of long ones, are joined up to the
            length; if not, a sample holds one document or a part of one.
        resolutions: how many times an epoch has every document: cut to the length, to half of it,
            to a quarter, ... Short samples teach what belongs to what, long ones alone may not.
            A segment longer than such a part is a sample of its own. Validation has the length
            alone.
        pieces: subword pieces.
    """

    train: str
    validation: str
    source: str = "en"
    target: str = "de"
    samples: SampleKind = "documents"
    length: Annotated[int, Bounds(MIN_LENGTH, MAX_LENGTH)] = 512
    join: bool = True
    resolutions: Annotated[int, Bounds(1, MAX_LENGTH)] = 1
    pieces: PiecesConfig = field(default_factory=PiecesConfig)

    def __post_init__(self) -> None:
        check_bounds(self, "data.")
        check_choice("data.samples", self.samples, get_args(SampleKind))
        if self.by_segment and self.resolutions > 1:
            raise InputError(
                f"data.resolutions={self.resolutions} cuts documents, but data.samples="
                "'segments'. Set data.resolutions=1."
            )
        most = (self.length // MIN_LENGTH).bit_length()
        if self.resolutions > most:
            raise InputError(
                f"data.resolutions={self.resolutions} must lie in [1, {most}]: data.length="
                f"{self.length} can be halved {most - 1} times down to {MIN_LENGTH} tokens."
            )
        if self.source == self.target:
            raise InputError(
                f"data.source={self.source!r} and data.target={self.target!r} must differ."
            )

    @property
    def by_segment(self) -> bool:
        """Whether every segment is a sample of its own."""
        return self.samples == "segments"

    @property
    def languages(self) -> tuple[str, str]:
        """Of source and target."""
        return self.source, self.target


@dataclass(frozen=True, kw_only=True, slots=True)
class PassageConfig:
    """Where passages are and how they become samples of a language model.

    Attributes:
        train, validation: a place each, as ``open_passages`` reads it: "passages:DIR", a folder,
            or "words:COUNT".
        length: tokens of a sample, all of which are predicted from those before them.
        pieces: subword pieces. A folder that holds pieces.model brings its own, if it has as many
            pieces as this says.
    """

    train: str
    validation: str
    length: Annotated[int, Bounds(MIN_LENGTH, MAX_LENGTH)] = 512
    pieces: PiecesConfig = field(default_factory=PiecesConfig)

    def __post_init__(self) -> None:
        check_bounds(self, "data.")
