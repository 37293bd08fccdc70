"""Translation of documents as a task of the loop.

Samples of the loop are tokens of the targets. ``batch_size`` is how many a batch has room for on
each side; how many it has without padding is what speed and record count.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from flashpoint.bounds import Bounds
from flashpoint.errors import InputError
from flashpoint.files import cache_folder
from flashpoint.lab.data.places import remark_on_test
from flashpoint.lab.data.text.batch_plan import (
    check_rows,
    largest_batch_size,
    rows_of_width,
    widths_of,
)
from flashpoint.lab.data.text.batches import TextBatches, TextEvalBatches
from flashpoint.lab.data.text.config import DocumentConfig
from flashpoint.lab.data.text.document_kinds import open_both
from flashpoint.lab.data.text.documents import Documents
from flashpoint.lab.data.text.pieces import BOS, EOS, Pieces, cached_pieces
from flashpoint.lab.runs.names import PIECES
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.training.config import (
    Betas,
    Decay,
    ModelConfig,
    OptimizerConfig,
    Rate,
    ScheduleConfig,
    ScheduleKind,
    StepsOrNone,
    TrainConfig,
)
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.sharing import compiled_for_shapes
from flashpoint.lab.training.stopping import Wish, in_step
from flashpoint.lab.training.task import Batch, Numbers, finite
from flashpoint.lab.training.token_losses import TokenSums, sum_losses
from flashpoint.lab.training.token_split import own_positions, own_tokens
from flashpoint.models.cost import TRAINING_PASSES, translation_flops
from flashpoint.models.registry import text_model_config
from flashpoint.models.reluformer import ReLUFormer, ReLUFormerConfig

LETTERS_PER_TOKEN = 4
"""About, where nothing is cut into pieces yet."""

WORDS = ("attention", "cross_attention")
"""Settings of the model that may be words, whose meaning is the model's: "relu" is its own."""

