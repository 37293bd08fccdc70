"""A softmax ViT adapted to other attention, as a task of the loop; ``adapter.py`` says how."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from flashpoint.errors import InputError
from flashpoint.lab.training.adapter import (
    Adapter,
    AdaptingConfig,
    require_change,
    require_one_process,
    require_teacher,
)
from flashpoint.lab.training.given_weights import GivenWeights, read_weights
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.task import Batch, Numbers
from flashpoint.lab.training.vision import Loss, VisionConfig, VisionTask, cross_entropy
from flashpoint.lab.training.vit_layers import ViTLayers, calibrate_vit
from flashpoint.layers.spec import SOFTMAX, AttentionSpec
from flashpoint.models.cost import forward_flops
from flashpoint.models.vit import ViT


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptConfig(VisionConfig):
    """A run that adapts a softmax ViT to other attention.

    ``weights`` are the teacher's; ``model.attention`` is what the student will compute.

    Attributes:
        adapt: how.
    """

    adapt: AdaptingConfig = field(default_factory=AdaptingConfig)

    def __post_init__(self) -> None:
        VisionConfig.__post_init__(self)
        require_teacher("adapt", self.weights)


class ViTPupil:
    """A ViT, as ``adapter.Pupil`` wants it."""

    layers, blocks = ViTLayers(), "blocks."

    def __init__(self, loss: Loss) -> None:
        self.loss: Loss = loss

    def answer(self, model: Callable[..., Any], inputs: Tensor) -> Tensor:
        """Logits of images."""
        return model(inputs)

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of every image."""
        return cross_entropy(logits, targets, self.loss)

    def calibrate(self, teacher: Any, student: Any, batches: list[Tensor]) -> None:
        """Gain, bias and scale of every head."""
        calibrate_vit(teacher, student, batches)

    def describe(self, numbers: Numbers) -> str:
        """Accuracy."""
        return f"{numbers['top1']:.2%} top-1"


class AdaptTask(VisionTask):
    """Brings a softmax model to other attention; see ``task.Task``."""

    def __init__(self, config: AdaptConfig, ranks: Ranks) -> None:
        super().__init__(config, ranks)
        require_one_process("adapt", ranks)
        assert config.weights is not None
        given = read_weights(config.weights)
        self.teacher = self._make_teacher(given).to(ranks.device)
        self.flops_per_sample += forward_flops(self.teacher.config)
        self.identity = {**self.identity, "teacher": given.source["sha256"]}
        total = config.total_steps(self.steps_per_epoch)
        pupil = ViTPupil(config.loss)
        self._adapter = Adapter(config, config.adapt, pupil, self.teacher, total)

    def _make_teacher(self, given: GivenWeights) -> ViT:
        whose = f"the teacher {self.config.weights!r}"
        settings = given.settings or {}
        before = settings.get("attention", {}).get("activation", SOFTMAX)
        require_change(whose, before, self.model_config.attention)
        fitted, self._facts = self.fit_weights(given)
        teacher = ViT(replace(self.model_config, attention=AttentionSpec(activation=SOFTMAX)))
        missing = [name for name in teacher.state_dict() if name not in fitted.weights]
        if missing:
            why = self._facts["other_class"] or f"it has no fitting {missing[0]}"
            raise InputError(
                f"{whose} is not complete for these data and this model: {why}. Give data with "
                "the teacher's own classes, and a model of its sizes."
            )
        teacher.load_state_dict(fitted.weights)
        return teacher.eval().requires_grad_(False)

    def begin(self, say: Callable[[str], None] = lambda line: None) -> Mapping[str, Any]:
        """Make what training starts from, stage by stage; gives the numbers of each."""
        student = ViT(self.model_config).to(self._ranks.device)
        student.load_state_dict(self.teacher.state_dict(), strict=False)
        facts = self._adapter.make_start(
            student,
            lambda: (batch.images for batch in self._train.iterate(0)),
            self.validate,
            say,
        )
        self._given = {name: weight.cpu() for name, weight in student.state_dict().items()}
        return {**self._facts, **facts}

    def build_model(self) -> nn.Module:
        """The student."""
        return self._adapter.take(super().build_model())

    def batches(self, start: int) -> Generator[Batch]:
        """As for vision, with the teacher's logits and, while attention is annealed, its share."""
        yield from self._adapter.with_answers(super().batches(start), start)

    def largest_shares(self, batch_size: int) -> list[Callable[[], Batch]]:
        """Those of annealing, if there is any."""
        (make,) = super().largest_shares(batch_size)
        return [self._adapter.with_blanks(make, self.model_config.num_classes)]

    def loss(self, forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        """The labels' cross-entropy and the distance to the teacher, weighed."""
        return self._adapter.loss(forward, batch)


CONFIG, TASK = AdaptConfig, AdaptTask
