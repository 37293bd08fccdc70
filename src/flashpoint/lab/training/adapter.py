"""What brings a softmax model to other attention, whatever the kind of model.

A run begins with a teacher, a softmax model. What training starts from is made of it in stages:
converted (the same weights, other attention), calibrated, matched layer by layer
(``matching.py``). Then the loop fine-tunes the whole model on the labels and on the teacher's
answers, and for the first part of it attention goes linearly from softmax to what the config says
(``blending.py``).

All that a step needs is in its batch, the teacher's answers too. So runs go on as any others do.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.bounds import Bounds, check_bounds
from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.training.blending import set_share
from flashpoint.lab.training.config import StepsOrNone, TrainConfig
from flashpoint.lab.training.low_rank import add_low_rank
from flashpoint.lab.training.matching import Layers, layer_errors, match_layers
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.task import Batch, Numbers
from flashpoint.lab.training.vision import Loss
from flashpoint.layers.spec import SOFTMAX, AttentionSpec
from flashpoint.shapes import Float

SAY_EVERY = 0.2
"""Of the steps of matching, between two lines about them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptingConfig:
    """How a model is adapted before and while the loop trains it.

    Attributes:
        calibration_batches: training batches from which gain and bias of every head are fitted.
        match_steps: updates of q, k and the learned numbers towards the teacher's attention.
        match_lr: their learning rate at the start, which falls to 0.
        anneal_share: of the steps, in which attention goes from softmax to what it will be.
        distill_weight: of the distance to the teacher's answers in the loss; the labels' is the
            rest of 1.
        temperature: by which both models' logits are divided in that distance.
        rank: fine-tune the blocks' kernels by updates of this rank and keep all kernels as they
            are; null fine-tunes all weights.
    """

    calibration_batches: Annotated[int, Bounds(1, 1000)] = 2
    match_steps: StepsOrNone = 0
    match_lr: Annotated[float, Bounds(0.0, 10.0, above=True)] = 1e-3
    anneal_share: Annotated[float, Bounds(0.0, 1.0)] = 0.25
    distill_weight: Annotated[float, Bounds(0.0, 1.0)] = 0.5
    temperature: Annotated[float, Bounds(0.0, 1e3, above=True)] = 2.0
    rank: Annotated[int | None, Bounds(1, 65_536)] = None

    def __post_init__(self) -> None:
        check_bounds(self)


def require_teacher(task: str, weights: str | None) -> None:
    """Refuse a config of a task that adapts, and names nothing to adapt."""
    if weights is None:
        raise InputError(
            f"weights=None, but task {task!r} needs a teacher. Set it to a run's folder."
        )


def require_one_process(task: str, ranks: Ranks) -> None:
    """Refuse several processes: each would make a student of its own."""
    if ranks.size > 1:
        raise UnsupportedError(
            f"task {task!r} runs in one process, not {ranks.size}. Start it without torchrun."
        )


def require_change(whose: str, before: str, wanted: AttentionSpec) -> None:
    """Refuse a teacher that does not compute softmax, and a student that does.

    Args:
        whose: the teacher, as messages call it.
        before: the activation that it computes.
        wanted: what the student shall compute.
    """
    if before != SOFTMAX:
        raise InputError(
            f"{whose} computes {before} already, not softmax. Adapt a softmax model; one of "
            "images that computes anything else is fine-tuned by flashpoint train --weights."
        )
    if wanted.activation == SOFTMAX:
        raise InputError("model.attention is softmax, as the teacher's. Choose another one.")