PENALTY = 0.1
"""Weight of ReLUFormer's penalty where the config has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOptimizerConfig(OptimizerConfig):
    """Adam as translation models use it, without decay; see ``OptimizerConfig``."""

    lr: Rate = 7e-4
    betas: Betas = (0.9, 0.98)
    weight_decay: Decay = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TextScheduleConfig(ScheduleConfig):
    """The inverse square root, by default; see ``ScheduleConfig``."""

    kind: ScheduleKind = "inverse_sqrt"
    warmup_steps: StepsOrNone = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig(TrainConfig):
    """A run that learns to translate documents.

    The model's vocabulary comes from the pieces.

    Attributes:
        data: where documents are and how they become samples.
        label_smoothing: share of a target's probability that all pieces divide.
        penalty: weight of ReLUFormer's penalty on relu attention; null is 0.1 where the model has
            such attention, and 0 where it has not.
    """

    task: str = "text"
    data: DocumentConfig
    optimizer: TextOptimizerConfig = field(default_factory=TextOptimizerConfig)
    schedule: TextScheduleConfig = field(default_factory=TextScheduleConfig)
    label_smoothing: Annotated[float, Bounds(0.0, 1.0, below=True)] = 0.1
    penalty: Annotated[float | None, Bounds(0.0, 1e6)] = None

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        model = translation_config(self.model)
        if self.penalty and not model.has_penalty:
            words = " and ".join(dict.fromkeys(repr(spec.word) for spec in model.specs))
            raise InputError(
                f"penalty={self.penalty} is for relu attention only, not for {words}. "
                "Set penalty: 0."
            )

    def files(self) -> Mapping[str, Path]:
        """The pieces."""
        return {PIECES: Path(self.data.pieces.file)} if self.data.pieces.file else {}


def translation_config(model: ModelConfig, **defaults: Any) -> ReLUFormerConfig:
    """The whole config of a model, its settings checked by name and type.

    Args:
        model: a name and settings.
        defaults: settings that the model's own may replace.

    Example:
        >>> translation_config(ModelConfig(name="reluformer_tiny")).attention.alpha
        0.5
    """
    settings = {**defaults, **model.typed(ReLUFormerConfig, words=WORDS)}
    try:
        return text_model_config(model.name, **settings)
    except InputError as error:
        raise InputError(f"model: {error}") from error


class TextTask:
    """Translates the documents of a config; see ``task.Task``."""

    unit = "tokens"
    shapes_vary = True

    def __init__(self, config: TextConfig, ranks: Ranks) -> None:
        widths = widths_of(config.data)
        check_rows(widths, config.batch_size, ranks.data_size, config.accumulate)
        train, validation = open_both(config.data)
        self.pieces = cached_pieces(train, config.data.pieces, cache_folder() / "pieces")
        self.model_config = _fitting(config.model, self.pieces)
        self.config: TextConfig = self._completed(config)
        self.identity = _identity(train)
        self.remark = remark_on_test(config.data.validation, validation.name)
        self._ranks = ranks
        self._sum_losses = sum_losses
        if config.is_compiled:  # or every logit is read and written five times
            self._sum_losses = compiled_for_shapes(sum_losses)
        self._train = TextBatches(
            train,
            self.pieces,
            config.data,
            tokens_per_batch=config.batch_size,
            seed=config.seed,
            **ranks.place,
        )
        self._validation = TextEvalBatches(
            validation,
            self.pieces,
            config.data,
            tokens_per_batch=config.batch_size // config.accumulate,
            **ranks.place,
        )
        self.steps_per_epoch = self._train.batches_per_epoch
        source, target = self._train.mean_lengths  # as if all samples had these
        operations = translation_flops(self.model_config, source, target)
        self.flops_per_sample = TRAINING_PASSES * operations / target

    def _completed(self, config: TextConfig) -> TextConfig:
        """The config with the model's sizes, the penalty's weight and the file of the pieces."""
        model = ModelConfig(name=config.model.name, settings=plain(self.model_config))
        penalty = config.penalty
        if penalty is None:
            penalty = PENALTY if self.model_config.has_penalty else 0.0
        pieces = dataclasses.replace(config.data.pieces, file=self._pieces_file(config))
        data = dataclasses.replace(config.data, pieces=pieces)
        return dataclasses.replace(config, model=model, data=data, penalty=penalty)

    def _pieces_file(self, config: TextConfig) -> str:
        if config.data.pieces.file:
            return str(Path(config.data.pieces.file).expanduser())
        file = cache_folder() / "pieces" / f"{self.pieces.digest}.model"
        if not file.is_file():
            self.pieces.save(file)
        return str(file)

    def begin(self, say: Callable[[str], None] = lambda line: None) -> Mapping[str, Any]:
        """Nothing: a translation starts from fresh weights."""
        return {}

    def build_model(self) -> nn.Module:
        """A ReLUFormer with fresh weights."""
        return ReLUFormer(self.model_config)

    def batches(self, start: int) -> Generator[Batch]:
        """Sources, targets and their lengths, and for each row how many tokens are to be one loss.

        Where processes share tokens, lengths are of all, and where a token stands comes last.
        What dropout drops in a step is settled here, by the step's number.
        """
        ranks = self._ranks
        parts = ranks.replica_size * self.config.accumulate
        for step, batch in enumerate(self._train.iterate(start), start=start):
            share = batch.num_tokens / parts
            shares = torch.full_like(batch.source_lengths, share, dtype=torch.float32)
            if self.model_config.dropout:
                torch.manual_seed(hash((self.config.seed, step, ranks.replica_rank)))
            places = own_positions(batch.source.shape[1], ranks).expand(len(shares), -1)
            yield (
                *(own_tokens(batch.source, ranks), batch.source_lengths),
                *(own_tokens(x, ranks) for x in (batch.target_in, batch.target_out)),
                *(batch.target_lengths, shares),
                *([places] if ranks.sequence > 1 else []),
            )

    def largest_shares(self, batch_size: int) -> list[Callable[[], Batch]]:
        """The widest batch, and the one with most tokens."""
        widths = widths_of(self.config.data)
        most = max(widths, key=lambda width: width * rows_of_width(width, batch_size))
        return [partial(self._blank, width, batch_size) for width in {most, widths[-1]}]

    def _blank(self, width: int, batch_size: int) -> Batch:
        device = self._ranks.device
        rows = rows_of_width(width, batch_size) // self._ranks.data_size
        source, target_in, target_out = (
            torch.zeros(rows, width, dtype=torch.int64, device=device) for _ in range(3)
        )
        lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        shares = torch.zeros(rows, device=device)
        return source, lengths, target_in, target_out, lengths.clone(), shares

    def bytes_read_ahead(self, batch_size: int) -> int:
        """Nothing: batches are made when they are wanted."""
        return 0

    @staticmethod
    def round_batch(config: TextConfig, batch_size: int, num_processes: int) -> int:
        """A whole number of rows of every width for every part."""
        shares = num_processes * config.accumulate
        return largest_batch_size(widths_of(config.data), batch_size, shares)

    @staticmethod
    def measure(config: TextConfig) -> tuple[int, float]:
        """Tokens by the letters of the targets, and operations for each in full rows."""
        train, _ = open_both(config.data)
        letters = sum(len(text) for document in train for _, text in document.segments)
        pieces, length = config.data.pieces.vocabulary_size, config.data.length
        model = translation_config(config.model, vocabulary_size=pieces)
        operations = TRAINING_PASSES * translation_flops(model, length, length) / length
        return max(1, letters // LETTERS_PER_TOKEN), operations

    def describe_batch(self) -> str:
        """Tokens and the length of a row."""
        return f"{self.config.batch_size:,} tokens in rows of up to {self.config.data.length}"

    def samples_until(self, step: int) -> int:
        """Tokens of the targets, without padding."""
        return self._train.tokens_until(step)

    def loss(self, forward: Callable[..., Any], batch: Batch) -> Tensor:
        """Smoothed cross-entropy and penalty of a part, over the tokens of a mean part.

        So a token weighs the same in every part of a batch, on every rank.
        """
        source, source_lengths, target_in, target_out, target_lengths, shares, *places = batch
        weight = self.config.penalty or 0.0
        lengths = {"source_lengths": source_lengths, "target_lengths": target_lengths}
        positions = places[0][0] if places else None
        result = forward(
            source, target_in, **lengths, positions=positions, with_penalty=weight > 0
        )
        logits, penalty = result if weight > 0 else (result, 0.0)
        losses = self._sum_losses(logits, target_out, self.config.label_smoothing)
        return (losses + weight * penalty * target_lengths.sum()) / shares[0]

    def validate(self, model: nn.Module, wish: Wish | None = None) -> Numbers:
        """Loss and accuracy of the validation set's tokens."""
        sums = TokenSums(self._ranks.device)
        is_bf16 = self.config.precision == "bf16"
        with (
            torch.no_grad(),
            torch.autocast(self._ranks.device.type, torch.bfloat16, enabled=is_bf16),
        ):
            for batch in in_step(self._validation.iterate(), self._ranks, wish):
                if batch is None:
                    self._keep_step_with_others(model)
                    continue
                lengths = {
                    "source_lengths": batch.source_lengths,
                    "target_lengths": batch.target_lengths,
                }
                logits = self._ask(model, batch.source, batch.target_in, **lengths)
                sums.add(logits, own_tokens(batch.target_out, self._ranks))
        return sums.numbers(self._ranks)

    def _ask(self, model: nn.Module, source: Tensor, target: Tensor, **lengths: Tensor) -> Tensor:
        """Logits of this process' tokens."""
        ranks = self._ranks
        positions = own_positions(source.shape[1], ranks)[0]
        own = (own_tokens(tokens, ranks) for tokens in (source, target))
        return model(*own, **lengths, positions=positions)

    def _keep_step_with_others(self, model: nn.Module) -> None:
        """A forward for nothing: processes that share weights need each other in each one."""
        source, target = torch.tensor([[[EOS]], [[BOS]]], device=self._ranks.device)
        self._ask(model, source, target)

    def check_data(self, say: Callable[[str], None]) -> Mapping[str, int]:
        """Nothing: documents are read whole before the first step."""
        return {}

    def resume_data(self, step: int, counts: Mapping[str, int]) -> None:
        """Nothing: there are no counts."""

    @staticmethod
    def score(validation: Numbers) -> tuple[float]:
        """The lowest loss is the best."""
        return (finite(validation, "loss", sign=-1),)

    def notes(self) -> Mapping[str, Any]:
        """What the batches hold, and what they leave out."""
        return {
            "target_tokens_per_epoch": self._train.num_tokens,
            "batches_per_epoch": self._train.batches_per_epoch,
            "padding_share": self._train.padding_share,
            "segments_left_out": self._train.num_too_long,
            "validation_segments_left_out": self._validation.num_too_long,
        }


def _identity(documents: Documents) -> dict[str, Any]:
    """What tells these documents from others."""
    digest = hashlib.sha256()
    for text in documents.texts():
        digest.update(text.encode() + b"\n")
    return {
        "documents": len(documents),
        "segments": documents.num_segments,
        "text": digest.hexdigest()[:16],
    }


def _fitting(model: ModelConfig, pieces: Pieces) -> ReLUFormerConfig:
    """The model's config with the vocabulary of the pieces, or a larger one if it says so."""
    config = translation_config(model, vocabulary_size=pieces.size)
    if config.vocabulary_size < pieces.size:
        raise InputError(
            f"model.vocabulary_size={config.vocabulary_size} is less than the {pieces.size} "
            "pieces. Leave it out; the model follows."
        )
    return config


CONFIG, TASK = TextConfig, TextTask
