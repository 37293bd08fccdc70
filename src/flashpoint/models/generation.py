"""Translations from a model, token by token: greedy and beam search, batched, with caches.

Shapes: B sources, K hypotheses of each, T tokens at most, V vocabulary.

A hypothesis is scored by its log probability over a length penalty, ((5 + length) / 6) ** a, that
of GNMT (arXiv 1609.08144): a = 0 prefers short ones, a = 1 compares means per token for all but
the shortest. Its length counts the token that ends it.

The tokens that begin and pad, PAD, are never chosen. An empty source has an empty translation.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.models.decoding_state import DecodingState
from flashpoint.models.reluformer import ReLUFormer
from flashpoint.ops.check import check_count, check_number
from flashpoint.shapes import Bool, Float, Int

PAD = 0
"""Fills up shorter translations, as it does in batches."""


class Translations(NamedTuple):
    """One translation of each source.

    Attributes:
        tokens: with the token that ends it, where it was reached, and padding behind it.
        lengths: how many tokens of each are no padding.
        log_probabilities: of all tokens of each together.
        scores: the same over the length penalty.
    """

    tokens: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    log_probabilities: Float[Tensor, " B"]
    scores: Float[Tensor, " B"]


@torch.no_grad()
def greedy(
    model: ReLUFormer,
    source: Int[Tensor, "B Ls"],
    source_lengths: Int[Tensor, " B"] | None = None,
    *,
    bos: int,
    eos: int,
    max_length: int | Int[Tensor, " B"],
) -> Translations:
    """The likeliest token at every step.

    Args:
        model: its mode, training or not, is restored afterwards.
        source, source_lengths: as for the model.
        bos, eos: tokens that begin and end a translation.
        max_length: most tokens of a translation, one number or one for each source.
    """
    _check_tokens(model, bos, eos)
    limits = _limits(max_length, source)
    done = _hopeless(source, source_lengths, limits)
    tokens = source.new_full((len(source), _largest(limits)), PAD)
    lengths = torch.zeros_like(limits)
    current = source.new_full((len(source),), bos)
    with _evaluating(model):
        state = model.start_decoding(source, source_lengths)
        total = _zeros(state, len(source))
        for step in range(tokens.shape[1]):
            if bool(done.all()):
                break
            best, chosen = _log_probabilities(model, current, state, bos).max(-1)
            total = total + best.where(~done, 0)
            current = chosen.where(~done, PAD)
            tokens[:, step] = current
            lengths = lengths + ~done
            done = done | (current == eos) | (lengths >= limits)
    return Translations(tokens[:, : _largest(lengths)], lengths, total, total)


@torch.no_grad()
def beam(
    model: ReLUFormer,
    source: Int[Tensor, "B Ls"],
    source_lengths: Int[Tensor, " B"] | None = None,
    *,
    bos: int,
    eos: int,
    max_length: int | Int[Tensor, " B"],
    beam_size: int = 5,
    length_penalty: float = 1.0,
) -> Translations:
    """The best of the hypotheses that a beam search finishes.

    Every step extends the K likeliest unfinished hypotheses by a token. One that ends is set aside
    if it is among the K likeliest of that step; a source is done when K are set aside. At its
    limit unfinished ones count, if none has ended. With K = 1 this is ``greedy``.

    Args:
        model, source, source_lengths, bos, eos, max_length: as for ``greedy``.
        beam_size: K.
        length_penalty: the exponent a.
    """
    _check_tokens(model, bos, eos)
    check_number("length_penalty", length_penalty)
    check_count("beam_size", beam_size, smallest=1)
    limits = _limits(max_length, source)
    done = _hopeless(source, source_lengths, limits)
    with _evaluating(model):
        state = model.start_decoding(source, source_lengths)
        search = _Search(_zeros(state, len(source), beam_size), limits, done, eos, length_penalty)
        current = source.new_full((search.live_total.numel(),), bos)
        while not bool(search.done.all()):
            log_probabilities = _log_probabilities(model, current, state, bos)
            current, rows = search.extend(log_probabilities)
            if beam_size > 1:
                state.select(rows)
    return search.best()


class _Search:
    """The hypotheses of all sources: K live ones, and up to K that were set aside.

    Tokens are kept as they came, with the place each one's hypothesis had before it; a hypothesis
    is a place behind its last token but the one that ends it.

    Attributes:
        live_total: log probabilities of the live ones; -inf where there is none.
        scores, lengths, places: of those set aside, the best first; of score -inf for none.
        is_cut: where they are unfinished ones.
        done: where nothing more is looked for.
    """

    def __init__(
        self,
        nothing: Float[Tensor, "B K"],
        limits: Int[Tensor, " B"],
        done: Bool[Tensor, " B"],
        eos: int,
        exponent: float,
    ) -> None:
        self.limits, self.done, self.eos, self.exponent = limits, done, eos, exponent
        self.first_limit = int(limits.min()) if len(limits) else 0
        self.tokens: list[Int[Tensor, "B K"]] = []
        self.parents: list[Int[Tensor, "B K"]] = []
        self.live_total = nothing.clone()
        self.live_total[:, 1:] = -torch.inf  # at first all are the same one
        self.scores = torch.full_like(nothing, -torch.inf)
        self.lengths, self.places = (torch.zeros_like(nothing, dtype=torch.int64) for _ in "lp")
        self.is_cut = torch.zeros_like(done)

    def extend(
        self, log_probabilities: Float[Tensor, "N V"]
    ) -> tuple[Int[Tensor, " N"], Int[Tensor, " N"]]:
        """One token more: the live hypotheses' last ones, and the rows of the model they were."""
        (num, size), num_words = self.live_total.shape, log_probabilities.shape[1]
        total = self.live_total[:, :, None] + log_probabilities.view(num, size, num_words)
        count = min(2 * size, size * num_words)  # enough, if each of the K likeliest ends
        total, index = total.flatten(1).topk(count)  # [B, 2K], falling
        parents, tokens = index // num_words, index % num_words
        ends = tokens == self.eos
        ending = (ends & ~self.done[:, None])[:, :size]
        length = len(self.tokens) + 1
        self._set_aside(total[:, :size].where(ending, -torch.inf), parents[:, :size], length)
        self.live_total, kept = total.where(~ends, -torch.inf).topk(size)
        self.parents.append(parents.gather(1, kept))
        self.tokens.append(tokens.gather(1, kept))
        self.done = self.done | (self.scores > -torch.inf).all(1)
        if length >= self.first_limit:
            self._cut((self.limits <= length) & ~self.done, length)
        first = torch.arange(num, device=kept.device)[:, None] * size
        return self.tokens[-1].flatten(), (first + self.parents[-1]).flatten()

    def _set_aside(
        self, total: Float[Tensor, "B K"], places: Int[Tensor, "B K"], length: int
    ) -> None:
        """Keep the K best of those set aside before and of these, of one length."""
        scores = torch.cat([self.scores, total / ((5 + length) / 6) ** self.exponent], dim=1)
        lengths = torch.cat([self.lengths, torch.full_like(self.lengths, length)], dim=1)
        self.scores, kept = scores.topk(self.scores.shape[1])
        self.lengths = lengths.gather(1, kept)
        self.places = torch.cat([self.places, places], dim=1).gather(1, kept)

    def _cut(self, expired: Bool[Tensor, " B"], length: int) -> None:
        """Sources at their limit: unfinished hypotheses count where none has ended."""
        cut = expired & (self.scores == -torch.inf).all(1)
        places = torch.arange(self.places.shape[1], device=expired.device)
        total = self.live_total.where(cut[:, None], -torch.inf)
        self._set_aside(total, places.expand_as(self.places), length)
        self.is_cut = self.is_cut | cut
        self.done = self.done | expired

    def best(self) -> Translations:
        """The best of each source; an empty one of score 0 where there is none."""
        found = self.scores[:, 0] > -torch.inf
        lengths, scores = self.lengths[:, 0].where(found, 0), self.scores[:, 0].where(found, 0)
        penalty = ((5 + lengths.to(scores.dtype)) / 6) ** self.exponent
        last = lengths - 1
        tokens = lengths.new_full((len(lengths), _largest(lengths)), PAD)
        place = self.places[:, :1]
        for step in reversed(range(tokens.shape[1])):
            ends = (last == step) & ~self.is_cut
            inside = (last >= step) & ~ends
            here = self.tokens[step].gather(1, place)[:, 0]
            tokens[:, step] = here.where(inside, PAD).where(~ends, self.eos)
            place = self.parents[step].gather(1, place).where(inside[:, None], place)
        return Translations(tokens, lengths, scores * penalty, scores)


