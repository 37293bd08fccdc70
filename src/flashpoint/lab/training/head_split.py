"""A model whose heads lie on several processes: ``parallel.tensor`` of a config.

Each process has some heads of every attention and some hidden units of every MLP or memory. All
see the same tokens and get the same output: what each computes of it is added up (``SumLinear``),
and so is the gradient of what they read (``_Read``). Weights are plain tensors, cut from those of
the whole model, so DDP and FSDP treat them as any others.
"""

from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.training.ranks import Ranks
from flashpoint.layers.attention import Attention
from flashpoint.layers.memory import KeyValueMemory
from flashpoint.layers.spec import SOFTMAX
from flashpoint.models.vit import Mlp


class Cut(NamedTuple):
    """Which part of a weight a process has: these places along an axis, by process."""

    dim: int
    places: tuple[Tensor, ...]


def check_heads(model: nn.Module, ranks: Ranks) -> None:
    """Refuse layers that cannot be cut."""
    for name, module in model.named_modules() if ranks.tensor > 1 else ():
        for what, count in _counts(module).items():
            if count % ranks.tensor:
                raise InputError(
                    f"parallel.tensor={ranks.tensor} must divide the {count} {what} of {name}."
                )
        if isinstance(module, Attention) and not isinstance(module.norm, nn.Identity):
            raise UnsupportedError(
                f"parallel.tensor={ranks.tensor}: the output_norm of {name} is over all heads "
                "together, and a process has some. Set parallel.tensor: 1."
            )
        if isinstance(module, KeyValueMemory) and module.activation == SOFTMAX:
            raise UnsupportedError(
                f"parallel.tensor={ranks.tensor}: the softmax of {name} is over all slots "
                "together, and a process has some. Set parallel.tensor: 1."
            )


def _counts(module: nn.Module) -> dict[str, int]:
    """What of a module is cut, and how many there are."""
    if isinstance(module, Attention):
        return {"heads": module.num_heads, "key heads": module.num_kv_heads}
    if isinstance(module, (Mlp, KeyValueMemory)):
        return {"hidden units": module.fc1.out_features}
    return {}


