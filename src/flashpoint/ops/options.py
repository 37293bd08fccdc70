"""What a call takes by name, and its way from what a user wrote to checked ``Terms``."""

import functools
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from flashpoint.errors import InputError, check_choice, describe
from flashpoint.ops.activation import Activation, find_activation, registered
from flashpoint.ops.check import (
    check_division,
    check_flag,
    check_gain,
    check_length,
    check_number,
    check_range,
    check_window,
)
from flashpoint.ops.implementations import Impl
from flashpoint.ops.normalizer import normalizer
from flashpoint.ops.qk_norm import HeadNorm
from flashpoint.ops.spec import Terms
from flashpoint.shapes import Int

Number = int | float
Normalize = Literal["length", "sum"]
NORMALIZE = ("length", "sum")
FLOOR = 1e-3  # of normalize="sum"
BIAS_ADVICE = " Pass a number, or a tensor; to hide keys, pass a mask."
Window = tuple[int | None, int | None]
ReturnSums = bool | Literal["logs"]


class Options(TypedDict, total=False):
    """What every call takes by name; ``attention`` says what each means."""

    activation: str | Activation
    normalize: Normalize
    floor: Number
    alpha: Number
    length: str | Number
    scale: Number | None
    bias: Number | Tensor | None
    mask: Tensor | None
    causal: bool
    window: Window | None
    impl: Impl


class DenseOptions(Options, total=False):
    """The same where samples are padded to one length."""

    key_lengths: Int[Tensor, " B"] | None


class PackedOptions(DenseOptions, total=False):
    """The same where q and k may pass norms."""

    q_norm: HeadNorm | None
    k_norm: HeadNorm | None


def read_terms(
    activation: str | Activation,
    division: tuple[Normalize, Number, Number, str | Number],
    scale: Number | None,
    bias: Any,
    causal: bool,
    window: Window | None,
    return_sums: ReturnSums,
    dtype: torch.dtype,
) -> Terms:
    """The options as the implementations take them, checked; the same ones are checked once."""
    number = None if isinstance(bias, Tensor) else bias
    sides = (None, None) if window is None else check_window(window)
    options = (activation, *division, scale, number, causal, sides, dtype)
    parse = _parse if torch.compiler.is_compiling() else _parse_once
    try:
        terms = parse(*options)
    except TypeError:  # not hashable, so not seen before
        terms = _parse(*options)
    return _with_sums(terms, return_sums)


def _parse(
    activation: str | Activation,
    normalize: Normalize,
    floor: Number,
    alpha: Number,
    length: str | Number,
    scale: Number | None,
    bias: Number | None,
    causal: bool,
    window: Window,
    dtype: torch.dtype,
) -> Terms:
    alpha = check_number("alpha", alpha, " A learned exponent multiplies the result of alpha=0.")
    check_length(length)
    if scale is not None:
        scale = check_number("scale", scale)
        check_range("scale", scale, dtype)
    number = 0.0 if bias is None else check_number("bias", bias, BIAS_ADVICE)
    check_range("bias", number, dtype)
    check_flag("causal", causal)
    left, right = window
    if causal:
        right = 0
    check_choice("normalize", normalize, NORMALIZE)
    h, gain = find_activation(activation), 1.0
    if normalize == "sum":
        floor, alpha = check_division(h, floor, alpha, dtype), -1.0
        if not isinstance(length, str):
            floor, alpha, length = floor * length, 0.0, "visible"
    else:
        if not (isinstance(floor, (int, float)) and floor == FLOOR):
            raise InputError(
                f"floor={describe(floor)} is for normalize='sum'. Leave it out, or pass that."
            )
        floor = 0.0
        if not isinstance(length, str):
            gain, alpha, length = normalizer(length, alpha), 0.0, "visible"
    return Terms(h.key, alpha, length, gain, scale, number, left, right, normalize, floor)


_parse_once = functools.lru_cache(maxsize=256, typed=True)(_parse)


def _with_sums(terms: Terms, return_sums: ReturnSums) -> Terms:
    """The terms of a call that gives these sums."""
    if return_sums is True or return_sums is False:
        return terms
    if not isinstance(return_sums, str) or return_sums != "logs":
        raise InputError(
            f"return_sums must be True, False or 'logs'. Got {describe(return_sums)}."
        )
    h = registered(terms.activation)
    if not h.is_nonnegative:
        raise InputError(
            f"return_sums='logs' takes logarithms of weights, and {h.name!r} may be negative. "
            "Take another activation, or return_sums=True."
        )
    return terms._replace(logs=True)


def read_norm(name: str, norm: Any, qkv: Tensor) -> tuple[str, Tensor | None, float]:
    """Kind, gain and eps of a norm that may be missing."""
    if norm is None:
        return "none", None, 0.0
    if not isinstance(norm, HeadNorm):
        raise InputError(f"{name} must be a flashpoint.HeadNorm or None. Got {describe(norm)}.")
    check_gain(f"{name}.gain", norm.gain, qkv)
    return norm.kind, norm.gain, float(norm.eps)