def _log_probabilities(
    model: ReLUFormer, tokens: Int[Tensor, " N"], state: DecodingState, bos: int
) -> Float[Tensor, "N V"]:
    """Of every next token, in fp32 or more; -inf for those that only frame a sentence."""
    logits = model.decode_step(tokens, state)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    logits[:, bos] = logits[:, PAD] = -torch.inf
    return logits


def _check_tokens(model: ReLUFormer, bos: int, eos: int) -> None:
    size = model.config.vocabulary_size
    if eos in (bos, PAD) or not (0 <= bos < size and 0 <= eos < size):
        raise InputError(
            f"bos={bos} and eos={eos} must be two tokens of a vocabulary of {size}, and eos not "
            f"{PAD}, which pads."
        )


def _limits(max_length: int | Int[Tensor, " B"], source: Int[Tensor, "B Ls"]) -> Int[Tensor, " B"]:
    """The most tokens of each translation."""
    if isinstance(max_length, Tensor):
        if max_length.shape != source.shape[:1]:
            raise InputError(
                f"max_length has shape {list(max_length.shape)}, expected [{len(source)}]: one "
                "number for each source."
            )
        return max_length.to(source.device, torch.int64)
    if isinstance(max_length, bool) or max_length < 0:
        raise InputError(f"max_length={max_length} must be 0 or more.")
    return source.new_full((len(source),), max_length, dtype=torch.int64)


def _hopeless(
    source: Int[Tensor, "B Ls"],
    source_lengths: Int[Tensor, " B"] | None,
    limits: Int[Tensor, " B"],
) -> Bool[Tensor, " B"]:
    """Sources that are empty, or may have no token of translation."""
    if source_lengths is None:
        return (limits < 1) | (source.shape[1] == 0)
    return (limits < 1) | (source_lengths == 0)


def _zeros(state: DecodingState, *shape: int) -> Tensor:
    """Log probabilities of nothing yet, in the dtype that a step gives."""
    dtype = torch.promote_types(state.encoded.dtype, torch.float32)
    return state.encoded.new_zeros(shape, dtype=dtype)


def _largest(lengths: Int[Tensor, " B"]) -> int:
    return int(lengths.max()) if len(lengths) else 0


@contextmanager
def _evaluating(model: ReLUFormer) -> Generator[None]:
    """Without dropout; then as it was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
