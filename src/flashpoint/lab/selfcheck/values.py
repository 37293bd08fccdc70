"""The tensors of a case: its random numbers, how they lie in memory, and how far from kinks.

**Kinks.** Where h' jumps (relu at 0, relu6 at 6 too), a score that rounding carries over the kink
changes a gradient by a whole term, in one implementation and not in another: an honest error that
no budget of roundings covers. So no score that somebody sees lies that near. Scores are sums of D
products in fp32 or fp64, off by at most (D + 8) 2^-24 times the sum of the products' sizes. Rows
of q with a score so near to a kink are drawn again, until there is none. What is exact may stay
on the kink: rows of zeros meet relu'(0) = 0 in all implementations.

Where powers of relu are divided by their sum, so is a row whose largest score is positive and less
than usual: its weights are made again in backward, and the less is left of a score's products, the
more its last digits say of the weights' shares.

With norms in 16 bits this cannot be had: the normalized q and k are rounded to 16 bits, and one
score in a hundred is that near. There the reference at the same dtype rounds them alike, and its
error, of which twice is allowed, holds the same jumps.
"""

import functools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import flashpoint
from flashpoint.lab.selfcheck.case import DTYPES, Case, Scored
from flashpoint.ops.activation import BUILTIN, Activation, find_activation
from flashpoint.ops.implementations import HAS_TRITON, INTERPRETED
from flashpoint.ops.qk_norm import normalize

Values = dict[str, Tensor]

KINDS = ("normal", "mean", "large", "zeros", "one-sided", "hundred")
HUNDRED = 25.0  # standard deviation of scores of which the largest are about 100
LARGEST_EXP = 12.0  # the same for exp, whose fp32 ends at a score of 88
LARGEST_EXP_FP16 = 2.0  # where fp16 must hold sums of weights that nothing divides
TRIES = 8  # of drawing rows of q again; then they are zeros
NORM_TERMS = 64  # roundings of a norm in fp32, in units of those of a product
KINKS = {"relu": (0.0,), "relu6": (0.0, 6.0), "leaky": (0.0,)}
OWN = ("tanh", "leaky", "square", "soft")
"""Activations as users make them: by a function, with a derivative, with Triton's besides.

The last two are stated to be nonnegative.
"""
POWERS = {"relu": 1, "relu2": 2, "relu3": 3, "relu4": 4, "relu6": 1, "square": 2}
"""Those whose weights go to 0 at a score of 0, where a row's sum says little of its shares."""


@functools.cache
def activation_of(name: str) -> str | Activation:
    """What a case's word for its activation means to a call."""
    if name in BUILTIN:
        return name
    if name == "tanh":
        return Activation("tanh", torch.tanh)
    if name == "leaky":
        return Activation("leaky", functools.partial(F.leaky_relu, negative_slope=0.125), _leaks)
    if name == "square":
        return Activation("square", torch.square, degree=2, is_nonnegative=True)
    return Activation("soft", _soft, torch.sigmoid, None, _soft_kernels(), is_nonnegative=True)


def is_nonnegative(name: str) -> bool:
    """Whether calls of it may be divided by their sums."""
    return find_activation(activation_of(name)).is_nonnegative


def _soft(scores: Tensor) -> Tensor:
    return F.softplus(scores, threshold=40.0)


def _soft_kernels() -> tuple[Any, Any] | None:
    if not (HAS_TRITON and (INTERPRETED or torch.cuda.is_available())):
        return None
    from flashpoint.ops.gpu import activations

    return activations.softplus, activations.sigmoid


def _leaks(scores: Tensor) -> Tensor:
    return torch.where(scores > 0, 1.0, 0.125).to(scores.dtype)


def sizes_of(case: Case) -> dict[str, tuple[int, ...]]:
    """Shapes of the floating tensors that a call of its function has."""
    sizes = _sizes_of_all(case)
    if case.return_sums:
        rows = sizes["do"][:-1]
        sizes["dsums"] = rows if case.function == "attention" else (*rows[:-2], rows[-1], rows[-2])
    return sizes


