"""One split of the GPUs, one strategy: seconds, bytes and memory of a step, as an estimate.

    step = attention + products + elementwise + copies + sending - hidden

Samples of a group of ranks go one after another or some at once; that changes memory alone.
"""

import math
from dataclasses import dataclass, fields

from flashpoint.lab.scaling.links import Links
from flashpoint.lab.scaling.load import OPTIMIZER_BYTES, Load
from flashpoint.lab.scaling.rates import Rates
from flashpoint.lab.scaling.traffic import (
    ALONE,
    HABITS,
    bytes_copied,
    bytes_of_room,
    bytes_sent,
    seconds_sending,
)
from flashpoint.lab.training.memory_check import ADVISED_SHARE

GRADIENT_BYTES = 4
"""Of each parameter's gradient, which all ranks add up once a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What is asked.

    Attributes:
        tokens: of a sample.
        batch: samples of a step, over all GPUs.
        memory_bytes: of a GPU.
    """

    load: Load
    tokens: int
    batch: int
    num_gpus: int
    memory_bytes: float
    rates: Rates
    links: Links


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How the GPUs work together.

    Attributes:
        data: groups, each with samples of its own.
        sequence: ranks of a group, which share each sample's tokens.
        strategy: of attention over a group.
        recomputes: whether blocks run forward again in backward (activation checkpointing).
    """

    data: int
    sequence: int
    strategy: str
    recomputes: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Of one step on every GPU.

    Attributes:
        attention: of the kernels.
        products: of all other matrix products.
        elementwise: norms, GELU, residuals and the optimizer, bound by memory.
        copies: packing, unpacking and adding up what travels.
        sending: all messages, as if nothing else happened.
        hidden: how much of that passes while something is computed.
    """

    attention: float
    products: float
    elementwise: float
    copies: float
    sending: float
    hidden: float

    @property
    def waiting(self) -> float:
        """For messages."""
        return self.sending - self.hidden

    @property
    def step(self) -> float:
        """All together."""
        computed = self.attention + self.products + self.elementwise + self.copies
        return computed + self.waiting


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes of a GPU at the peak of a step.

    Attributes:
        parameters, gradients, moments: of the model, whole on every GPU, and of AdamW.
        activations: kept for backward, and of the block that is differentiated.
        travelers: keys, values, queries or gradients of other ranks, in one layer.
        inputs: pixels.
    """

    parameters: int
    gradients: int
    moments: int
    activations: int
    travelers: int
    inputs: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a choice costs.

    Attributes:
        at_once: samples that a group works on together: as many as fit.
        sequence_bytes: that each rank sends of attention's tensors in a step.
        gradient_bytes: that each rank sends of the weights' gradients.
        fits: whether memory suffices, with a tenth left for gaps.
    """

    choice: Choice
    seconds: Seconds
    memory: Memory
    at_once: int
    sequence_bytes: int
    gradient_bytes: int
    fits: bool


def estimate(setting: Setting, choice: Choice) -> Estimate:
    """Of a choice that can be; see ``survey.why_not``."""
    at_once, memory = _most_at_once(setting, choice)
    samples = setting.batch // choice.data
    layers = samples * setting.load.depth
    forward, backward = _sent(setting, choice)
    repeats = 2 if choice.recomputes else 1
    return Estimate(
        choice=choice,
        seconds=_seconds(setting, choice),
        memory=memory,
        at_once=at_once,
        sequence_bytes=layers * (repeats * forward + backward),
        gradient_bytes=_gradient_bytes(setting),
        fits=memory.total <= ADVISED_SHARE * setting.memory_bytes,
    )


def _seconds(setting: Setting, choice: Choice) -> Seconds:
    load, rates = setting.load, setting.rates
    samples = setting.batch // choice.data
    layers, share = samples * load.depth, setting.tokens / choice.sequence
    passes = (2 if choice.recomputes else 1, 1)  # forward and backward
    forward, backward = attention_part(setting, choice)
    products = samples * load.matrix_flops(setting.tokens) / choice.sequence
    products_s = products / rates.matrix_flops_per_s
    bytes_passed = load.passed_bytes(has_fused_norm=_has_fused_norm(setting, choice))
    elementwise = layers * share * _dot(passes, bytes_passed)
    optimizer = OPTIMIZER_BYTES * load.num_parameters
    reduction = setting.links.seconds("collective", _gradient_bytes(setting), setting.num_gpus)
    return Seconds(
        attention=layers * _dot(passes, (forward.attention, backward.attention)),
        products=(passes[0] + 2) * products_s,
        elementwise=(elementwise + optimizer) / rates.memory_bytes_per_s,
        copies=layers * _dot(passes, (forward.copies, backward.copies)),
        sending=layers * _dot(passes, (forward.sending, backward.sending)) + reduction,
        hidden=layers * _dot(passes, (forward.hidden, backward.hidden))
        + min(reduction, 2 * products_s / samples),
    )


