"""Subword pieces, of both languages or of one, by SentencePiece.

Ids 0 to 4 are special: padding, unknown, begin, end, and the separator of segments. None of them
comes from a text, whatever it says: "<sep>" in a text is five characters. Characters that no
piece covers become bytes, so that every text comes back as it was (but for U+2581, with which
SentencePiece writes spaces).
"""

import hashlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from flashpoint.errors import InputError, reason, require
from flashpoint.files import write_atomically
from flashpoint.lab.data.places import at_home
from flashpoint.lab.data.text.config import PiecesConfig
from flashpoint.lab.runs.stored import read_bytes

PAD, UNK, BOS, EOS, SEP = range(5)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<sep>")
_ENDS = ("<|endoftext|>", "</s>", "<eos>", "[SEP]")
MAX_TEXTS = 1_000_000  # to train from; of more, every n-th is taken
NUM_THREADS = 4  # the result depends on it


class Texts(Protocol):
    """What pieces are found in: documents of two languages, or passages of one."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def num_texts(self) -> int:
        """How many texts there are."""
        ...

    def texts(self) -> Iterator[str]:
        """All of them."""
        ...


def require_sentencepiece() -> ModuleType:
    """The library, or a line that says what to install."""
    return require("sentencepiece", "a vocabulary of subword pieces")


class Pieces:
    """A trained SentencePiece model.

    Args:
        model: as SentencePiece stores it.
        name: what messages call it.
    """

    pad, unk, bos, sep = PAD, UNK, BOS, SEP
    eos: int = EOS

    def __init__(self, model: bytes, name: str = "pieces") -> None:
        library = require_sentencepiece()
        self.model = model
        try:
            self._processor: Any = library.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError(f"{name} is no SentencePiece model.") from error
        found = tuple(self._processor.id_to_piece(n) for n in range(min(len(SPECIAL), self.size)))
        if found != SPECIAL:
            raise InputError(
                f"{name} starts with the pieces {', '.join(found)}, not {', '.join(SPECIAL)}. "
                "Take one that Flashpoint trained."
            )

    @property
    def size(self) -> int:
        """How many pieces there are."""
        return self._processor.get_piece_size()

    @cached_property
    def digest(self) -> str:
        """What tells this model from others."""
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without begin and end."""
        return self._processor.encode(list(texts), num_threads=NUM_THREADS)

    def encode_sources(self, sources: Sequence[Sequence[str]]) -> list[list[int]]:
        """The ids of each source: its segments with a separator between them, and the end.

        All at once, since SentencePiece starts its threads anew for each call.
        """
        encoded = iter(self.encode([text for source in sources for text in source]))
        rows = ([piece for _ in source for piece in (*next(encoded), SEP)] for source in sources)
        return [[*row[:-1], EOS] for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special ones have none."""
        return self._processor.decode([piece for piece in ids if piece > SEP])

    def decode_segments(self, ids: Sequence[int]) -> list[str]:
        """The segments up to the end, if it is there; the separator comes between them."""
        ids = list(ids)
        ids = ids[: ids.index(EOS)] if EOS in ids else ids
        segments: list[list[int]] = [[]]
        for piece in ids:
            if piece == SEP:
                segments.append([])
            else:
                segments[-1].append(piece)
        return [self.decode(segment) for segment in segments]

    def save(self, file: Path) -> None:
        """Write the model, whole or not at all."""
        write_atomically(file, lambda handle: handle.write(self.model))


class TokenizerPieces(Pieces):
    """The pieces of somebody else's model: Hugging Face's tokenizer.json.

    They have no separator and no padding. What ends a text is the model's own token for it.

    Args:
        model: the file's content.
        name: what messages call it.
    """

    def __init__(self, model: bytes, name: str = "tokenizer") -> None:
        library = require("tokenizers", "a tokenizer.json", extra="hf")
        self.model = model
        try:
            self._tokenizer: Any = library.Tokenizer.from_str(model.decode())
        except Exception as error:  # tokenizers raises nothing more special
            raise InputError(f"{name} is no tokenizer.json: {reason(error)}.") from error
        self._tokenizer.no_truncation()  # a saved one may do both: text would be cut silently
        self._tokenizer.no_padding()
        ends = [self._tokenizer.token_to_id(word) for word in _ENDS]
        found = [number for number in ends if number is not None]
        if not found:
            raise InputError(f"{name} has none of {', '.join(_ENDS)}, which end a text.")
        self.eos = int(found[0])

    @property
    def size(self) -> int:
        """How many pieces there are."""
        return self._tokenizer.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without begin and end."""
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special ones have none."""
        return self._tokenizer.decode(list(ids))


def load_pieces(file: Path) -> Pieces:
    """A model from a file: SentencePiece's, or a tokenizer.json."""
    content = read_bytes(file)
    kind = TokenizerPieces if content.lstrip()[:1] == b"{" else Pieces
    return kind(content, str(file))


def train_pieces(source: Texts, config: PiecesConfig) -> Pieces:
    """Train on all texts together; the same ones give the same pieces."""
    library = require_sentencepiece()
    step = -(-source.num_texts // MAX_TEXTS)
    model = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=islice(source.texts(), 0, None, step),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocabulary_size,
            character_coverage=0.9998,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=1 << 16,
            num_threads=NUM_THREADS,
            minloglevel=2,
            **_special_options(),
        )
    except RuntimeError as error:
        raise _refusal(source, config, str(error)) from error
    return Pieces(model.getvalue(), f"the pieces of {source.name}")


def cached_pieces(source: Texts, config: PiecesConfig, folder: Path) -> Pieces:
    """Pieces for these texts: from the config's file, or the folder, or trained now.

    What is trained is kept in the folder under a name that says what from.
    """
    if config.file:
        return load_pieces(at_home(config.file))
    digest = hashlib.sha256()
    for text in source.texts():
        digest.update(text.encode() + b"\n")
    name = f"pieces-{config.kind}-{config.vocabulary_size}-{digest.hexdigest()[:16]}.model"
    if os.path.isfile(folder / name):
        return load_pieces(folder / name)
    pieces = train_pieces(source, config)
    try:
        pieces.save(folder / name)
    except OSError as error:
        raise InputError(f"{folder / name} cannot be written: {error.strerror}.") from error
    return pieces


def _special_options() -> dict[str, Any]:
    names = zip(("pad", "unk", "bos", "eos"), SPECIAL, strict=False)
    options: dict[str, Any] = {"control_symbols": [SPECIAL[SEP]]}
    for number, (name, piece) in enumerate(names):
        options |= {f"{name}_id": number, f"{name}_piece": piece}
    return options


def _refusal(source: Texts, config: PiecesConfig, said: str) -> InputError:
    """What SentencePiece's message means, in one line."""
    most = re.search(r"value <= (\d+)", said)
    least = re.search(r"(\d+) vs (\d+)", said)
    size = f"data.pieces.vocabulary_size={config.vocabulary_size}"
    if most:
        return InputError(f"{size} is too much for {source.name}: take {most[1]} or less.")
    if least:
        return InputError(f"{size} is too little for {source.name}: take over {least[2]}.")
    return InputError(f"no pieces can be trained on {source.name}: {said}")