def _sizes_of_all(case: Case) -> dict[str, tuple[int, ...]]:
    """Those that every one has."""
    if case.function == "qkvpacked":
        rows = (case.B, case.Lq)
        return {"qkv": (*rows, 3, case.Hq, case.D), "do": (*rows, case.Hq, case.D)}
    if case.function == "varlen":
        assert case.sequences is not None
        num_queries, num_keys = (sum(lengths[i] for lengths in case.sequences) for i in (0, 1))
        return {
            "q": (num_queries, case.Hq, case.D),
            "k": (num_keys, case.Hkv, case.D),
            "v": (num_keys, case.Hkv, case.Dv),
            "do": (num_queries, case.Hq, case.Dv),
        }
    return {
        "q": (case.B, case.Hq, case.Lq, case.D),
        "k": (case.B, case.Hkv, case.Lk, case.D),
        "v": (case.B, case.Hkv, case.Lk, case.Dv),
        "do": (case.B, case.Hq, case.Lq, case.Dv),
    }


def draw(case: Case, call: int, device: torch.device) -> Values:
    """The numbers of a call in fp64, each one that its tensor's dtype holds exactly.

    The first two calls are those of the case; a later one is another draw of the first.
    """
    number = random.Random(f"values {case.seed} {case.index} {call}").getrandbits(63)
    generator = torch.Generator().manual_seed(number)
    values: Values = {}
    for name, size in sizes_of(case).items():
        x = torch.randn(size, generator=generator)
        values[name] = _shaped(case, name, x, generator)
    for name, given in (("bias", case.bias), ("mask", case.mask)):
        if isinstance(given, Scored):
            values[name] = _scored(given, generator)
            if name == "mask" and given.dtype != "bool" and case.normalize == "sum":
                values[name] = values[name].abs()  # else sums to divide by are next to nothing
    if case.gain_dtype is not None:
        for name, kind in zip(("q_gain", "k_gain"), case.norms, strict=True):
            if kind is not None:
                values[name] = torch.randn(case.D, generator=generator)
    for (name, x), layout in zip(values.items(), layouts_of(case, values, call), strict=True):
        if layout == "expanded" and x.numel():
            axis = 1 if x.dim() == 3 else 0
            x = x.narrow(axis, 0, 1).expand_as(x)
        values[name] = rounded(x, dtype_of(case, name)).to(device)
    return away_from_kinks(case, values, generator)


def dtype_of(case: Case, name: str) -> torch.dtype:
    """What a call gets a tensor in."""
    if name == "dsums":
        return torch.float64 if case.dtype == "fp64" else torch.float32
    if name.endswith("gain"):
        assert case.gain_dtype is not None
        return DTYPES[case.gain_dtype]
    given = {"bias": case.bias, "mask": case.mask}.get(name)
    return DTYPES[given.dtype if isinstance(given, Scored) else case.dtype]


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers that a dtype holds, in fp64; booleans as they are."""
    return x.to(dtype) if dtype == torch.bool else x.to(dtype).double()


def _shaped(case: Case, name: str, x: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers as the case wants them."""
    is_scored = name in ("q", "k", "qkv")
    if case.values == "mean" and name in ("v", "qkv"):
        (x[:, :, 2] if name == "qkv" else x).add_(1.0)
    if case.values == "one-sided" and is_scored:
        # A mean score of 2: far in a tail like exp's, a score in bf16 says little of its weight.
        size = 2 / math.pi * math.sqrt(case.D) * _spread(case)
        return x.abs() * min(1.0, math.sqrt(2.0 / size) if size else 1.0)
    if is_scored:
        x = x * _stretch(case)
    if case.values == "zeros" and name not in ("do", "dsums"):
        keep = torch.rand(*x.shape[:-1], 1, generator=generator) < 0.7
        return x * keep
    return x


def _spread(case: Case) -> float:
    """The standard deviation of scores of normal numbers."""
    return math.sqrt(case.D) * abs(case.D**-0.5 if case.scale is None else case.scale)


def _stretch(case: Case) -> float:
    """What q and k are multiplied by."""
    factor, spread = 1.0, _spread(case)
    if not spread:
        return factor
    if case.values == "large":
        factor = 2.0 if case.dtype in ("fp16", "bf16") else 4.0
    elif case.values == "hundred":
        factor = math.sqrt(HUNDRED / spread)
    if case.activation == "exp":
        must_hold = case.dtype == "fp16" and (case.normalize == "length" or case.return_sums)
        most = LARGEST_EXP_FP16 if must_hold else LARGEST_EXP
        if case.D < 16:  # one product of normal numbers is often far from its usual size
            most /= 3
        factor = min(factor, math.sqrt(most / spread))
    return factor


