"""Language modeling of passages as a task of the loop: the next token from those before it.

Samples of the loop are tokens. ``batch_size`` counts them: rows times ``data.length``.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.errors import InputError
from flashpoint.files import cache_folder
from flashpoint.lab.data.places import remark_on_test
from flashpoint.lab.data.text.blocks import BlockBatches, BlockEvalBatches, encode_passages
from flashpoint.lab.data.text.config import PassageConfig, PiecesConfig
from flashpoint.lab.data.text.passages import Passages, open_passages
from flashpoint.lab.data.text.pieces import Pieces, cached_pieces, load_pieces
from flashpoint.lab.runs.names import PIECES
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.training.config import (
    Betas,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from flashpoint.lab.training.language_model import (
    LanguageModelConfig,
    autocast,
    build_language_model,
    language_config,
    logits_of,
)
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.stopping import Wish, in_step
from flashpoint.lab.training.task import Batch, Numbers, finite
from flashpoint.models.cost import TRAINING_PASSES
from flashpoint.shapes import Float, Int

LETTERS_PER_TOKEN = 4
"""About, where nothing is cut into pieces yet."""
LARGEST_LOSS = 80.0
"""Nats whose perplexity is still counted; beyond, a number would overflow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageOptimizerConfig(OptimizerConfig):
    """AdamW as language models use it; see ``OptimizerConfig``."""

    betas: Betas = (0.9, 0.95)


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageConfig(TrainConfig):
    """A run that learns to predict the next token of passages.

    The model's vocabulary comes from the pieces, its length from the data unless it is given.

    Attributes:
        data: where passages are and how they become samples.
    """

    task: str = "language"
    data: PassageConfig
    optimizer: LanguageOptimizerConfig = field(default_factory=LanguageOptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(warmup_share=0.05))

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        found = self.complete_model()
        if found.length < self.data.length:
            raise InputError(
                f"model.length={found.length} is less than data.length={self.data.length}. Leave "
                "it out of the config: the model follows the data."
            )

    def complete_model(self) -> LanguageModelConfig:
        """The model's own config, with what the data say."""
        pieces = self.data.pieces.vocabulary_size
        return language_config(self.model, length=self.data.length, vocabulary_size=pieces)

    def new_model(self) -> nn.Module:
        """A GPT-2 with fresh weights."""
        return build_language_model(self.complete_model())

    def files(self) -> Mapping[str, Path]:
        """The pieces."""
        return {PIECES: Path(self.data.pieces.file)} if self.data.pieces.file else {}


def open_both(config: PassageConfig) -> tuple[Passages, Passages]:
    """The training and the validation passages of a config; they must not be the same."""
    train = open_passages(config.train, "train")
    validation = open_passages(config.validation, "validation")
    if train.name == validation.name:
        raise InputError(
            f"data.train={config.train!r} and data.validation={config.validation!r} are the same "
            "passages. Name other splits, or none."
        )
    return train, validation


def pieces_of(passages: Passages, config: PiecesConfig) -> tuple[Pieces, Path]:
    """Subword pieces for passages, and the file that holds them.

    Those of the config's file; else those that lie with the passages, if there are as many as the
    config says; else they are trained, and kept in the cache.
    """
    if config.file:
        file = Path(config.file).expanduser()
        return load_pieces(file), file
    own = passages.pieces_file
    if own is not None and (pieces := load_pieces(own)).size == config.vocabulary_size:
        return pieces, own
    pieces = cached_pieces(passages, config, cache_folder() / "pieces")
    file = cache_folder() / "pieces" / f"{pieces.digest}.model"
    if not file.is_file():
        pieces.save(file)
    return pieces, file