def attention_part(setting: Setting, choice: Choice) -> tuple[Seconds, Seconds]:
    """Of one sample and layer on one rank, forward and backward: kernels, copies and messages."""
    load, rates = setting.load, setting.rates
    kernels = attention_seconds(setting, choice)
    copied = bytes_copied(choice.strategy, load, setting.tokens, choice.sequence)
    sending, hidden = _message_seconds(setting, choice, kernels)
    forward, backward = (
        Seconds(
            attention=kernels[way],
            products=0.0,
            elementwise=0.0,
            copies=copied[way] / rates.memory_bytes_per_s,
            sending=sending[way],
            hidden=hidden[way],
        )
        for way in (0, 1)
    )
    return forward, backward


def attended_length(setting: Setting, choice: Choice) -> int:
    """Of the shorter one of a call's queries and keys, on one rank."""
    is_short = choice.strategy != ALONE and HABITS[choice.strategy].shortens
    return setting.tokens // choice.sequence if is_short else setting.tokens


def attention_seconds(setting: Setting, choice: Choice) -> tuple[float, float]:
    """Of the kernels for one sample and layer on one rank, forward and backward.

    The rate is that of the shorter one of a call's queries and keys.
    """
    load, rates, tokens = setting.load, setting.rates, setting.tokens
    length = attended_length(setting, choice)
    norm = "layer" if _has_fused_norm(setting, choice) else "none"
    flops = load.attention_flops(tokens) / choice.sequence
    return (
        flops / rates.attention("forward", load.head_dim, length, norm),
        2.5 * flops / rates.attention("backward", load.head_dim, length, norm),
    )


def _message_seconds(
    setting: Setting, choice: Choice, computed: tuple[float, float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of one sample and layer, forward and backward: all of it, and what is hidden.

    A ring sends P - 1 times, each time while one of P blocks is computed.
    """
    if choice.sequence == 1:
        return (0.0, 0.0), (0.0, 0.0)
    ranks, habits = choice.sequence, HABITS[choice.strategy]
    size = (setting.load, setting.tokens, ranks)
    forward, backward = seconds_sending(choice.strategy, *size, setting.links)
    if not habits.overlaps:
        return (forward, backward), (0.0, 0.0)
    beside = (ranks - 1) / ranks
    hidden = (min(forward, beside * computed[0]), min(backward, beside * computed[1]))
    return (forward, backward), hidden


def _sent(setting: Setting, choice: Choice) -> tuple[int, int]:
    return bytes_sent(choice.strategy, setting.load, setting.tokens, choice.sequence)


def _gradient_bytes(setting: Setting) -> int:
    """An all-reduce over all GPUs: each rank sends nearly everything twice."""
    whole = GRADIENT_BYTES * setting.load.num_parameters
    return round(2 * whole * (setting.num_gpus - 1) / setting.num_gpus)


def _most_at_once(setting: Setting, choice: Choice) -> tuple[int, Memory]:
    """The largest even part of a group's samples that fits, else one sample."""
    samples = setting.batch // choice.data
    room = ADVISED_SHARE * setting.memory_bytes - _memory(setting, choice, 0).total
    of_one = _memory(setting, choice, 1).total - _memory(setting, choice, 0).total
    most = max(1, min(samples, int(room // of_one)))
    at_once = max(count for count in divisors(samples) if count <= most)
    return at_once, _memory(setting, choice, at_once)


def _memory(setting: Setting, choice: Choice, at_once: int) -> Memory:
    load = setting.load
    weights = GRADIENT_BYTES * load.num_parameters
    tokens = at_once * setting.tokens // choice.sequence
    kept = load.kept_bytes(has_fused_norm=_has_fused_norm(setting, choice))
    of_layers = load.depth * (load.boundary_bytes if choice.recomputes else kept)
    working = load.working_bytes + (kept if choice.recomputes else 0)
    size = (load, setting.tokens, choice.sequence)
    return Memory(
        parameters=weights,
        gradients=weights * (2 if setting.num_gpus > 1 else 1),  # DDP copies them to send them
        moments=2 * weights,
        activations=tokens * (of_layers + working),
        travelers=at_once * bytes_of_room(choice.strategy, *size),
        inputs=tokens * load.input_bytes,
    )


def _has_fused_norm(setting: Setting, choice: Choice) -> bool:
    """Whether the kernel normalizes q and k: on one GPU, at lengths where that was measured."""
    longest = setting.rates.longest(setting.load.head_dim, "layer")
    return setting.load.has_qk_norm and choice.sequence == 1 and setting.tokens <= longest


def divisors(number: int) -> list[int]:
    """From one to the number.

    Example:
        >>> divisors(12)
        [1, 2, 3, 4, 6, 12]
    """
    small = [count for count in range(1, math.isqrt(number) + 1) if number % count == 0]
    return sorted({*small, *(number // count for count in small)})


def _dot(passes: tuple[int, int], numbers: tuple[float, float]) -> float:
    return passes[0] * numbers[0] + passes[1] * numbers[1]