def steepness(case: Case) -> float:
    """By how much the largest weights' relative errors are larger than their scores'.

    Of exp by a score itself, and those of largest weight are about four times the usual.
    """
    if case.activation in POWERS:
        return POWERS[case.activation]
    return max(1.0, 4 * _stretch(case) ** 2 * _spread(case))


def _scored(given: Scored, generator: torch.Generator) -> Tensor:
    """A bias, a mask of factors with zeros among them, or one that hides whole rows too."""
    if given.dtype == "bool":
        seen = torch.rand(given.shape, generator=generator) < 0.7
        return seen & (torch.rand(*given.shape[:3], 1, generator=generator) < 0.9)
    x = torch.randn(given.shape, generator=generator)
    return x * (torch.rand(given.shape, generator=generator) < 0.9)


def options_of(case: Case, device: torch.device) -> dict[str, Any]:
    """All of a call that holds no floating numbers to draw."""
    names = ("normalize", "return_sums", "alpha", "length", "scale", "causal", "window")
    options: dict[str, Any] = {name: getattr(case, name) for name in names}
    if case.normalize == "sum":
        options["floor"] = case.floor
    options["activation"] = activation_of(case.activation)
    if isinstance(case.bias, float):
        options["bias"] = case.bias
    if case.key_lengths is not None:
        options["key_lengths"] = torch.tensor(case.key_lengths, device=device)
    if case.sequences is not None:
        for axis, name in enumerate("qk"):
            ends = torch.tensor([0, *(lengths[axis] for lengths in case.sequences)]).cumsum(0)
            options[f"cu_seqlens_{name}"] = ends.to(device, torch.int32)
        options |= {"max_seqlen_q": case.Lq, "max_seqlen_k": case.Lk}
    return options


def call_function(case: Case, tensors: Values, options: dict[str, Any]) -> Any:
    """The public function of a case on its tensors, gains put into their norms."""
    if case.function == "attention":
        return flashpoint.attention(**tensors, **options)
    if case.function == "varlen":
        return flashpoint.attention_varlen(**tensors, **options)
    rest = {name: x for name, x in tensors.items() if not name.endswith("gain")}
    for name, kind in zip("qk", case.norms, strict=True):
        if kind is not None:
            gain = tensors.get(f"{name}_gain")
            options[f"{name}_norm"] = flashpoint.HeadNorm(kind, gain)  # pyright: ignore[reportArgumentType]
    return flashpoint.attention_qkvpacked(**rest, **options)


def inputs_of(values: Values) -> Values:
    """The tensors of a call without its results' gradients."""
    return {name: x for name, x in values.items() if name not in ("do", "dsums")}


def layouts_of(case: Case, names: Values, call: int) -> Iterator[str]:
    """How each tensor of a call lies in memory."""
    first, second = case.layouts
    words = second if call == 1 else first
    places = {"q": 0, "qkv": 0, "k": 1, "v": 2, "do": 3, "dsums": 3, "bias": 4, "mask": 4}
    for name in names:
        yield words[places[name]] if name in places else "dense"


def lay(x: Tensor, layout: str) -> Tensor:
    """The same numbers in other places of memory."""
    if layout == "swapped" and x.dim() > 2:  # heads and tokens, as a linear layer leaves them
        axes = (0, 2, 3, 1, 4) if x.dim() == 5 else (0, 2, 1, 3) if x.dim() == 4 else (1, 0, 2)
        back = sorted(range(x.dim()), key=axes.__getitem__)
        return x.permute(axes).contiguous().permute(back)
    if layout == "turned":
        return x.mT.contiguous().mT
    if layout == "padded":  # rows that do not begin on whole 16 bytes
        wide = x.new_zeros(*x.shape[:-1], x.shape[-1] + 3)
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]
    if layout == "offset":  # nor does the first
        flat = x.new_zeros(x.numel() + 1)
        flat[1:] = x.flatten()
        return flat[1:].view(x.shape)
    if layout == "expanded" and x.numel():
        axis = 1 if x.dim() == 3 else 0
        return x.narrow(axis, 0, 1).contiguous().expand_as(x)
    return x.contiguous()


