"""A softmax ViT adapted to other attention, as a task of the loop.

A run begins with a teacher, the softmax model whose weights the config names. What a run starts
from is made of it in stages (``matching.py``): converted, calibrated, matched layer by layer. Then
the loop fine-tunes the whole model on the labels and on the teacher's answers, and for the first
part of it attention goes linearly from softmax to what the config says (``blending.py``).

All that a step needs is in its batch, the teacher's answers too. So runs go on as any others do.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.bounds import Bounds, check_bounds
from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.training.blending import set_share
from flashpoint.lab.training.config import StepsOrNone
from flashpoint.lab.training.given_weights import GivenWeights, read_weights
from flashpoint.lab.training.low_rank import add_low_rank
from flashpoint.lab.training.matching import calibrate_vit, layer_errors, match_layers
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.task import Batch
from flashpoint.lab.training.vision import Loss, VisionConfig, VisionTask, cross_entropy
from flashpoint.layers.spec import SOFTMAX, AttentionSpec
from flashpoint.models.cost import forward_flops
from flashpoint.models.vit import ViT
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
        if self.weights is None:
            raise InputError(
                "weights=None, but task 'adapt' needs a teacher. Set it to a run's folder."
            )


class AdaptTask(VisionTask):
    """Brings a softmax model to other attention; see ``task.Task``."""

    def __init__(self, config: AdaptConfig, ranks: Ranks) -> None:
        super().__init__(config, ranks)
        self._adapt = config.adapt
        if ranks.size > 1:
            raise UnsupportedError(
                f"task 'adapt' runs in one process, not {ranks.size}. Start it without torchrun."
            )
        assert config.weights is not None
        given = read_weights(config.weights)
        self.teacher = self._make_teacher(given).to(ranks.device)
        self.flops_per_sample += forward_flops(self.teacher.config)
        self.identity = {**self.identity, "teacher": given.source["sha256"]}
        total = config.total_steps(self.steps_per_epoch)
        self._anneal_steps = round(config.adapt.anneal_share * total)
        self._model: nn.Module | None = None

    def _make_teacher(self, given: GivenWeights) -> ViT:
        whose = f"the teacher {self.config.weights!r}"
        settings = given.settings or {}
        before = settings.get("attention", {}).get("activation", SOFTMAX)
        if before != SOFTMAX:
            raise InputError(
                f"{whose} computes {before} already, not softmax. Adapt a softmax model, or "
                "fine-tune this one: flashpoint train --weights."
            )
        if self.model_config.attention.activation == SOFTMAX:
            raise InputError("model.attention is softmax, as the teacher's. Choose another one.")
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
        num_batches = self._adapt.calibration_batches
        given = [batch.images for batch in islice(self._train.iterate(0), num_batches)]
        stages: dict[str, Mapping[str, float]] = {}
        layers: dict[str, list[float]] = {}

        def note(name: str, model: ViT) -> None:
            stages[name] = dict(self.validate(model.eval()))
            if model is not self.teacher:
                layers[name] = layer_errors(self.teacher, model, given[0])
            say(f"{name}: {stages[name]['top1']:.2%} top-1")

        note("teacher", self.teacher)
        note("converted", student)
        calibrate_vit(self.teacher, student, given)
        note("calibrated", student)
        if self._adapt.match_steps:
            self._match(student, say)
            note("matched", student)
        self._given = {name: weight.cpu() for name, weight in student.state_dict().items()}
        return {**self._facts, "stages": stages, "layers": layers}

    def _match(self, student: ViT, say: Callable[[str], None]) -> None:
        config = self._adapt
        images = (batch.images for batch in self._train.iterate(0))
        steps = match_layers(
            self.teacher, student, images, steps=config.match_steps, lr=config.match_lr
        )
        every = max(1, round(SAY_EVERY * config.match_steps))
        for step, error in steps:
            if step % every == 0:
                say(f"matching step {step} of {config.match_steps}: mean layer error {error:.4f}")

    def build_model(self) -> nn.Module:
        """The student; the last one that was built is what ``loss`` anneals."""
        self._model = super().build_model()
        if self._adapt.rank is not None:
            add_low_rank(self._model, self._adapt.rank)
        return self._model

    def batches(self, start: int) -> Generator[Batch]:
        """As for vision, with the teacher's logits and, while attention is annealed, its share."""
        is_bf16 = self.config.precision == "bf16"
        device = self._ranks.device
        for step, (images, targets) in enumerate(super().batches(start), start=start):
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
                answers = self.teacher(images).float()
            if step < self._anneal_steps:
                share = torch.full((len(images),), step / self._anneal_steps, device=device)
                yield images, targets, answers, share
            else:
                yield images, targets, answers

    def largest_shares(self, batch_size: int) -> list[Callable[[], Batch]]:
        """Those of annealing, if there is any."""
        (make,) = super().largest_shares(batch_size)

        def with_teacher() -> Batch:
            images, targets = make()
            answers = torch.zeros_like(targets)
            if not self._anneal_steps:
                return images, targets, answers
            return images, targets, answers, torch.zeros(len(images), device=images.device)

        return [with_teacher]

    def loss(self, forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        """The labels' cross-entropy and the distance to the teacher, weighed."""
        images, targets, answers, *shares = batch
        assert self._model is not None
        set_share(self._model, shares[0][0] if shares else None)
        weight, kind = self._adapt.distill_weight, self.config.loss
        logits = forward(images)
        labels = cross_entropy(logits, targets, kind)
        taught = distance(logits, answers, kind, self._adapt.temperature)
        return ((1 - weight) * labels + weight * taught).mean()


def distance(
    logits: Float[Tensor, "B K"], answers: Float[Tensor, "B K"], kind: Loss, temperature: float
) -> Float[Tensor, " B"]:
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


CONFIG, TASK = AdaptConfig, AdaptTask
