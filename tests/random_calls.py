"""Random small calls of the operator, and laws over them."""

from functools import partial
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from implementations import HAS_GPU, HAS_TRITON, IMPLEMENTATIONS, is_interpreted, placed
from results import evaluate

from flashpoint import attention
from flashpoint.ops.activation import ACTIVATIONS, BUILTIN

quick = settings(max_examples=40, derandomize=True, deadline=None, database=None)


def law(implementations=None, num_examples=40, **strategies):
    """A test over random calls, by default of all implementations but Triton's compiled kernels.

    Every other call is another kernel for Triton, so that its examples are few.
    """
    if implementations is None:
        implementations = ["reference", "cpu"] if HAS_GPU else IMPLEMENTATIONS

    def decorate(test):
        def check(impl):
            @settings(quick, max_examples=num_examples // 20 if impl == "triton" else num_examples)
            @given(**strategies)
            def hold(**drawn):
                test(impl, **drawn)

            hold()

        check.__name__ = test.__name__
        return pytest.mark.parametrize("impl", implementations)(check)

    return decorate


LAYOUTS = (
    lambda x: x,
    lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    lambda x: x.mT.contiguous().mT,
    lambda x: torch.stack([x, x], -1)[..., 1],
)
alphas = st.sampled_from([-0.5, 0.0, 0.5, 1.0, 1.7])
windows = st.none() | st.tuples(*[st.none() | st.integers(0, 6)] * 2)
NONNEGATIVE = tuple(name for name in BUILTIN if ACTIVATIONS[name].is_nonnegative)
numbers = {
    "activation": st.sampled_from(BUILTIN),
    "alpha": alphas,
    "scale": st.sampled_from([None, 0.3, 2.0, -1.5]),
}
lengths = {"length": st.sampled_from(["visible", "keys", 7, 0.4])}
positions = {"causal": st.booleans(), "window": windows}


def small_triton_tiles():
    """Patches for tiles of 4 by 4 in Triton's interpreter; its compiler wants at least 16."""
    if not (HAS_TRITON and is_interpreted("triton")):
        return
    from flashpoint.ops.gpu.portable import backward, backward_scored, forward

    small = {"BLOCK_M": 4, "BLOCK_N": 4, "num_warps": 4, "num_stages": 1}
    for module, name in (
        (forward, "forward_tiles"),
        (backward, "dkdv_tiles"),
        (backward, "dq_tiles"),
        (backward_scored, "scored_tiles"),
    ):
        yield mock.patch.object(module, name, side_effect=lambda *_: dict(small))


@st.composite
def problems(draw):
    """q, k, v in fp64, with strides of any kind."""
    B, Hkv, group, D, Dv = (draw(st.integers(1, most)) for most in (3, 2, 3, 4, 4))
    Lq, Lk = draw(st.integers(0, 8)), draw(st.integers(0, 8))
    sizes = {"q": (B, Hkv * group, Lq, D), "k": (B, Hkv, Lk, D), "v": (B, Hkv, Lk, Dv)}
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    return {
        name: draw(st.sampled_from(LAYOUTS))(
            torch.randn(size, generator=generator, dtype=torch.float64)
        )
        for name, size in sizes.items()
    }


def score_shape(tensors):
    """[B, Hq, Lq, Lk] of a call's tensors."""
    return (*tensors["q"].shape[:3], tensors["k"].shape[2])


@st.composite
def scored(draw, shape, dtype):
    """A tensor that broadcasts to ``shape``: axes of size 1, or missing in front."""
    sizes = [draw(st.sampled_from([1, size])) for size in shape][draw(st.integers(0, 4)) :]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    x = torch.randn(sizes, generator=generator, dtype=torch.float64)
    return x > -0.4 if dtype == torch.bool else x


@st.composite
def divided(draw, options):
    """The same options, perhaps of a call that divides by the rows' sums, or gives them."""
    options["return_sums"] = draw(st.sampled_from([False, True, "logs"]))
    if draw(st.booleans()):
        del options["alpha"]
        options |= {"normalize": "sum", "floor": draw(st.sampled_from([0.0, 1e-3, 0.7]))}
        if options["activation"] not in NONNEGATIVE:
            options["activation"] = draw(st.sampled_from(NONNEGATIVE))
    if options["return_sums"] == "logs" and options["activation"] not in NONNEGATIVE:
        options["return_sums"] = True
    return options


@st.composite
def calls(draw, *option_strategies, masked=True, sums=True):
    """(tensors to differentiate, other options) of a call of ``attention``."""
    tensors = draw(problems())
    options = draw(st.fixed_dictionaries({k: s for d in option_strategies for k, s in d.items()}))
    if sums:
        options = draw(divided(options))
    shape = score_shape(tensors)
    bias = draw(st.sampled_from([None, 0.7, "tensor"]))
    if bias == "tensor":
        tensors["bias"] = draw(scored(shape, torch.float64))
    else:
        options["bias"] = bias
    kind = draw(st.sampled_from([None, torch.bool, torch.float64])) if masked else None
    if kind == torch.float64:
        mask = draw(scored(shape, kind))  # sums to divide by and logarithms want one sign
        one_sign = options.get("normalize") == "sum" or options.get("return_sums") == "logs"
        tensors["mask"] = mask.abs() if one_sign else mask
    elif kind == torch.bool:
        options["mask"] = draw(scored(shape, kind))
    return tensors, options


@st.composite
def any_calls(draw, sums=True):
    """The same with every option there is."""
    tensors, options = draw(calls(numbers, lengths, positions, sums=sums))
    if draw(st.booleans()):
        (B, _, Lk, _) = tensors["k"].shape
        found = draw(st.lists(st.integers(0, Lk), min_size=B, max_size=B))
        options["key_lengths"] = torch.tensor(found, dtype=torch.int32)
    return tensors, options


def give(impl, tensors, options):
    """Output and gradients of a call, back on the CPU."""
    found = evaluate(
        partial(attention, **placed(impl, options), impl=impl), **placed(impl, tensors)
    )
    return {name: t.cpu() for name, t in found.items()}


def whole(parts, axis=0, sums_axis=None):
    """Outputs of several calls in a row; where they come with sums, these on their own axis."""
    if not isinstance(parts[0], tuple):
        return torch.cat(parts, axis)
    o, *sums = zip(*parts, strict=True)
    sums_axis = axis if sums_axis is None else sums_axis
    return torch.cat(o, axis), *(torch.cat(part, sums_axis) for part in sums)
