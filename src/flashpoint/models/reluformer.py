"""ReLUFormer: a translation model of ReLU alone (arXiv 2302.06461), and its softmax twin.

Shapes: B batch, Ls source tokens, Lt target tokens, E width, V vocabulary.

    source [B, Ls] -> embed + sines -> encoder blocks (attention, memory)        -> [B, Ls, E]
    target [B, Lt] -> embed + sines -> decoder blocks (causal, cross, memory) -> logits [B, Lt, V]

Attention everywhere is relu(q . k / sqrt(d)) / (gamma sqrt(n / 2)) over the n keys that a query
sees: alpha 0.5 and gain sqrt(2) / gamma. With ``attention="softmax"`` the same model is the
vanilla transformer. What we could read of the paper speaks of self-attention and never says that
cross-attention was replaced: ``cross_attention="softmax"`` leaves it alone.

Start: kernels xavier uniform, q, k and v as matrices of their own, so that scores and values of
normalized tokens have variance 1, as the paper's lemma wants it; biases zero; embeddings normal
with variance 1 / E, which is 1 after their factor sqrt(E), and gives logits of variance 1 where
the same matrix reads them out. (The lemma also wants scores and values that are independent. Those
of the same tokens are not, which adds n / (2 E) to the variance of 1. And it wants values of mean
zero. What all tokens share, as the slow sines, is multiplied by the row's sum, sqrt(n / pi):
over 512 tokens of text the branches start at 4 to 17 instead of 1.)

Dropout acts on embeddings and on every branch before it is added. The fused operator has no
weights to drop, so that attention has none of its own, in either twin.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.bounds import Bounds, Depth, Slots, Width, check_bounds
from flashpoint.errors import InputError, UnsupportedError, check_choice
from flashpoint.layers.attention import Attention
from flashpoint.layers.memory import KeyValueMemory
from flashpoint.layers.output import GATES, OUTPUT_NORMS, Gate, OutputNorm
from flashpoint.layers.positions import sines
from flashpoint.layers.qk_norm import QK_NORMS, QkNorm
from flashpoint.layers.spec import SOFTMAX, AnySpec, AttentionSpec
from flashpoint.models.decoding_state import BlockCaches, DecodingState
from flashpoint.models.penalty import (
    MeasuredRows,
    attend_and_measure,
    has_penalty,
    penalize,
)
from flashpoint.models.pretrained import Pretrained
from flashpoint.ops.activation import known_activations
from flashpoint.ops.check import check_flag
from flashpoint.shapes import Float, Int

RELU_ATTENTION = AttentionSpec(
    activation="relu", alpha=0.5, gain="learned", gain_start=math.sqrt(2.0)
)
"""The paper's, with gamma = sqrt(2) / gain learned from 1."""

_FLAGS = ("pre_norm", "tied_embeddings", "memory_norm")
_CHOICES = {"qk_norm": QK_NORMS, "gate": GATES, "output_norm": OUTPUT_NORMS}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReLUFormerConfig:
    """An encoder-decoder; ``flashpoint.create_model`` fills in the usual sizes.

    Attributes:
        vocabulary_size: V, pieces of source and target together.
        width, encoder_depth, decoder_depth, num_heads: E, blocks, and heads of every attention.
        mlp_dim: slots of every memory: units inside a feed-forward layer.
        attention: the mathematics of all attention: self, causal and cross. One that is given in
            parts, as by ``--set model.attention.gain=...``, has the defaults of ``AttentionSpec``
            (alpha 1) for the rest, not these.
        cross_attention: that of attention from target to source. None: the same as the others.
        qk_norm, gate, output_norm, qkv_init: of every attention, see ``layers.Attention``.
        memory_activation, memory_norm: see ``KeyValueMemory``; "softmax" and True are the paper's
            equivalent of relu.
        pre_norm: x + f(norm(x)); False is norm(x + f(x)).
        tied_embeddings: one matrix embeds source and target and reads out logits; False: three.
        dropout: share of the embeddings and of the branches' outputs that training drops.
    """

    vocabulary_size: Annotated[int, Bounds(1, 10_000_000)] = 32_000
    width: Width
    encoder_depth: Depth
    decoder_depth: Depth
    num_heads: Width
    mlp_dim: Slots
    attention: AttentionSpec = RELU_ATTENTION
    cross_attention: AttentionSpec | None = None
    qk_norm: QkNorm = "none"
    gate: Gate = "none"
    output_norm: OutputNorm = "none"
    qkv_init: Annotated[float, Bounds(0.0, 100.0, above=True)] = 1.0
    memory_activation: str = "relu"
    memory_norm: bool = False
    pre_norm: bool = True
    tied_embeddings: bool = True
    dropout: Annotated[float, Bounds(0.0, 1.0, below=True)] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        for name, known in _CHOICES.items():
            check_choice(name, getattr(self, name), known)
        check_choice("memory_activation", self.memory_activation, (*known_activations(), SOFTMAX))
        object.__setattr__(self, "attention", text_attention(self.attention))
        if self.cross_attention is not None:
            object.__setattr__(self, "cross_attention", text_attention(self.cross_attention))
        if self.width % self.num_heads or self.width % 2:
            raise InputError(
                f"width={self.width} must be even and a multiple of {self.num_heads} heads."
            )

    @property
    def specs(self) -> tuple[AttentionSpec, AttentionSpec]:
        """Of attention among a side's own tokens, and from target to source."""
        cross = self.attention if self.cross_attention is None else self.cross_attention
        return self.attention, cross

    @property
    def has_penalty(self) -> bool:
        """Whether any attention can have ReLUFormer's penalty."""
        return any(has_penalty(spec) for spec in self.specs)