_seen: list[Tensor] = []


def _see(scores: Tensor) -> Tensor:
    _seen.append(scores)
    return scores


_LOOK = Activation("look", _see)


def _scores(case: Case, values: Values, options: dict[str, Any]) -> Tensor:
    """[B, Hq, Lq, Lk] scores of a call in fp64, as the reference makes them; 0 where hidden."""
    options = options | {"activation": _LOOK, "normalize": "length", "impl": "reference"}
    options.pop("floor", None)
    with torch.no_grad():
        call_function(case, inputs_of(values), options)
    return _seen.pop()


def away_from_kinks(case: Case, values: Values, generator: torch.Generator) -> Values:
    """The same with rows of q drawn again whose scores are within rounding of a kink."""
    divides = case.normalize == "sum" and case.activation in POWERS
    kinks = KINKS.get(case.activation, ())
    has_norm = any(case.norms)
    if not (kinks or divides) or (has_norm and case.dtype in ("fp16", "bf16")):
        return values
    terms = case.D + (NORM_TERMS if has_norm else 8)
    for attempt in range(TRIES + 1):
        near = _near(case, values, kinks, terms * 2.0**-24)
        if not bool(near.any()):
            break
        _draw_rows_again(case, values, near, generator, as_zeros=attempt == TRIES)
    return values


def _near(case: Case, values: Values, kinks: Sequence[float], share: float) -> Tensor:
    """[B, Hq, Lq]: queries with a score nearer to a kink than its rounding."""
    device = values["do"].device
    options = options_of(case, device)
    s = _scores(case, values, options)
    sizes = _scores(*_in_sizes(case, values, options))
    bound = share * (2 * sizes + s.abs())
    near = torch.zeros_like(s, dtype=torch.bool)
    for kink in kinks:
        near |= (s - kink).abs() <= bound
    is_near = (near & (sizes > 0)).any(-1)
    if case.normalize == "sum" and case.activation in POWERS and s.shape[-1]:
        heights = s.abs() if case.activation == "square" else s
        highest, at = heights.where(sizes > 0, -math.inf).max(-1, keepdim=True)
        usual = sizes.gather(-1, at) / math.sqrt(case.D)
        is_low = (highest >= -bound.gather(-1, at)) & (highest <= usual / 2)
        is_near |= is_low.squeeze(-1)
    return is_near


def _in_sizes(
    case: Case, values: Values, options: dict[str, Any]
) -> tuple[Case, Values, dict[str, Any]]:
    """A call whose scores are |scale| times the sum of |q_d k_d|, and nothing else."""
    values = {name: x for name, x in inputs_of(values).items() if name != "bias"}
    options = {name: x for name, x in options.items() if name != "bias"}
    if case.scale is not None:
        options["scale"] = abs(case.scale)
    if case.function == "qkvpacked":
        q, k, v = values["qkv"].unbind(2)
        q = normalize(q, case.norms[0] or "none", values.pop("q_gain", None), 1e-6)
        k = normalize(k, case.norms[1] or "none", values.pop("k_gain", None), 1e-6)
        values["qkv"] = torch.stack((q, k, v), 2).abs()
    else:
        values |= {name: values[name].abs() for name in "qk"}
    return replace(case, norms=(None, None)), values, options


def _draw_rows_again(
    case: Case, values: Values, near: Tensor, generator: torch.Generator, *, as_zeros: bool
) -> None:
    """Put new numbers into q for some queries."""
    if case.function == "qkvpacked":
        q, near = values["qkv"][:, :, 0], near.transpose(1, 2)
    elif case.function == "varlen":
        assert case.sequences is not None
        q = values["q"]
        parts = [near[b, :, :n].T for b, (n, _) in enumerate(case.sequences)]
        near = torch.cat(parts)
    else:
        q = values["q"]
    fresh = torch.randn(int(near.sum()), case.D, generator=generator)
    fresh = _shaped(case, "q", fresh, generator) * (not as_zeros)
    q[near] = rounded(fresh, DTYPES[case.dtype]).to(q.device)
