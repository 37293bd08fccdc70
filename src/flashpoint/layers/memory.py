"""The feed-forward layer and the key-value memory, which are one thing (arXiv 2302.06461).

    y = h(x K^T + b) V + c      K [slots, E] the keys, V [slots, E] the values

With h = relu it is the feed-forward layer Linear-ReLU-Linear, with softmax over slots a memory.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from flashpoint.errors import InputError, check_choice, describe
from flashpoint.layers.spec import SOFTMAX
from flashpoint.ops.activation import find_activation, known_activations
from flashpoint.ops.check import check_count, check_flag, check_number, check_tensor
from flashpoint.shapes import Float, Int

NORM_EPS = 1e-9  # the variance of softmax's output starts near 1e-6, under LayerNorm's usual eps


class SlotUse(NamedTuple):
    """The slots that one token used, the heaviest first, and their weights."""

    slots: Int[Tensor, " used"]
    weights: Float[Tensor, " used"]


class KeyValueMemory(nn.Module):
    """A layer of slots, each a key and a value; its output is the sum of values by their weights.

    Parameters have timm's names, so that weights of Linear-ReLU-Linear load as they are: rows of
    ``fc1.weight`` are keys, columns of ``fc2.weight`` values. Kernels start xavier uniform, biases
    at zero.

    Args:
        dim: E, the width of x.
        slots: how many there are; mlp_dim of a feed-forward layer.
        activation: h: "softmax" over the slots, or one of relu, relu2, relu3, relu4, relu6, gelu,
            silu, softplus, sigmoid, exp, identity or a registered name for each slot by itself.
        output_norm: a LayerNorm on the output. softmax's output is so small that a residual
            swamps it; with this norm it is the paper's equivalent of the relu layer.
        bias: whether both layers have biases.

    Example:
        >>> memory = KeyValueMemory(64, 256, "softmax", output_norm=True)
        >>> memory(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        dim: int,
        slots: int,
        activation: str = "relu",
        *,
        output_norm: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_count("dim", dim, smallest=1)
        check_count("slots", slots, smallest=1)
        check_choice("activation", activation, (*known_activations(), SOFTMAX))
        check_flag("output_norm", output_norm)
        self.activation = activation
        self.fc1 = nn.Linear(dim, slots, bias=bias)
        self.fc2 = nn.Linear(slots, dim, bias=bias)
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS) if output_norm else nn.Identity()
        self.reset_parameters()

    @property
    def num_slots(self) -> int:
        """Slots there are now."""
        return self.fc1.out_features

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start anew: xavier kernels, zero biases."""
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)
            if "bias" in dict(layer.named_parameters()):
                nn.init.zeros_(layer.bias)
        if isinstance(self.norm, nn.LayerNorm):
            self.norm.reset_parameters()

    def forward(self, x: Float[Tensor, "*B E"]) -> Float[Tensor, "*B E"]:
        """Token by token."""
        return self.norm(self.fc2(self.weights(x)))

    def weights(self, x: Float[Tensor, "*B E"]) -> Float[Tensor, "*B slots"]:
        """What each slot's value is multiplied by."""
        scores = self.fc1(x)
        if self.activation == SOFTMAX:
            return scores.softmax(-1)
        return find_activation(self.activation).weights_of(scores)

    @torch.no_grad()
    def used_slots(self, x: Float[Tensor, "*B E"], threshold: float = 0.0) -> list[SlotUse]:
        """For each token the slots whose weights exceed a threshold in size, heaviest first.

        relu leaves most slots exactly unused. Tokens come in the order of ``x.view(-1, E)``.

        Example:
            >>> memory = KeyValueMemory(2, 3)
            >>> keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
            >>> _ = memory.load_state_dict({"fc1.weight": keys}, strict=False)
            >>> memory.used_slots(torch.tensor([1.0, -1.0]))[0].slots.tolist()
            [2, 0]
        """
        if check_number("threshold", threshold) < 0:
            raise InputError(f"threshold={threshold} must be 0 or more.")
        uses: list[SlotUse] = []
        for token in self.weights(x).reshape(-1, self.num_slots):
            order = token.abs().argsort(descending=True, stable=True)
            slots = order[token[order].abs() > threshold]
            uses.append(SlotUse(slots, token[slots]))
        return uses

    @torch.no_grad()
    def add_slots(
        self,
        keys: Float[Tensor, "added E"],
        values: Float[Tensor, "added E"],
        key_biases: Float[Tensor, " added"] | None = None,
    ) -> Int[Tensor, " added"]:
        """Append slots; gives their numbers, which ``remove_slots`` takes.

        Outputs are sums, so that the output before the norm grows by exactly what the new slots
        give alone. (Not with softmax, whose slots share one sum of weights.)

        Parameters stay the same objects with more rows or columns, so that whoever holds them
        keeps them, optimizers too. What an optimizer remembers of them has the old shape: drop it,
        ``optimizer.state.pop(parameter, None)``, for fc1.weight, fc1.bias and fc2.weight.

        Args:
            keys, values: a row for each slot.
            key_biases: added to the slots' scores. None: zeros.
        """
        for name, rows in (("keys", keys), ("values", values)):
            check_tensor(name, rows)
            if rows.dim() != 2 or rows.shape != (len(keys), self.fc1.in_features):
                raise InputError(
                    f"{name} have shape {list(rows.shape)}, expected [{len(keys)}, "
                    f"{self.fc1.in_features}]: a row for each slot, as wide as the layer."
                )
        has_bias = "bias" in dict(self.fc1.named_parameters())
        if key_biases is not None and (not has_bias or key_biases.shape != (len(keys),)):
            raise InputError(
                f"key_biases are {describe(key_biases)}, expected "
                + (f"shape [{len(keys)}]." if has_bias else "None: this memory has no biases.")
            )
        weight, first = self.fc1.weight, self.num_slots
        added = keys.new_zeros(len(keys)) if key_biases is None else key_biases
        _replace(weight, torch.cat([weight, keys.to(weight)]))
        _replace(self.fc2.weight, torch.cat([self.fc2.weight, values.to(weight).T], dim=1))
        if has_bias:
            _replace(self.fc1.bias, torch.cat([self.fc1.bias, added.to(weight)]))
        self._note_slots()
        return torch.arange(first, self.num_slots)

    @torch.no_grad()
    def remove_slots(self, slots: Int[Tensor, " removed"]) -> None:
        """Take slots out; those behind them move up. See ``add_slots`` for optimizers.

        Removing what was added last gives the parameters back bit by bit.
        """
        check_tensor("slots", slots)
        if slots.dim() != 1 or slots.is_floating_point() or slots.dtype == torch.bool:
            raise InputError(f"slots must be a vector of numbers of slots. Got {describe(slots)}.")
        numbers = set(slots.tolist())
        wrong = sorted(number for number in numbers if not 0 <= number < self.num_slots)
        if wrong or len(numbers) == self.num_slots:
            raise InputError(
                f"slots {wrong or 'all'} cannot be removed: there are {self.num_slots}, numbered "
                "from 0, and one must stay."
            )
        kept = [slot for slot in range(self.num_slots) if slot not in numbers]
        index = torch.tensor(kept, device=self.fc1.weight.device)
        _replace(self.fc1.weight, self.fc1.weight[index])
        _replace(self.fc2.weight, self.fc2.weight[:, index].contiguous())
        if "bias" in dict(self.fc1.named_parameters()):
            _replace(self.fc1.bias, self.fc1.bias[index])
        self._note_slots()

    def _note_slots(self) -> None:
        self.fc1.out_features = self.fc2.in_features = len(self.fc1.weight)

    def extra_repr(self) -> str:
        """What it computes, for ``print(model)``."""
        return f"activation={self.activation}"


def _replace(parameter: Tensor, value: Tensor) -> None:
    """Another value, of another shape, in the same object; a gradient of the old shape goes."""
    parameter.data = value
    parameter.grad = None
