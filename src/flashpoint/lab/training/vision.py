"""Image classification as a task of the loop."""

import dataclasses
import hashlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.convert.fitting import Fitted, fit
from flashpoint.errors import InputError, describe
from flashpoint.lab.data.batches import EvalBatches, TrainBatches
from flashpoint.lab.data.config import DataConfig
from flashpoint.lab.data.image_folder import FolderSource
from flashpoint.lab.data.image_kinds import open_sources, remark_on_flat, split_flat
from flashpoint.lab.data.places import remark_on_test
from flashpoint.lab.data.transforms import mixup
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.training.config import ModelConfig, TrainConfig
from flashpoint.lab.training.given_weights import (
    GivenWeights,
    changed_settings,
    other_class,
    read_weights,
    start_facts,
)
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.stopping import Wish, in_step
from flashpoint.lab.training.task import Batch, Numbers, finite
from flashpoint.models.cost import TRAINING_PASSES, forward_flops
from flashpoint.models.registry import model_config
from flashpoint.models.vit import ViT, ViTConfig
from flashpoint.shapes import Float, Int

Loss = Literal["sigmoid", "softmax"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionConfig(TrainConfig):
    """A run that learns to classify images.

    The model's image size, channels and classes come from the data, unless classes are given.

    Attributes:
        data: where images are and what happens to them.
        loss: cross-entropy, "softmax" or "sigmoid": the latter is summed over classes.
        weights: what to start from, a run's folder, its checkpoints/step_N or a safetensors file;
            null starts from fresh ones.
    """

    data: DataConfig
    loss: Loss = "softmax"
    weights: str | None = None

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        vit_config(self.model, self.data)


def vit_config(model: ModelConfig, data: DataConfig, **defaults: Any) -> ViTConfig:
    """The whole config of a model, its settings checked by name and type.

    Args:
        model: a name and settings.
        data: gives image size and channels.
        defaults: settings that the model's own may replace.
    """
    settings = {"image_size": data.image_size, "channels": data.channels, **defaults}
    settings |= model.typed(ViTConfig)
    for key in ("image_size", "channels"):
        if settings[key] != getattr(data, key):
            raise InputError(
                f"model.{key}={describe(settings[key])} differs from data.{key}="
                f"{getattr(data, key)}. Set both, or leave model.{key} out of the config: the "
                "model follows the data."
            )
    try:
        config = model_config(model.name, **settings)
    except InputError as error:
        raise InputError(f"model: {error}") from error
    if not isinstance(config, ViTConfig):
        raise InputError(
            f"model.name={model.name!r} does not classify images, as task 'vision' does."
        )
    return config


class VisionTask:
    """Classifies the images of a config; see ``task.Task``."""

    unit = "images"
    shapes_vary = False

    def __init__(self, config: VisionConfig, ranks: Ranks) -> None:
        train, validation = open_sources(config.data)
        self.model_config = vit_config(config.model, config.data, num_classes=train.num_classes)
        if self.model_config.num_classes < train.num_classes:
            raise InputError(
                f"model.num_classes={self.model_config.num_classes} is less than the "
                f"{train.num_classes} classes of {train.name}. Raise it, or leave it out of the "
                "config: the model follows the data."
            )
        model = ModelConfig(name=config.model.name, settings=plain(self.model_config))
        data = split_flat(config.data)
        self.config: VisionConfig = dataclasses.replace(config, model=model, data=data)
        self.steps_per_epoch = train.num_samples / config.batch_size
        self.identity: dict[str, Any] = {
            "samples": train.num_samples,
            "labels": hashlib.sha256(train.labels.tobytes()).hexdigest()[:16],
            "classes": list(train.class_names),
        }
        if isinstance(validation, FolderSource) and validation.part:
            self.identity["held_out"] = validation.digest
        self.remark = remark_on_test(config.data.validation, validation.name) or remark_on_flat(
            config.data, train, validation
        )
        self.flops_per_sample = TRAINING_PASSES * forward_flops(self.model_config)
        self._ranks = ranks
        self._given: dict[str, Tensor] = {}
        self._said = -1  # 0: damaged shards, 1: images too
        self._train = TrainBatches(
            train, config.data, batch_size=config.batch_size, seed=config.seed, **ranks.place
        )
        size = max(config.batch_size // config.accumulate, ranks.data_size)
        self._validation = EvalBatches(validation, config.data, batch_size=size, **ranks.place)

    def begin(self, say: Callable[[str], None] = lambda line: None) -> Mapping[str, Any]:
        """Read the weights that the config names and keep those that fit, for ``build_model``."""
        if self.config.weights is None:
            return {}
        fitted, facts = self.fit_weights(read_weights(self.config.weights))
        self._given = fitted.weights
        return facts

    def fit_weights(self, given: GivenWeights) -> tuple[Fitted, dict[str, Any]]:
        """What of given weights the model can start from, and the same as plain data."""
        whose = f"weights {self.config.weights!r}"
        changed = changed_settings(given, plain(self.model_config), whose)
        other = other_class(given, self.identity["classes"])
        with torch.device("meta"):
            expected = ViT(self.model_config).state_dict()
        fitted = fit(given.tensors, expected, whose, takes_head=other is None)
        return fitted, start_facts(given, fitted, changed, other)

    def build_model(self) -> nn.Module:
        """A ViT with fresh weights, but for those that ``begin`` found."""
        model = ViT(self.model_config)
        model.load_state_dict(self._given, strict=False)
        self._given = {}
        return model

    def batches(self, start: int) -> Generator[Batch]:
        """Images, and targets as shares of the classes, mixed if the config says so.

        Which branches are dropped in a step is settled here, by the step's number.
        """
        p, seed = self.config.data.augmentation.mixup, self.config.seed
        for step, batch in enumerate(self._train.iterate(start), start=start):
            if self.model_config.drop_path:
                torch.manual_seed(hash((seed, step, self._ranks.data_rank)))
            neighbor = batch.neighbor
            if neighbor is not None:
                neighbor = neighbor[0], self._one_hot(neighbor[1])
            targets = self._one_hot(batch.labels)
            yield mixup(batch.images, targets, p, seed, step, neighbor=neighbor)

    def largest_shares(self, batch_size: int) -> list[Callable[[], Batch]]:
        """All batches have the same shapes."""

        def make() -> Batch:
            data, rows = self.config.data, batch_size // self._ranks.data_size
            images = (rows, data.channels, data.image_size, data.image_size)
            targets = (rows, self.model_config.num_classes)
            device = self._ranks.device
            return torch.zeros(images, device=device), torch.zeros(targets, device=device)

        return [make]

    def bytes_read_ahead(self, batch_size: int) -> int:
        """What workers have ready, and the images as they were before mixup."""
        data, rows = self.config.data, batch_size // self._ranks.data_size
        unmixed = 4 * rows * data.channels * data.image_size**2 if data.augmentation.mixup else 0
        return self._train.bytes_ahead(batch_size) + unmixed

    @staticmethod
    def round_batch(config: VisionConfig, batch_size: int, num_processes: int) -> int:
        """As many images for every part."""
        return batch_size - batch_size % (num_processes * config.accumulate)

    @staticmethod
    def measure(config: VisionConfig) -> tuple[int, float]:
        """Images, and operations of forward and backward."""
        train, _ = open_sources(config.data)
        model = vit_config(config.model, config.data, num_classes=train.num_classes)
        return train.num_samples, TRAINING_PASSES * forward_flops(model)

    def describe_batch(self) -> str:
        """Images and their side."""
        return f"{self.config.batch_size:,} images of {self.config.data.image_size} px"

    def samples_until(self, step: int) -> int:
        """All batches are full."""
        return step * self.config.batch_size

    def _one_hot(self, labels: Int[Tensor, " B"]) -> Float[Tensor, "B K"]:
        classes = torch.arange(self.model_config.num_classes, device=labels.device)
        return (labels[:, None] == classes).float()  # F.one_hot waits for the GPU

    def loss(self, forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        """Mean cross-entropy."""
        images, targets = batch
        return cross_entropy(forward(images), targets, self.config.loss).mean()

    def validate(self, model: nn.Module, wish: Wish | None = None) -> Numbers:
        """Accuracy and loss of the validation set."""
        sums = ClassificationSums(self.config.loss, self._ranks.device)
        is_bf16 = self.config.precision == "bf16"
        with (
            torch.no_grad(),
            torch.autocast(self._ranks.device.type, torch.bfloat16, enabled=is_bf16),
        ):
            for batch in in_step(self._validation.iterate(), self._ranks, wish):
                if batch is None:
                    self._keep_step_with_others(model)
                else:
                    sums.add(model(batch.images), batch.labels)
        self._share_broken(self._validation)
        return sums.numbers(self._ranks)

    def _keep_step_with_others(self, model: nn.Module) -> None:
        """A forward for nothing: processes that share weights need each other in each one."""
        data = self.config.data
        side = data.image_size
        model(torch.zeros(1, data.channels, side, side, device=self._ranks.device))

    def check_data(self, say: Callable[[str], None]) -> Mapping[str, int]:
        """Training images that could not be read; the first of them is said, once."""
        self._share_broken(self._train)
        count = self._train.num_broken
        if self._train.broken_summary and self._said < min(count, 1):
            self._said = min(count, 1)
            say(f"{self._train.broken_summary}.")
        return {"broken": count}

    def resume_data(self, step: int, counts: Mapping[str, int]) -> None:
        """Go on counting."""
        self._train.resume_broken(step, counts.get("broken", 0))

    def _share_broken(self, batches: TrainBatches | EvalBatches) -> None:
        """Count over all processes; too many end them all, and the first says why."""
        try:
            batches.share_broken(self._ranks.gather_by_data)
        except InputError as error:
            raise RunError(str(error)) from error

    @staticmethod
    def score(validation: Numbers) -> tuple[float, float]:
        """The share of images whose first guess is right; among equals, the lower loss."""
        return finite(validation, "top1"), finite(validation, "loss", sign=-1)

    def notes(self) -> Mapping[str, Any]:
        """Images that could not be read; names since the run was last taken up, counts of all."""
        return {
            "broken_images": self._train.broken,
            "broken_count": self._train.num_broken,
            "broken_share": self._train.broken_share,
            "broken_validation_images": self._validation.broken,
        }


class ClassificationSums:
    """Correct answers and losses, summed over batches.

    Example:
        >>> sums = ClassificationSums("softmax")
        >>> sums.add(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
        >>> sums.numbers()["top1"]
        0.5
    """

    def __init__(self, loss: Loss, device: torch.device | str = "cpu") -> None:
        self._loss: Loss = loss
        self._sums = torch.zeros(4, dtype=torch.float64, device=device)

    def add(self, logits: Float[Tensor, "B K"], labels: Int[Tensor, " B"]) -> None:
        """Count a batch; does not wait for the device."""
        guesses = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]  # [B, 5]
        guesses &= logits.isfinite().all(-1, keepdim=True)  # NaN guesses nothing
        classes = torch.arange(logits.shape[1], device=labels.device)
        targets = (labels[:, None] == classes).float()
        losses = cross_entropy(logits, targets, self._loss)
        counts = (guesses[:, 0].sum(), guesses.sum(), losses.sum(), torch.ones_like(labels).sum())
        self._sums += torch.stack([count.double() for count in counts])

    def numbers(self, ranks: Ranks = Ranks()) -> dict[str, float]:  # noqa: B008  frozen
        """Shares of right first guesses and of right ones among five, and the mean loss."""
        top1, top5, loss, count = ranks.sum_(self._sums.clone()).tolist()
        if not count:
            raise InputError("none of the validation images can be read: nothing to count.")
        return {"top1": top1 / count, "top5": top5 / count, "loss": loss / count}


def cross_entropy(
    logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"], kind: Loss
) -> Float[Tensor, " B"]:
    """The loss of each sample, in fp32; the sigmoid's is a sum over classes."""
    logits = logits.float()
    if kind == "sigmoid":
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1)
    return F.cross_entropy(logits, targets, reduction="none")


CONFIG, TASK = VisionConfig, VisionTask