class Pupil(Protocol):
    """What depends on the kind of model."""

    @property
    def layers(self) -> Layers:
        """Its attention."""
        ...

    @property
    def loss(self) -> Loss:
        """Which cross-entropy its logits are for."""
        ...

    @property
    def blocks(self) -> str:
        """How names of its blocks' kernels begin."""
        ...

    def answer(self, model: Callable[..., Any], inputs: Tensor) -> Tensor:
        """A model's logits; classes are along the last dim."""
        ...

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of every answer."""
        ...

    def calibrate(self, teacher: Any, student: Any, batches: list[Tensor]) -> None:
        """Give every head of the student the numbers with which it follows the teacher best."""
        ...

    def describe(self, numbers: Numbers) -> str:
        """A validation in a few words."""
        ...


class Adapter:
    """Stages, annealing and distillation of one run.

    Args:
        config: of the run.
        adapt: how the model is adapted.
        pupil: the kind of model.
        teacher: on its device, in eval mode.
        total: steps of the run.
    """

    def __init__(
        self,
        config: TrainConfig,
        adapt: AdaptingConfig,
        pupil: Pupil,
        teacher: nn.Module,
        total: int,
    ) -> None:
        self.adapt, self.pupil, self.teacher = adapt, pupil, teacher
        self._device = next(teacher.parameters()).device
        self._is_bf16 = config.precision == "bf16"
        self._anneal_steps = round(adapt.anneal_share * total)
        self._model: nn.Module | None = None

    def make_start(
        self,
        student: nn.Module,
        inputs: Callable[[], Iterator[Tensor]],
        validate: Callable[[nn.Module], Numbers],
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        """Make of a converted student what training starts from; gives every stage's numbers.

        Args:
            student: with the teacher's weights, on the device; changed in place.
            inputs: gives those of all batches, from the first on.
            validate: a model's numbers.
            say: is told what every stage reached.
        """
        given = list(islice(inputs(), self.adapt.calibration_batches))
        stages: dict[str, Mapping[str, float]] = {}
        layers: dict[str, list[float]] = {}

        def note(name: str, model: nn.Module) -> None:
            stages[name] = dict(validate(model.eval()))
            if model is not self.teacher:
                kind = self.pupil.layers
                layers[name] = layer_errors(kind, self.teacher, model, given[0])
            say(f"{name}: {self.pupil.describe(stages[name])}")

        note("teacher", self.teacher)
        note("converted", student)
        self.pupil.calibrate(self.teacher, student, given)
        note("calibrated", student)
        if self.adapt.match_steps:
            self._match(student, inputs(), say)
            note("matched", student)
        return {"stages": stages, "layers": layers}

    def _match(
        self, student: nn.Module, inputs: Iterator[Tensor], say: Callable[[str], None]
    ) -> None:
        count, lr = self.adapt.match_steps, self.adapt.match_lr
        steps = match_layers(self.pupil.layers, self.teacher, student, inputs, steps=count, lr=lr)
        every = max(1, round(SAY_EVERY * count))
        for step, error in steps:
            if step % every == 0:
                say(f"matching step {step} of {count}: mean layer error {error:.4f}")

    def take(self, model: nn.Module) -> nn.Module:
        """The model that is trained; the last one that was taken is what ``loss`` anneals."""
        self._model = model
        if self.adapt.rank is not None:
            add_low_rank(model, self.adapt.rank, self.pupil.blocks)
        return model

    def with_answers(self, batches: Iterable[Batch], start: int) -> Generator[Batch]:
        """Inputs and targets, the teacher's logits and, while attention is annealed, its share."""
        for step, (inputs, targets) in enumerate(batches, start=start):
            with (
                torch.no_grad(),
                torch.autocast(self._device.type, torch.bfloat16, enabled=self._is_bf16),
            ):
                answers = self.pupil.answer(self.teacher, inputs).float()
            if step < self._anneal_steps:
                share = step / self._anneal_steps
                shares = torch.full((len(inputs),), share, device=self._device)
                yield inputs, targets, answers, shares
            else:
                yield inputs, targets, answers

    def with_blanks(self, make: Callable[[], Batch], num_classes: int) -> Callable[[], Batch]:
        """The largest batch: one of annealing, if there is any."""

        def with_teacher() -> Batch:
            inputs, targets = make()
            dims = targets.shape[:1] if targets.is_floating_point() else targets.shape
            answers = torch.zeros(*dims, num_classes, device=inputs.device)
            if not self._anneal_steps:
                return inputs, targets, answers
            return inputs, targets, answers, torch.zeros(len(inputs), device=inputs.device)

        return with_teacher

    def loss(self, forward: Callable[..., Any], batch: Batch) -> Tensor:
        """The labels' cross-entropy and the distance to the teacher, weighed."""
        inputs, targets, answers, *shares = batch
        assert self._model is not None
        set_share(self._model, shares[0][0] if shares else None)
        weight = self.adapt.distill_weight
        logits = self.pupil.answer(forward, inputs)
        labels = self.pupil.losses(logits, targets)
        taught = distance(logits, answers, self.pupil.loss, self.adapt.temperature)
        return ((1 - weight) * labels + weight * taught).mean()


def distance(
    logits: Float[Tensor, "... K"], answers: Float[Tensor, "... K"], kind: Loss, temperature: float
) -> Float[Tensor, "..."]:
    """T^2 times the KL divergence from the teacher's answers, at the temperature T.

    With the sigmoid every class is a distribution of two outcomes, and they are summed.

    Example:
        >>> distance(torch.zeros(1, 2), torch.zeros(1, 2), "softmax", 2.0)
        tensor([0.])
    """
    logits, answers = logits.float() / temperature, answers.float() / temperature
    if kind == "sigmoid":
        shares = answers.sigmoid()
        found, least = (
            F.binary_cross_entropy_with_logits(x, shares, reduction="none").sum(-1)
            for x in (logits, answers)
        )
        return temperature**2 * (found - least)
    wanted = answers.log_softmax(-1)
    found = F.kl_div(logits.log_softmax(-1), wanted, reduction="none", log_target=True)
    return temperature**2 * found.sum(-1)