def text_attention(value: AnySpec) -> AttentionSpec:
    """As ``AttentionSpec.parse``, but the word "relu" is ReLUFormer's own.

    Example:
        >>> text_attention("relu").alpha, text_attention({"activation": "relu"}).alpha
        (0.5, 1.0)
    """
    return RELU_ATTENTION if value == "relu" else AttentionSpec.parse(value)


class Block(nn.Module):
    """Attention, cross-attention in a decoder, and a memory, each a residual branch."""

    def __init__(self, config: ReLUFormerConfig, *, is_decoder: bool) -> None:
        super().__init__()
        width, heads = config.width, config.num_heads
        own, cross = config.specs
        options: dict[str, Any] = {n: getattr(config, n) for n in (*_CHOICES, "qkv_init")}
        self.is_pre_norm, self.is_decoder = config.pre_norm, is_decoder
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, own, **options)
        if is_decoder:
            self.norm2 = nn.LayerNorm(width)
            self.cross = Attention(width, heads, cross, context_dim=width, **options)
        self.norm3 = nn.LayerNorm(width)
        self.memory = KeyValueMemory(
            width, config.mlp_dim, config.memory_activation, output_norm=config.memory_norm
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "B L E"],
        encoded: Float[Tensor, "B Ls E"] | None = None,
        *,
        lengths: Int[Tensor, " B"] | None = None,
        source_lengths: Int[Tensor, " B"] | None = None,
        with_penalty: bool = False,
    ) -> tuple[Float[Tensor, "B L E"], list[MeasuredRows], list[MeasuredRows]]:
        """Tokens, and what the penalty needs of own and cross-attention where they have one.

        Args:
            x: the tokens; a decoder's see none behind them.
            encoded: the source, for a decoder.
            lengths, source_lengths: how many tokens of x and of the source exist.
            with_penalty: whether there is to be a penalty.
        """
        # Causality already hides a target's padding from what lies before it.
        keys = None if self.is_decoder else lengths
        sight = Sight(self.is_decoder, keys, with_penalty)
        x, own = self._attend(self.norm1, self.attn, x, None, sight)
        cross: list[MeasuredRows] = []
        if self.is_decoder:
            sight = Sight(False, source_lengths, with_penalty)
            x, cross = self._attend(self.norm2, self.cross, x, encoded, sight)
        return self._add(self.norm3, x, self.memory(self._read(self.norm3, x))), own, cross

    def step(
        self,
        x: Float[Tensor, "N 1 E"],
        encoded: Float[Tensor, "B Ls E"],
        source_lengths: Int[Tensor, " B"] | None,
        caches: BlockCaches,
    ) -> Float[Tensor, "N 1 E"]:
        """A decoder's forward for one new token of each of N / B hypotheses a source."""
        read = self._read(self.norm1, x)
        x = self._add(self.norm1, x, self.attn(read, causal=True, cache=caches.own))
        # Hypotheses are queries of one source, whose keys and values exist once.
        x = x.reshape(len(encoded), -1, x.shape[2])  # [B, N / B, E]
        read = self._read(self.norm2, x)
        seen = self.cross(read, encoded, key_lengths=source_lengths, cache=caches.source)
        x = self._add(self.norm2, x, seen).reshape(-1, 1, x.shape[2])  # [N, 1, E]
        return self._add(self.norm3, x, self.memory(self._read(self.norm3, x)))

    def _attend(
        self, norm: nn.Module, layer: Attention, x: Tensor, context: Tensor | None, sight: "Sight"
    ) -> tuple[Tensor, list[MeasuredRows]]:
        read = self._read(norm, x)
        causal, key_lengths, with_penalty = sight
        if not (with_penalty and has_penalty(layer.spec)):
            y = layer(read, context, causal=causal, key_lengths=key_lengths)
            return self._add(norm, x, y), []
        y, rows = attend_and_measure(layer, read, context, causal=causal, key_lengths=key_lengths)
        return self._add(norm, x, y), [rows]

    def _read(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.is_pre_norm else x

    def _add(self, norm: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)
        return x if self.is_pre_norm else norm(x)


class Sight(NamedTuple):
    """Who sees whom in one attention, and whether there is to be a penalty."""

    causal: bool
    key_lengths: Tensor | None
    with_penalty: bool


class ReLUFormer(nn.Module, Pretrained, config=ReLUFormerConfig):
    """An encoder-decoder for translation, of relu attention or softmax.

    Example:
        >>> config = ReLUFormerConfig(vocabulary_size=100, width=32, encoder_depth=2,
        ...                           decoder_depth=2, num_heads=4, mlp_dim=64)
        >>> source, target = torch.randint(100, (2, 9)), torch.randint(100, (2, 7))
        >>> ReLUFormer(config)(source, target, source_lengths=torch.tensor([9, 5])).shape
        torch.Size([2, 7, 100])
    """

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__()
        self.config = config
        size, width = config.vocabulary_size, config.width
        self.embed = nn.Embedding(size, width)
        self.target_embed = None if config.tied_embeddings else nn.Embedding(size, width)
        self.head = None if config.tied_embeddings else nn.Linear(width, size, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder, self.decoder = (
            nn.ModuleList(Block(config, is_decoder=is_decoder) for _ in range(depth))
            for depth, is_decoder in ((config.encoder_depth, False), (config.decoder_depth, True))
        )
        self.encoder_norm, self.decoder_norm = (
            nn.LayerNorm(width) if config.pre_norm else nn.Identity() for _ in range(2)
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start anew, as this file's head says."""
        std = self.config.width**-0.5
        for module in self.modules():
            if isinstance(module, (Attention, KeyValueMemory, nn.LayerNorm)):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=std)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=std)

    def forward(
        self,
        source: Int[Tensor, "B Ls"],
        target: Int[Tensor, "B Lt"],
        *,
        source_lengths: Int[Tensor, " B"] | None = None,
        target_lengths: Int[Tensor, " B"] | None = None,
        positions: Int[Tensor, " L"] | None = None,
        with_penalty: bool = False,
    ) -> Float[Tensor, "B Lt V"] | tuple[Float[Tensor, "B Lt V"], Float[Tensor, ""]]:
        """Logits of the next token at every position of the target.

        What lies behind a length is padding, of any value: no result before it depends on it.

        Args:
            source: tokens to translate.
            target: tokens translated so far, from the one that begins a sentence.
            source_lengths, target_lengths: how many exist; None: all.
            positions: where tokens stand, of source and target alike; None: from 0 on. They are
                for shards of sequences, whose attention knows where its tokens stand.
            with_penalty: also return the mean penalty over all attention that has one, see
                ``penalty.py``, in fp32. Its weight is the caller's. softmax and weights divided
                by their sums have none; 0 where nothing has.
        """
        penalized = with_penalty and self._can_penalize()
        encoded, of_encoder = self._encode(source, source_lengths, penalized, positions)
        x = self._embed(target, self.target_embed, positions)
        of_own: list[MeasuredRows] = []
        of_cross: list[MeasuredRows] = []
        for block in self.decoder:
            x, own, cross = block(
                x,
                encoded,
                lengths=target_lengths,
                source_lengths=source_lengths,
                with_penalty=penalized,
            )
            of_own, of_cross = of_own + own, of_cross + cross
        logits = self._read_out(x)
        if not with_penalty:
            return logits
        if not penalized:
            return logits, logits.new_zeros((), dtype=torch.float32)
        encoder, own = ("attn", of_encoder, source_lengths), ("attn", of_own, target_lengths)
        return logits, self._mean_penalty(encoder, own, ("cross", of_cross, target_lengths))

    def _can_penalize(self) -> bool:
        """False where nothing has a penalty, and an error where it is not even defined as 0."""
        config = self.config
        undefined = [s.word for s in config.specs if s.activation != SOFTMAX and not s.by_sum]
        if undefined and not config.has_penalty:
            raise UnsupportedError(
                f"the penalty is defined for relu attention, this model has {undefined[0]!r}. "
                "Train it without."
            )
        return config.has_penalty

    def _mean_penalty(
        self, *kinds: tuple[str, Sequence[MeasuredRows], Tensor | None]
    ) -> Float[Tensor, ""]:
        """Over all attention that was measured, of each kind with the lengths of its queries."""
        block = self.decoder[0]
        sums = [
            len(rows) * penalize(getattr(block, name), rows, lengths)
            for name, rows, lengths in kinds
            if rows
        ]
        return torch.stack(sums).sum() / sum(len(rows) for _, rows, _ in kinds)

    def encode(
        self, source: Int[Tensor, "B Ls"], source_lengths: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B Ls E"]:
        """What cross-attention reads."""
        return self._encode(source, source_lengths, with_penalty=False)[0]

    def _encode(
        self,
        source: Tensor,
        lengths: Tensor | None,
        with_penalty: bool,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, list[MeasuredRows]]:
        x = self._embed(source, None, positions)
        rows: list[MeasuredRows] = []
        for block in self.encoder:
            x, own, _ = block(x, lengths=lengths, with_penalty=with_penalty)
            rows = rows + own
        return self.encoder_norm(x), rows

    def start_decoding(
        self, source: Int[Tensor, "B Ls"], source_lengths: Int[Tensor, " B"] | None = None
    ) -> DecodingState:
        """Encode the sources; the state is what ``decode_step`` takes."""
        encoded = self.encode(source, source_lengths)
        return DecodingState(encoded, source_lengths, len(self.decoder))

    def decode_step(self, tokens: Int[Tensor, " N"], state: DecodingState) -> Float[Tensor, "N V"]:
        """Logits of the next token, from the last one of each hypothesis; for inference.

        Hypotheses of a source follow one another; every source has the same number of them.
        The state remembers all tokens given so far.
        """
        if len(tokens) % max(len(state.encoded), 1):
            raise InputError(
                f"{len(tokens)} hypotheses of {len(state.encoded)} sources: every source must "
                "have the same number of them."
            )
        place = torch.arange(state.num_tokens, state.num_tokens + 1, device=tokens.device)
        x = self._embed(tokens[:, None], self.target_embed, place)  # [N, 1, E]
        for block, caches in zip(self.decoder, state.caches, strict=True):
            assert isinstance(block, Block)
            x = block.step(x, state.encoded, state.source_lengths, caches)
        state.num_tokens += 1
        return self._read_out(x)[:, 0]

    def _embed(
        self,
        tokens: Int[Tensor, "B L"],
        embed: nn.Embedding | None,
        positions: Int[Tensor, " L"] | None,
    ) -> Float[Tensor, "B L E"]:
        """Tokens at their positions, from 0 on by default, as vectors."""
        if tokens.dim() != 2:
            raise InputError(f"tokens have shape {list(tokens.shape)}, expected [B, L].")
        width = self.config.width
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = (self.embed if embed is None else embed)(tokens) * math.sqrt(width)
        return self.dropout(x + sines(positions, width).to(x.dtype))

    def _read_out(self, x: Float[Tensor, "B L E"]) -> Float[Tensor, "B L V"]:
        x = self.decoder_norm(x)
        return F.linear(x, self.embed.weight) if self.head is None else self.head(x)