class HeadSplit:
    """What ``split_heads`` did to a model.

    Attributes:
        cuts: of the weights that were cut, by name.
        partial: names of weights that are whole and see the heads of this process alone.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        assert ranks.mesh is not None
        self.group = ranks.mesh.get_group("tensor")
        self.rank, self.size = dist.get_rank(self.group), ranks.tensor
        self.cuts: dict[str, Cut] = {}
        self.partial: set[str] = set()
        for name, module in list(model.named_modules()):
            if isinstance(module, Attention):
                self._split_attention(f"{name}.", module)
            elif isinstance(module, (Mlp, KeyValueMemory)):
                self._split_hidden(f"{name}.", module)

    def cut(self, name: str, whole: Tensor) -> Tensor:
        """This process' part of a weight, or of a moment of it."""
        found = self._cut_of(name)
        if found is None or not whole.dim():
            return whole
        dim, places = found
        return whole.index_select(dim, places[self.rank].to(whole.device))

    def join(self, name: str, part: Tensor) -> Tensor:
        """The whole of what all processes have a part of."""
        found = self._cut_of(name)
        if found is None or not part.dim():
            return part
        dim, places = found
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous(), group=self.group)
        order = torch.cat(places).argsort().to(part.device)
        return torch.cat(parts, dim).index_select(dim, order)

    def _cut_of(self, name: str) -> Cut | None:
        """That of a weight, or of the weight that "NAME.exp_avg" is of."""
        return self.cuts.get(name) or self.cuts.get(name.rpartition(".")[0])

    def sum_(self, number: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        dist.all_reduce(number, group=self.group)
        return number

    def _split_attention(self, prefix: str, layer: Attention) -> None:
        heads, kv, width = layer.num_heads, layer.num_kv_heads, layer.head_dim
        reading = [("q", [heads]), ("kv", [kv, kv])]
        if not layer.is_cross:
            reading = [("qkv", [heads, kv, kv])]
        if layer.gate is not None:
            reading.append(("gate", [heads]))
        for name, parts in reading:
            places = self._places(parts, width)
            self._split_linear(f"{prefix}{name}.", getattr(layer, name), places)
        self._split_sum(prefix, layer, "proj", self._places([heads], width))
        for name in ("alpha", "gain", "bias"):
            learned = getattr(layer, name)
            if learned is not None and learned.numel() == heads:
                self._replace(f"{prefix}{name}", layer, name, Cut(0, self._places([heads], 1)))
            elif learned is not None:
                self.partial.add(f"{prefix}{name}")
        for norm in ("q_norm", "k_norm"):
            parameters = getattr(layer, norm).named_parameters()
            self.partial |= {f"{prefix}{norm}.{name}" for name, _ in parameters}
        layer.num_heads, layer.num_kv_heads = heads // self.size, kv // self.size

    def _split_hidden(self, prefix: str, layer: Mlp | KeyValueMemory) -> None:
        places = self._places([layer.fc1.out_features], 1)
        self._split_linear(f"{prefix}fc1.", layer.fc1, places)
        self._split_sum(prefix, layer, "fc2", places)

    def _places(self, counts: list[int], width: int) -> tuple[Tensor, ...]:
        """By process: its part of rows that hold several kinds of heads, one after another."""
        rows = torch.arange(sum(counts) * width).split([count * width for count in counts])
        by_kind = [kind.chunk(self.size) for kind in rows]
        return tuple(torch.cat(parts) for parts in zip(*by_kind, strict=True))

    def _split_linear(self, prefix: str, linear: nn.Linear, places: tuple[Tensor, ...]) -> None:
        """Some outputs of a layer that all processes call with the same input."""
        for name, _ in list(linear.named_parameters()):
            self._replace(f"{prefix}{name}", linear, name, Cut(0, places))
        linear.out_features = len(places[self.rank])
        linear.register_forward_pre_hook(lambda _, inputs: (_Read.apply(inputs[0], self),))

    def _split_sum(
        self, prefix: str, owner: nn.Module, name: str, places: tuple[Tensor, ...]
    ) -> None:
        """Some inputs of a layer whose outputs are added up."""
        linear = SumLinear(getattr(owner, name), self)
        self._replace(f"{prefix}{name}.weight", linear, "weight", Cut(1, places))
        setattr(owner, name, linear)

    def _replace(self, name: str, owner: nn.Module, field: str, cut: Cut) -> None:
        self.cuts[name] = cut
        whole = getattr(owner, field)
        setattr(owner, field, nn.Parameter(self.cut(name, whole.detach()), whole.requires_grad))


def split_heads(model: nn.Module, ranks: Ranks) -> HeadSplit | None:
    """Leave a model the heads of this process, in place; None where nobody shares them."""
    if ranks.tensor == 1:
        return None
    made = HeadSplit(model, ranks)
    model.register_forward_hook(lambda _, inputs, output: _average(output, made))
    return made


def _average(output: Any, split: HeadSplit) -> Any:
    """Logits as they are; of a penalty, which is a mean over heads, the mean over processes."""
    if not isinstance(output, tuple):
        return output
    logits, penalty = cast("tuple[Tensor, Tensor]", output)
    return logits, _Mean.apply(penalty, split)


class SumLinear(nn.Module):
    """A linear layer of which each process has some inputs: products are added up, then biased."""

    bias: nn.Parameter | None

    def __init__(self, whole: nn.Linear, split: HeadSplit) -> None:
        super().__init__()
        self.weight, self._split = whole.weight, split
        self.register_parameter("bias", whole.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The output of the whole layer, the same on all processes."""
        y = _Sum.apply(F.linear(x, self.weight), self._split)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class _Read(Function):
    """What all processes read: as it is; gradients are added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: HeadSplit) -> Tensor:
        ctx.split = split
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.split.sum_(gradients[0].clone(memory_format=torch.contiguous_format)), None


class _Sum(Function):
    """What processes have parts of, added up; all get the gradient of the whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: HeadSplit) -> Tensor:
        return split.sum_(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


class _Mean(Function):
    """A number that is the mean over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: HeadSplit) -> Tensor:
        ctx.size = split.size
        return split.sum_(x.clone()) / split.size

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] / ctx.size, None