class LanguageTask:
    """Predicts the tokens of a config's passages; see ``task.Task``."""

    unit = "tokens"
    shapes_vary = False

    def __init__(self, config: LanguageConfig, ranks: Ranks) -> None:
        check_rows(config, ranks.data_size)
        train, validation = open_both(config.data)
        self.pieces, file = pieces_of(train, config.data.pieces)
        self.config: LanguageConfig = _completed(config, self.pieces, file)
        self.model_config = self.config.complete_model()
        length = config.data.length
        ids = encode_passages(train, self.pieces)
        self.identity: dict[str, Any] = {
            "passages": len(train.passages),
            "tokens": len(ids),
            "text": hashlib.sha256(ids.tobytes()).hexdigest()[:16],
        }
        self.remark = remark_on_test(config.data.validation, validation.name)
        rows = config.batch_size // length
        self._ranks = ranks
        self._train = BlockBatches(
            ids, train.name, length=length, rows=rows, seed=config.seed, **ranks.place
        )
        self._validation = BlockEvalBatches(
            encode_passages(validation, self.pieces),
            length=length,
            rows=max(1, rows // config.accumulate),
            **ranks.place,
        )
        self.steps_per_epoch = self._train.batches_per_epoch
        self.flops_per_sample = TRAINING_PASSES * _flops_per_token(self.config)

    def begin(self, say: Callable[[str], None] = lambda line: None) -> Mapping[str, Any]:
        """Nothing: a language model starts from fresh weights."""
        return {}

    def build_model(self) -> nn.Module:
        """A GPT-2 with fresh weights."""
        return build_language_model(self.model_config)

    def batches(self, start: int) -> Generator[Batch]:
        """Tokens, and for each the one that follows."""
        yield from self._train.iterate(start)

    def largest_shares(self, batch_size: int) -> list[Callable[[], Batch]]:
        """All batches have the same shapes."""

        def make() -> Batch:
            rows = batch_size // self.config.data.length // self._ranks.data_size
            shape = (rows, self.config.data.length)
            tokens = torch.zeros(shape, dtype=torch.int64, device=self._ranks.device)
            return tokens, torch.zeros_like(tokens)

        return [make]

    def bytes_read_ahead(self, batch_size: int) -> int:
        """The ids of all passages, which live on the device."""
        return 4 * self._train.num_tokens

    @staticmethod
    def round_batch(config: LanguageConfig, batch_size: int, num_processes: int) -> int:
        """Whole rows for every part."""
        return batch_size - batch_size % (config.data.length * num_processes * config.accumulate)

    @staticmethod
    def measure(config: LanguageConfig) -> tuple[int, float]:
        """Tokens by the letters of the passages, and operations for each."""
        train, _ = open_both(config.data)
        letters = sum(len(passage.text) for passage in train.passages)
        operations = TRAINING_PASSES * _flops_per_token(config)
        return max(1, letters // LETTERS_PER_TOKEN), operations

    def describe_batch(self) -> str:
        """Tokens and the length of a row."""
        return f"{self.config.batch_size:,} tokens in rows of {self.config.data.length}"

    def samples_until(self, step: int) -> int:
        """All batches are full."""
        return step * self.config.batch_size

    def loss(self, forward: Callable[..., Any], batch: Batch) -> Tensor:
        """Mean cross-entropy of the tokens."""
        inputs, targets = batch
        return token_losses(logits_of(forward, inputs), targets).mean()

    def validate(self, model: nn.Module, wish: Wish | None = None) -> Numbers:
        """Loss and perplexity of the validation set's tokens."""
        sums = LossSums(self._ranks.device)
        with torch.no_grad(), autocast(self._ranks.device, self.config.precision):
            for batch in in_step(self._validation.iterate(), self._ranks, wish):
                if batch is None:
                    ids = torch.zeros(1, 1, dtype=torch.int64, device=self._ranks.device)
                    logits_of(model, ids)  # processes that share weights need each other
                else:
                    sums.add(logits_of(model, batch[0]), batch[1])
        return sums.numbers(self._ranks)

    def check_data(self, say: Callable[[str], None]) -> Mapping[str, int]:
        """Nothing: passages are read whole before the first step."""
        return {}

    def resume_data(self, step: int, counts: Mapping[str, int]) -> None:
        """Nothing: there are no counts."""

    @staticmethod
    def score(validation: Numbers) -> tuple[float]:
        """The lowest loss is the best."""
        return (finite(validation, "loss", sign=-1),)

    def notes(self) -> Mapping[str, Any]:
        """How much text there is."""
        return {
            "tokens_per_epoch": self._train.num_tokens,
            "blocks_per_epoch": self._train.blocks_per_epoch,
        }


def check_rows(config: LanguageConfig, num_processes: int) -> None:
    """Refuse a batch that is not made of whole rows for every part."""
    parts = config.data.length * num_processes * config.accumulate
    if config.batch_size % parts:
        raise InputError(
            f"batch_size={config.batch_size} must be a multiple of data.length times processes "
            f"times accumulate, {config.data.length} x {num_processes} x {config.accumulate} = "
            f"{parts}."
        )


def _flops_per_token(config: LanguageConfig) -> float:
    """Of rows as long as the data's; a model may have positions for more."""
    rows = dataclasses.replace(config.complete_model(), length=config.data.length)
    return rows.flops_per_token


def _completed(config: LanguageConfig, pieces: Pieces, file: Path) -> LanguageConfig:
    """The config with the model's sizes and the file of the pieces."""
    kept = dataclasses.replace(config.data.pieces, file=str(file))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, pieces=kept))
    sizes = {"length": config.data.length, "vocabulary_size": pieces.size}
    found = language_config(config.model, **sizes)
    if found.vocabulary_size < pieces.size:
        raise InputError(
            f"model.vocabulary_size={found.vocabulary_size} is less than the {pieces.size} "
            "pieces. Leave it out of a config, and a new model follows; a saved model wants the "
            "tokenizer that belongs to it."
        )
    model = ModelConfig(name=config.model.name, settings=plain(found))
    return dataclasses.replace(config, model=model)


def token_losses(
    logits: Float[Tensor, "B L V"], targets: Int[Tensor, "B L"]
) -> Float[Tensor, "B L"]:
    """The cross-entropy of every token, in fp32."""
    flat = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view_as(targets)


class LossSums:
    """Losses of tokens, summed over batches.

    Example:
        >>> sums = LossSums()
        >>> sums.add(torch.zeros(1, 2, 4), torch.tensor([[0, 3]]))
        >>> round(sums.numbers()["perplexity"], 3)
        4.0
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)

    def add(self, logits: Float[Tensor, "B L V"], targets: Int[Tensor, "B L"]) -> None:
        """Count a batch; does not wait for the device."""
        losses = token_losses(logits, targets)
        self._sums += torch.stack([losses.double().sum(), torch.ones_like(losses).double().sum()])

    def numbers(self, ranks: Ranks = Ranks()) -> dict[str, float]:  # noqa: B008  frozen
        """The mean cross-entropy in nats, and its exponential."""
        loss, count = ranks.sum_(self._sums.clone()).tolist()
        return {"loss": loss / count, "perplexity": perplexity(loss / count)}


def perplexity(loss: float) -> float:
    """The exponential of a loss; NaN stays, and what would overflow is as large as may be."""
    return loss if math.isnan(loss) else math.exp(min(loss, LARGEST_LOSS))


CONFIG, TASK = LanguageConfig, LanguageTask
