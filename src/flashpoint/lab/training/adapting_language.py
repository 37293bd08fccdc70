"""A softmax GPT-2 adapted to other attention, as a task of the loop; ``adapter.py`` says how."""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
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
from flashpoint.lab.training.gpt2_layers import GPT2Layers, calibrate_gpt2
from flashpoint.lab.training.language import LanguageConfig, LanguageTask, token_losses
from flashpoint.lab.training.language_model import (
    LanguageModelConfig,
    build_language_model,
    logits_of,
)
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.task import Batch, Numbers
from flashpoint.lab.training.vision import Loss
from flashpoint.layers.spec import SOFTMAX, AttentionSpec

TASK_NAME = "adapt_language"
_BODY, _HEAD, _EMBEDDING = "transformer.", "lm_head.weight", "wte.weight"
_MASKS = (".attn.bias", ".attn.masked_bias")
"""Constants that older files of transformers hold among the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptLanguageConfig(LanguageConfig):
    """A run that adapts a softmax GPT-2 to other attention.

    Attributes:
        weights: the teacher's: a run, its checkpoints/step_N, or a folder that transformers'
            ``save_pretrained`` wrote. ``model.attention`` is what the student will compute.
        adapt: how.
    """

    weights: str | None = None
    adapt: AdaptingConfig = field(default_factory=AdaptingConfig)

    def __post_init__(self) -> None:
        LanguageConfig.__post_init__(self)
        require_teacher(TASK_NAME, self.weights)


class GPT2Pupil:
    """A GPT-2, as ``adapter.Pupil`` wants it."""

    loss: Loss = "softmax"
    blocks = "transformer.h."

    def __init__(self, layers: str) -> None:
        self.layers = GPT2Layers(layers)

    def answer(self, model: Callable[..., Any], inputs: Tensor) -> Tensor:
        """Logits of all tokens."""
        return logits_of(model, inputs)

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of every token."""
        return token_losses(logits, targets)

    def calibrate(self, teacher: Any, student: Any, batches: list[Tensor]) -> None:
        """Gain, bias and scale of every replaced head."""
        calibrate_gpt2(student, batches)

    def describe(self, numbers: Numbers) -> str:
        """Perplexity."""
        return f"perplexity {numbers['perplexity']:.2f}"


class AdaptLanguageTask(LanguageTask):
    """Brings a softmax language model to other attention; see ``task.Task``."""

    def __init__(self, config: AdaptLanguageConfig, ranks: Ranks) -> None:
        super().__init__(config, ranks)
        require_one_process(TASK_NAME, ranks)
        assert config.weights is not None
        given = read_weights(config.weights)
        whose = f"the teacher {config.weights!r}"
        before = (given.settings or {}).get("attention", {}).get("activation", SOFTMAX)
        require_change(whose, before, self.model_config.attention)
        self.teacher = teacher_of(self.model_config, given, whose).to(ranks.device)
        self._source = given.source
        self.flops_per_sample += self.model_config.flops_per_token
        self.identity = {**self.identity, "teacher": given.source["sha256"]}
        total = config.total_steps(self.steps_per_epoch)
        pupil = GPT2Pupil(self.model_config.layers)
        self._adapter = Adapter(config, config.adapt, pupil, self.teacher, total)
        self._given: dict[str, Tensor] = {}

    def begin(self, say: Callable[[str], None] = lambda line: None) -> Mapping[str, Any]:
        """Make what training starts from, stage by stage; gives the numbers of each."""
        student = converted(self.teacher, self.model_config).to(self._ranks.device)
        facts = self._adapter.make_start(
            student, lambda: (ids for ids, _ in self._train.iterate(0)), self.validate, say
        )
        self._given = {name: weight.cpu() for name, weight in student.state_dict().items()}
        known = self.teacher.state_dict()
        rest = {"left_out": [], "grids": None, "other_class": None, "settings": {}}
        new = [name for name in self._given if name not in known]
        return {**self._source, "taken": len(known), "new": new, **rest, **facts}

    def students(self) -> Iterator[tuple[str, nn.Module]]:
        """The student as it is, "converted", and then the same model "calibrated"."""
        student = converted(self.teacher, self.model_config).to(self._ranks.device).eval()
        yield "converted", student
        given = islice(self._train.iterate(0), self._adapter.adapt.calibration_batches)
        calibrate_gpt2(student, [ids for ids, _ in given])
        yield "calibrated", student

    def build_model(self) -> nn.Module:
        """The student."""
        model = super().build_model()
        model.load_state_dict(self._given, strict=False)
        self._given = {}
        return self._adapter.take(model)

    def batches(self, start: int) -> Generator[Batch]:
        """Tokens, with the teacher's logits and, while attention is annealed, its share."""
        yield from self._adapter.with_answers(super().batches(start), start)

    def largest_shares(self, batch_size: int) -> list[Callable[[], Batch]]:
        """Those of annealing, if there is any."""
        (make,) = super().largest_shares(batch_size)
        return [self._adapter.with_blanks(make, self.model_config.vocabulary_size)]

    def loss(self, forward: Callable[..., Any], batch: Batch) -> Tensor:
        """The labels' cross-entropy and the distance to the teacher, weighed."""
        return self._adapter.loss(forward, batch)


def teacher_of(config: LanguageModelConfig, given: GivenWeights, whose: str) -> nn.Module:
    """A softmax model of a config's sizes with given weights, which must be complete."""
    spec = AttentionSpec(activation=SOFTMAX)
    teacher = build_language_model(replace(config, attention=spec, layers="all", scale="fixed"))
    prefix = _BODY if _EMBEDDING in given.tensors else ""
    weights = {
        f"{prefix}{name}": tensor
        for name, tensor in given.tensors.items()
        if not name.endswith(_MASKS)
    }
    expected = teacher.state_dict()
    for name, tensor in expected.items():
        found = weights.get(name)
        if name == _HEAD and found is None:
            continue  # it shares the embedding's
        if found is None or found.shape != tensor.shape:
            has = "nothing" if found is None else f"shape {list(found.shape)}"
            raise InputError(
                f"{whose} does not fit: {name} has {has}, expected {list(tensor.shape)}. Give a "
                "GPT-2 of the config's sizes."
            )
    teacher.load_state_dict({n: w for n, w in weights.items() if n in expected}, strict=False)
    return teacher.eval().requires_grad_(False)


def converted(teacher: nn.Module, config: LanguageModelConfig) -> nn.Module:
    """A model of a config with a teacher's weights, and nothing fitted to it."""
    student = build_language_model(config)
    student.load_state_dict(teacher.state_dict(), strict=False)
    return student


CONFIG, TASK = AdaptLanguageConfig, AdaptLanguageTask
