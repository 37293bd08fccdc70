"""A model among the processes of a run: alone, DDP or FSDP2, its tokens and heads cut or whole."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.training.config import ParallelConfig, TrainConfig
from flashpoint.lab.training.head_split import HeadSplit, check_heads, split_heads
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.task import Task
from flashpoint.lab.training.token_split import check_tokens, split_tokens

SPLIT_TASKS = ("vision", "text")
"""Those whose models are ours, so that their tokens and heads can be cut."""


def check_sharing(config: TrainConfig, ranks: Ranks) -> None:
    """Refuse a batch that cannot be shared out evenly, and what several processes cannot do."""
    parts = ranks.data_size * config.accumulate
    if config.batch_size % parts:
        raise InputError(
            f"batch_size={config.batch_size} must be a multiple of processes times accumulate, "
            f"{ranks.data_size} x {config.accumulate} = {parts}."
        )
    if config.is_captured and (ranks.device.type != "cuda" or ranks.size > 1):
        raise UnsupportedError(
            f"compile={config.compile!r} needs one process on a GPU, not {ranks.size} on "
            f"{ranks.device.type}. Pass --set compile=default or --set compile=none."
        )
    split = config.parallel
    if not split.splits_model:
        return
    words = f"parallel.sequence={split.sequence} and parallel.tensor={split.tensor}"
    if config.task not in SPLIT_TASKS:
        raise UnsupportedError(
            f"{words}: task {config.task!r} shares samples alone. Set both to 1, or take a task "
            f"of {', '.join(SPLIT_TASKS)}."
        )
    if config.compile != "none":
        raise UnsupportedError(
            f"{words}: messages inside of a model are not compiled. Pass --set compile=none, or "
            "set both to 1."
        )


def check_split(model: nn.Module, ranks: Ranks, strategy: str = "auto") -> None:
    """Refuse a model that cannot be cut as asked; it may be one without values."""
    check_tokens(model, ranks, strategy)
    check_heads(model, ranks)


class Shared:
    """A model on its device, with gradients averaged over all processes.

    Args:
        model: on any device.
        ranks: the processes.
        parallel: what they share.
        compiled: whether training calls a compiled model.
        shapes_vary: compile once for all shapes, not for the first, then again.

    Attributes:
        module: the model itself, for validation and state.
        forward: what training calls: wrapped and compiled as asked.
        ranks: the processes.
        heads: what was cut of the weights; None where they are whole.
        num_parameters: of the whole model.
        is_sharded: whether weights, gradients and moments are spread over the replicas.
    """

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        *,
        parallel: ParallelConfig = ParallelConfig(),  # noqa: B008  frozen
        compiled: bool,
        shapes_vary: bool = False,
    ) -> None:
        self.ranks = ranks
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        split_tokens(model, ranks, parallel.strategy)
        self.heads: HeadSplit | None = split_heads(model, ranks)
        self.module = model.to(ranks.device)
        self.is_sharded = parallel.shard and ranks.replica_size > 1
        self._ddp: DistributedDataParallel | None = None
        if self.is_sharded:
            _shard(self.module, ranks)
        elif ranks.replica_size > 1:
            assert ranks.replicas is not None
            group = ranks.replicas.get_group("replica")
            self._ddp = DistributedDataParallel(self.module, process_group=group)
        wrapped = self.module if self._ddp is None else self._ddp
        self.forward: Callable[..., Tensor] = wrapped
        if compiled and shapes_vary:
            self.forward = compiled_for_shapes(wrapped)
        elif compiled:
            self.forward = torch.compile(wrapped)

    @classmethod
    def of(cls, task: Task, ranks: Ranks) -> "Shared":
        """A task's model with fresh weights, shared and compiled as its config says."""
        config = task.config
        return cls(
            task.build_model(),
            ranks,
            parallel=config.parallel,
            compiled=config.is_compiled,
            shapes_vary=task.shapes_vary,
        )

    @contextmanager
    def gradients(self, *, are_complete: bool) -> Generator[None]:
        """Around forward and backward of a part: processes meet after the last part only."""
        if self.is_sharded:
            cast("Any", self.module).set_requires_gradient_sync(are_complete)
        if self._ddp is None or are_complete:
            yield
        else:
            with self._ddp.no_sync():
                yield

    def clip_(self, most: float) -> Tensor:
        """Finish the gradients and shorten them to a norm of at most this; gives what it was."""
        parameters = list(self.module.parameters())
        if self.heads is None:
            return whole(nn.utils.clip_grad_norm_(parameters, most))
        norm = self._norm_over_heads(self.heads)
        nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return norm

    def _norm_over_heads(self, heads: HeadSplit) -> Tensor:
        """The norm of the gradient, of which each process has the part of its heads."""
        squares = torch.zeros(2, device=self.ranks.device)  # of weights that are whole, and cut
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                gradient = local(parameter.grad)
                if name in heads.partial:
                    heads.sum_(gradient)
                squares[int(name in heads.cuts)] += gradient.float().square().sum()
        if self.is_sharded:
            assert self.ranks.replicas is not None
            dist.all_reduce(squares, group=self.ranks.replicas.get_group("replica"))
        heads.sum_(squares[1:])
        return squares.sum().sqrt()


def compiled_for_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled once for all shapes of its tensors, whose numbers of axes stay."""
    from torch._dynamo import config as dynamo  # the compiler takes seconds to load

    compiled = torch.compile(function, dynamic=True)

    def run(*inputs: Any, **options: Any) -> Any:
        # Shapes vary, numbers of modules do not: else the compiler begins twice.
        with dynamo.patch(specialize_float=True):
            return compiled(*inputs, **options)

    return run


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be spread over the replicas, in one piece."""
    return cast("Any", tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local(tensor: Tensor) -> Tensor:
    """This process' piece of a tensor that may be spread over the replicas."""
    return cast("Any", tensor).to_local() if hasattr(tensor, "to_local") else tensor


def _shard(model: nn.Module, ranks: Ranks) -> None:
    """Spread the weights: every layer of every list by itself, then what is left."""
    from torch.distributed.fsdp import fully_shard  # half a second that one process can do without

    assert ranks.replicas is not None
    mesh = ranks.replicas["replica"]
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
