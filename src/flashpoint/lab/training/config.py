"""What every run has, whatever its task: a frozen dataclass, checked when it is made."""

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from flashpoint.bounds import Bounds, check_bounds
from flashpoint.errors import InputError, check_choice, describe
from flashpoint.lab.runs.schema import convert, unknown

if TYPE_CHECKING:
    from torch import nn

ScheduleKind = Literal["cosine", "inverse_sqrt"]
Strategy = Literal["auto", "ring", "gather", "reduce", "ulysses"]
"""Those of ``flashpoint.distributed.sequence_parallel``, whose import would load torch."""

MAX_STEPS = 1_000_000_000
MAX_BATCH = 2**24
MAX_PROCESSES = 2**20
MAX_SECONDS = 30 * 24 * 3600.0

Steps: TypeAlias = Annotated[int, Bounds(1, MAX_STEPS)]
StepsOrNone: TypeAlias = Annotated[int, Bounds(0, MAX_STEPS)]
Rate: TypeAlias = Annotated[float, Bounds(0.0, 1e6, above=True)]
Betas: TypeAlias = Annotated[tuple[float, float], Bounds(0.0, 1.0, below=True)]
Decay: TypeAlias = Annotated[float, Bounds(0.0, 1e6)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A registered model and what is changed in it.

    In a file it is one section: ``name`` and, beside it, fields of the model's own config.

    Attributes:
        name: as ``flashpoint models`` lists it.
        settings: fields of the model's config, by name.

    Example:
        >>> ModelConfig.from_section({"name": "vit_s16", "pool": "gap"}, "model").settings
        {'pool': 'gap'}
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def parse(cls, name: str) -> "ModelConfig":
        """A model as it is registered."""
        return cls(name=name)

    @classmethod
    def from_section(cls, section: Mapping[str, Any], path: str) -> "ModelConfig":
        """A name and settings from one mapping; the task checks the settings."""
        settings = dict(section)
        name = settings.pop("name", None)
        if not isinstance(name, str):
            raise InputError(
                f"{path}.name={describe(name)} must be the name of a model, as 'vit_s16'."
            )
        return cls(name=name, settings=settings)

    def typed(self, owner: type, words: tuple[str, ...] = ()) -> dict[str, Any]:
        """The settings as fields of a model's own config, checked by name and type.

        Args:
            owner: the class of that config.
            words: fields that may stay a word, which the model knows the meaning of.
        """
        hints = typing.get_type_hints(owner)
        for key in self.settings:
            if key not in hints:
                raise unknown(key, {"name": str, **hints}, "model")
        return {
            key: value
            if key in words and isinstance(value, str)
            else convert(value, hints[key], f"model.{key}")
            for key, value in self.settings.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """One mapping, as ``from_section`` takes it."""
        return {"name": self.name, **self.settings}


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW; decay acts on kernels only: weights of linear and convolution layers.

    Attributes:
        lr: peak learning rate.
        betas: decay of the running mean and of the running square of the gradient.
        weight_decay: multiplied by the learning rate, as in PyTorch.
        clip: largest norm of the whole gradient; longer ones are shortened to it. Null: none are.
    """

    lr: Rate = 1e-3
    betas: Betas = (0.9, 0.999)
    weight_decay: Decay = 0.1
    clip: Annotated[float | None, Bounds(0.0, 1e30, above=True)] = 1.0

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """How the learning rate goes: linearly up from 0, then down.

    Attributes:
        kind: how it goes down: to 0 along a "cosine", or as the "inverse_sqrt" of the step.
        warmup_steps: steps on the way up.
        warmup_share: the same as a share of all steps; only one of the two may be set.
    """

    kind: ScheduleKind = "cosine"
    warmup_steps: StepsOrNone = 0
    warmup_share: Annotated[float, Bounds(0.0, 1.0)] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.warmup_steps and self.warmup_share:
            raise InputError(
                f"warmup_steps={self.warmup_steps} and warmup_share={self.warmup_share} are both "
                "set. Set one of them to 0."
            )


_WORDS: Mapping[str, Mapping[str, Any]] = {
    "ddp": {},
    "fsdp": {"shard": True},
    "none": {"data": 1},
}
"""Short words for ``parallel``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """What several processes of torchrun do: data x sequence x tensor of them.

    Written as a section, or as a word: "ddp" is the default, "fsdp" sets ``shard``, and "none"
    wants one process.

    Attributes:
        data: groups that share the samples of a batch. Null: as many as there are processes for.
        sequence: processes that share the tokens of each sample.
        strategy: how these attend over all tokens, as for ``sequence_parallel``: "auto" sends
            fewest bytes, and ``flashpoint plan`` names the fastest.
        tensor: processes that share the heads, and the hidden units of MLPs and memories.
        shard: whether each of the data x sequence processes keeps a share of weights, gradients
            and moments (FSDP2), or all of them (DDP).
        timeout_s: how long a process waits for another before all end. Null: as long as PyTorch
            does, 30 minutes on a CPU and 10 between GPUs.

    Example:
        >>> ParallelConfig(sequence=2).sizes(8)
        (4, 2, 1)
    """

    data: Annotated[int | None, Bounds(1, MAX_PROCESSES)] = None
    sequence: Annotated[int, Bounds(1, MAX_PROCESSES)] = 1
    strategy: Strategy = "auto"
    tensor: Annotated[int, Bounds(1, MAX_PROCESSES)] = 1
    shard: bool = False
    timeout_s: Annotated[float | None, Bounds(1, MAX_SECONDS)] = None

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.strategy != "auto" and self.sequence == 1:
            raise InputError(
                f"strategy={self.strategy!r} is for processes that share tokens, but sequence=1. "
                "Leave it out, or set sequence to 2 or more."
            )

    @classmethod
    def parse(cls, word: "str | ParallelConfig") -> "ParallelConfig":
        """The section that a word stands for."""
        if isinstance(word, ParallelConfig):
            return word
        check_choice("parallel", word, tuple(_WORDS))
        return cls(**_WORDS[word])

    def to_dict(self) -> str | dict[str, Any]:
        """The word for it where there is one, else a section."""
        for word, fields in _WORDS.items():
            if self == ParallelConfig(**fields):
                return word
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def splits_model(self) -> bool:
        """Whether a sample needs more than one process."""
        return self.sequence * self.tensor > 1

    def sizes(self, num_processes: int) -> tuple[int, int, int]:
        """Processes along data, sequence and tensor; InputError if there are not so many."""
        inner = self.sequence * self.tensor
        data = num_processes // inner if self.data is None else self.data
        if max(data, 1) * inner != num_processes:
            rest = "N" if self.data is None else self.data
            wanted = f"data {rest} x sequence {self.sequence} x tensor {self.tensor}"
            total = f"a multiple of {inner}" if self.data is None else str(self.data * inner)
            start = inner if self.data is None else self.data * inner
            raise InputError(
                f"parallel asks for {wanted} = {total} processes, and there "
                f"{'is' if num_processes == 1 else 'are'} {num_processes}. Change parallel, or "
                f"start by torchrun --nproc-per-node {start}."
            )
        return data, self.sequence, self.tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One run, as the loop sees it; a task adds its data and its loss.

    Attributes:
        task: what is learned; ``training/task_registry.py`` lists them.
        model: what learns it.
        seed: of weights, of the order of samples, of augmentation.
        epochs: passes over the training set; exactly one of epochs and steps is set.
        steps: updates.
        batch_size: samples per update, over all processes and accumulated parts; of text, tokens
            that there is room for.
        accumulate: parts that a process cuts its share of a batch into, to need less memory.
        optimizer, schedule: how weights move.
        precision: "bf16" is autocast; weights and optimizer stay in fp32.
        compile: "default" is torch.compile; "graphs" also captures whole updates as CUDA graphs,
            one for each shape of batches, for models so small that launches take longer than
            kernels; "graphs_only" captures them without the compiler, whose work takes a minute.
        parallel: what several processes of torchrun share: samples, and by ``sequence`` and
            ``tensor`` also the tokens and heads of each. By default, samples alone.
        device: "auto" is the GPU if there is one.
        log_every: steps between two lines in metrics.jsonl.
        evaluate_every, checkpoint_every: likewise; both also happen at the end, and every
            evaluation is of a checkpoint.
        keep_checkpoints: how many of the latest are kept, besides the best.
        max_bad_steps: updates in a row whose loss or gradient may be non-finite. They are left
            out and counted; one more ends the run.
    """

    task: str = "vision"
    model: ModelConfig
    seed: Annotated[int, Bounds(0, 2**63 - 1)] = 0
    epochs: Annotated[float | None, Bounds(0.0, 1e6, above=True)] = None
    steps: Annotated[int | None, Bounds(1, MAX_STEPS)] = None
    batch_size: Annotated[int, Bounds(1, MAX_BATCH)] = 1024
    accumulate: Annotated[int, Bounds(1, MAX_BATCH)] = 1
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: Literal["bf16", "fp32"] = "bf16"
    compile: Literal["none", "default", "graphs", "graphs_only"] = "none"
    parallel: ParallelConfig = ParallelConfig()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    log_every: Steps = 50
    evaluate_every: Steps = 1000
    checkpoint_every: Steps = 1000
    keep_checkpoints: Steps = 2
    max_bad_steps: StepsOrNone = 20

    def __post_init__(self) -> None:
        check_bounds(self)
        if (self.epochs is None) == (self.steps is None):
            raise InputError(
                f"epochs={self.epochs} and steps={self.steps}: exactly one must be set, "
                "the other null, as by --set epochs=null."
            )

    @property
    def is_compiled(self) -> bool:
        """Whether torch.compile is to be used."""
        return self.compile in ("default", "graphs")

    @property
    def is_captured(self) -> bool:
        """Whether updates are to become CUDA graphs."""
        return self.compile in ("graphs", "graphs_only")

    def complete_model(self) -> Any:
        """The model's own config, with every setting."""
        from flashpoint.models.registry import model_config  # plans of studies need no torch

        return model_config(self.model.name, **self.model.settings)

    def new_model(self) -> "nn.Module":
        """The model with fresh weights; the config is a run's, complete."""
        from flashpoint.models.registry import create_model

        return create_model(self.model.name, **self.model.settings)

    def files(self) -> Mapping[str, Path]:
        """What the run's folder must hold besides the config, by name, and where it lies now."""
        return {}

    def total_steps(self, steps_per_epoch: float) -> int:
        """Updates of the whole run, with so many in an epoch.

        Example:
            >>> config = TrainConfig(model=ModelConfig(name="vit_s16"), epochs=1.5)
            >>> config.total_steps(10.0)
            15
        """
        if self.epochs is None:
            assert self.steps is not None
            return self.steps
        steps = max(1, round(self.epochs * steps_per_epoch))
        if steps > MAX_STEPS:
            raise InputError(
                f"epochs={self.epochs} are {steps:,} steps, more than {MAX_STEPS:,}. Lower epochs."
            )
        return steps
