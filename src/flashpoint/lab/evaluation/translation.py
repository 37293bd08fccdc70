"""Documents through a model: cut to what it was trained on, translated in batches, put together.

A document is a list of segments. Its parts, runs of whole segments, go through the model with
separators between segments. If a part comes back with another number of segments, its two halves
are translated again, and so on down to single segments, so that every segment of a document has
its own translation. What the model said first is kept besides, as the document's own text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashpoint.lab.data.text.pieces import BOS, EOS, PAD, SEP, Pieces
from flashpoint.lab.evaluation.frozen import frozen
from flashpoint.lab.evaluation.search import Search
from flashpoint.models.generation import Translations, beam, greedy
from flashpoint.models.reluformer import ReLUFormer

SOURCE_SHARE = 0.75
"""Of the length of training, what a source takes, so that a longer translation fits too."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A document in the other language.

    Attributes:
        segments: one for each of the source's.
        text: all of it as the model gave it first, when it saw the most at once.
        num_repeated: segments that were translated more than once to keep segments apart.
    """

    segments: list[str]
    text: str
    num_repeated: int


class _Document:
    """The rows of one document: segments as ids, a very long one as several rows."""

    def __init__(self, segments: Sequence[Sequence[list[int]]]) -> None:
        self.num_segments = len(segments)
        self.owners = [number for number, rows in enumerate(segments) for _ in rows]
        self.rows = [row for rows in segments for row in rows]
        self.texts = [""] * len(self.rows)
        self.first_texts: dict[int, str] = {}
        self.num_repeated = 0

    def finish(self) -> Translated:
        segments = [""] * self.num_segments
        for owner, text in zip(self.owners, self.texts, strict=True):
            segments[owner] = _line(f"{segments[owner]} {text}")
        text = _line(" ".join(self.first_texts[start] for start in sorted(self.first_texts)))
        return Translated(segments, text, self.num_repeated)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a document that the model sees at once."""

    document: _Document
    start: int
    end: int

    def source(self) -> list[int]:
        """Ids with separators between rows and the end behind."""
        rows = self.document.rows[self.start : self.end]
        ids = [piece for row in rows for piece in (*row, SEP)]
        return [*ids[:-1], EOS]

    def settle(self, texts: Sequence[str]) -> "list[_Part]":
        """Take the translations of the rows, or give what must be translated again."""
        count = self.end - self.start
        if count == 1:
            texts = [" ".join(texts)]
        if len(texts) == count:
            self.document.texts[self.start : self.end] = texts
            return []
        middle = self.start + count // 2
        return [
            _Part(self.document, self.start, middle),
            _Part(self.document, middle, self.end),
        ]


class Translator:
    """A model with its pieces.

    Args:
        model: on any device.
        pieces: that it was trained with.
        length: tokens of a side in training.
        search: how translations are looked for.
        by_segment: whether the model sees one segment at a time, as a model does that was
            trained on segments.
    """

    def __init__(
        self,
        model: ReLUFormer,
        pieces: Pieces,
        length: int,
        search: Search = Search(),  # noqa: B008  frozen
        *,
        by_segment: bool = False,
    ) -> None:
        self.model, self.pieces, self.length, self.search = model, pieces, length, search
        self._room, self._by_segment = int(length * SOURCE_SHARE), by_segment

    def translate(
        self,
        documents: Sequence[Sequence[str]],
        on_count: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Translated]:
        """Translate documents; a segment without text stays without.

        Args:
            documents: each a list of segments without line breaks.
            on_count: told how many segments are done, and of how many; of very long ones, parts.
        """
        jobs = self._encode(documents)
        total = sum(len(job.rows) for job in jobs)
        parts = [part for job in jobs for part in self._cut(job)]
        done, is_first = 0, True
        while parts:
            again: list[_Part] = []
            for part, texts in self._outputs(parts):
                if is_first:
                    part.document.first_texts[part.start] = " ".join(texts)
                left = part.settle(texts)
                count = part.end - part.start
                if left:
                    part.document.num_repeated += count if is_first else 0
                else:
                    done += count
                    on_count(done, total)
                again += left
            parts, is_first = again, False
        return [job.finish() for job in jobs]

    def _encode(self, documents: Sequence[Sequence[str]]) -> list[_Document]:
        texts = [[_line(text) for text in document] for document in documents]
        ids = iter(self.pieces.encode([text for document in texts for text in document]))
        return [_Document([self._rows(text, next(ids)) for text in each]) for each in texts]

    def _rows(self, text: str, ids: list[int]) -> list[list[int]]:
        """The ids of a segment, halved between words until there is room; else anywhere."""
        longest = self._room - 1
        if len(ids) <= longest:
            return [ids] if ids else []
        words = text.split(" ")
        if len(words) == 1:
            return [ids[start : start + longest] for start in range(0, len(ids), longest)]
        middle = len(words) // 2
        halves = [" ".join(words[:middle]), " ".join(words[middle:])]
        encoded = zip(halves, self.pieces.encode(halves), strict=True)
        return [row for half, part in encoded for row in self._rows(half, part)]

    def _cut(self, document: _Document) -> Iterator[_Part]:
        """As many rows at once as there is room for, or each by itself."""
        start = used = 0
        for end, row in enumerate(document.rows):
            if used + len(row) + 1 > self._room or (self._by_segment and end > 0):
                yield _Part(document, start, end)
                start, used = end, 0
            used += len(row) + 1
        if start < len(document.rows):
            yield _Part(document, start, len(document.rows))

    def _outputs(self, parts: Sequence[_Part]) -> Iterator[tuple[_Part, list[str]]]:
        """All parts, the longest first, each with the segments that the model made of it."""
        sources = [(part, part.source()) for part in parts]
        sources.sort(key=lambda pair: -len(pair[1]))
        size = self.search.batch_size
        for start in range(0, len(sources), size):
            batch = sources[start : start + size]
            texts = self._generate([source for _, source in batch])
            yield from zip((part for part, _ in batch), texts, strict=True)

    def _generate(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        """One batch through the model."""
        device = next(self.model.parameters()).device
        lengths = torch.tensor([len(source) for source in sources])
        ids = torch.full((len(sources), int(lengths.max())), PAD)
        for row, source in zip(ids, sources, strict=True):
            row[: len(source)] = torch.tensor(source)
        limits = (2 * lengths + 16).clamp(max=self.length).to(device)
        search = self.search
        options: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_length": limits}
        find: Callable[..., Translations] = greedy
        if search.beam_size > 1:
            find = beam
            options |= {"beam_size": search.beam_size, "length_penalty": search.length_penalty}
        with (
            frozen(self.model),
            torch.autocast(device.type, torch.bfloat16, enabled=search.is_bf16),
        ):
            found = find(self.model, ids.to(device), lengths.to(device), **options)
        rows = zip(found.tokens.tolist(), found.lengths.tolist(), strict=True)
        return [self._decode(row[:length]) for row, length in rows]

    def _decode(self, ids: Sequence[int]) -> list[str]:
        """Segments; ids of a vocabulary that is larger than the pieces have no text."""
        known = [piece for piece in ids if piece < self.pieces.size]
        return [_line(text) for text in self.pieces.decode_segments(known)]


def _line(text: str) -> str:
    """A text on one line: pieces may spell line breaks, and invalid bytes become U+FFFD."""
    return " ".join(text.split())
