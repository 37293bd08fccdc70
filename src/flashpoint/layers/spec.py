"""The mathematics of an attention layer as data: what configs, checkpoints and reports carry."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from flashpoint.bounds import Bounds, check_bounds
from flashpoint.errors import InputError, check_choice, describe, hint
from flashpoint.ops.activation import find_activation, known_activations
from flashpoint.ops.check import check_length, check_number
from flashpoint.ops.options import FLOOR, NORMALIZE, Normalize
from flashpoint.words import fields_of, word_of

if TYPE_CHECKING:
    from flashpoint.layers.named import NamedAttention

Learned = Literal["learned", "learned_per_head"]

_EXPONENT = Bounds(-16.0, 16.0)
_NUMBER = Bounds(-1e30, 1e30)
_LENGTH = Bounds(0.0, 1e12, above=True)
_FLOOR = Bounds(0.0, 1e30)
Number: TypeAlias = Annotated[float, _NUMBER]

SOFTMAX = "softmax"
LOG_LENGTH = "-log_length"
_WORDS = {
    "alpha": ("learned", "learned_per_head"),
    "gain": ("learned", "learned_per_head"),
    "bias": (LOG_LENGTH, "learned", "learned_per_head"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """How scores become weights, and what divides their sum over keys.

        w_ij = h(scale * q_i . k_j + bias)

        o_i = gain * sum_j w_ij * v_j / n_i ** alpha                      normalize="length"
        o_i = gain * sum_j w_ij * v_j / (sum_j w_ij + floor * n_i)        normalize="sum"

    A word stands for the common ones: "relu", "softmax", "relu4/sum", and "relu4+2/sum" for all
    of ``activation="relu4", bias=2, normalize="sum"``; ``parse`` reads it. "exp/sum" has floor 0
    and so is softmax, as long as no exp overflows.

    relu(s + p)^p over its sum is (1 + s / p)^p over its own, which nears softmax as p grows: a
    score of 0 has a weight and a gradient, as in softmax, where relu(s)^p has neither.

    With "sum" the output is an average of values, and needs no factor at the start: with scores
    and values of variance 1 its variance is E h^2 / (n (E h)^2), for relu 3.1 / n, relu2 6 / n,
    relu3 12 / n, relu4 23 / n, beside softmax's 2.7 / n. What all values share passes as it is,
    where the plain sum of relu multiplies it by the root of n; ReLUFormer divides by a gamma from
    8 because of it. So gain starts at 1. The floor is nothing beside such weights (relu4's mean is
    1.5), but scores of deviation 0.16 have a mean of 0.001, and their output is halved.

    Attributes:
        activation: h, one of relu, relu2, relu3, relu4, relu6, gelu, silu, softplus, sigmoid, exp,
            identity, cube (x^3, of polynomial attention), or a name given to
            ``flashpoint.register_activation``; or "softmax", which has none of the settings below,
            so that twins differ in one word.
        normalize: "length" or "sum"; "sum" wants h >= 0 and takes no alpha.
        floor: of "sum", per key: a row whose weights are all zero gives zeros.
        alpha: exponent of the length: a number, "learned" or "learned_per_head".
        alpha_start: where a learned alpha starts.
        length: n_i. "visible": the keys that query i sees; "keys": all keys; or a number.
        gain: factor on the output: a number, "learned" or "learned_per_head".
        gain_start: where a learned gain starts.
        scale: factor on q . k. None: D ** -0.5; in a converted model, what its softmax had.
        bias: added to the scores: a number, "-log_length" (minus the logarithm of n_i, which
            sigmoid wants), "learned" or "learned_per_head".
        bias_start: where a learned bias starts.

    Example:
        >>> AttentionSpec(activation="sigmoid", alpha=0, bias="-log_length").alpha
        0.0
        >>> AttentionSpec.parse("relu4/sum") == AttentionSpec(activation="relu4", normalize="sum")
        True
    """

    activation: str = "relu"
    normalize: Normalize = "length"
    floor: Annotated[float, _FLOOR] = FLOOR
    alpha: Annotated[float | Learned, _EXPONENT] = 1.0
    alpha_start: Annotated[float, _EXPONENT] = 1.0
    length: Annotated[Literal["visible", "keys"] | float, _LENGTH] = "visible"
    gain: Annotated[float | Learned, _NUMBER] = 1.0
    gain_start: Number = 1.0
    scale: Annotated[float | None, _NUMBER] = None
    bias: Annotated[float | Literal["-log_length"] | Learned, _NUMBER] = 0.0
    bias_start: Number = 0.0

    def __post_init__(self) -> None:
        _check_activation(self.activation)
        check_choice("normalize", self.normalize, NORMALIZE)
        check_length(self.length)
        if not isinstance(self.length, str):
            object.__setattr__(self, "length", float(self.length))
        object.__setattr__(self, "floor", check_number("floor", self.floor))
        if self.scale is not None:
            object.__setattr__(self, "scale", check_number("scale", self.scale))
        for name in _WORDS:
            self._check_setting(name)
        check_bounds(self)
        changed = [name for name in _POINTWISE if getattr(self, name) != _DEFAULTS[name]]
        if self.activation == SOFTMAX and changed:
            raise InputError(
                f"softmax attention has no {', '.join(changed)}: its weights sum to one. "
                "Leave it out, or choose a pointwise activation."
            )
        self._check_division()

    def _check_division(self) -> None:
        """By the sum: nonnegative weights and no exponent. By the length: no floor."""
        if not self.by_sum:
            if self.floor != FLOOR:
                raise InputError(
                    f"floor={self.floor:g} is for normalize='sum', but normalize='length'. "
                    "Leave it out, or set normalize to 'sum'."
                )
            return
        if not find_activation(self.activation).is_nonnegative:
            raise InputError(
                f"normalize='sum' divides by sums of weights, and {self.activation!r} may be "
                "negative. Choose another activation, or normalize='length'."
            )
        if self.alpha != 1.0:
            raise InputError(
                f"alpha={describe(self.alpha)} is the length's exponent, and normalize='sum' has "
                "none. Leave it out, or set normalize to 'length'."
            )

    def _check_setting(self, name: str) -> None:
        """A number, kept as a float, or one of the words; a start only where it is used."""
        value, start = getattr(self, name), f"{name}_start"
        if isinstance(value, str):
            check_choice(name, value, _WORDS[name], " or a number")
        else:
            object.__setattr__(self, name, check_number(name, value))
        object.__setattr__(self, start, check_number(start, getattr(self, start)))
        if getattr(self, start) != _DEFAULTS[start] and not self.learns(name):
            raise InputError(
                f"{start}={getattr(self, start)} is where a learned {name} starts, but "
                f"{name}={value!r}. Set {name} to 'learned' or 'learned_per_head'."
            )

    def learns(self, name: str) -> bool:
        """Whether alpha, gain or bias is a parameter of the layer.

        Example:
            >>> AttentionSpec(gain="learned").learns("gain")
            True
        """
        return getattr(self, name) in ("learned", "learned_per_head")

    @property
    def by_sum(self) -> bool:
        """Whether weights are divided by their own sum."""
        return self.normalize == "sum"

    @property
    def word(self) -> str:
        """Activation, shift and normalization in short, as ``parse`` reads them.

        Example:
            >>> AttentionSpec(activation="relu4", normalize="sum", bias=2, gain=2.0).word
            'relu4+2/sum'
        """
        return word_of(self.activation, self.bias, self.normalize)

    @classmethod
    def parse(cls, value: "AnySpec") -> "AttentionSpec":
        """A spec from itself, from a word as "relu" or "relu4/sum", or from its fields.

        Example:
            >>> AttentionSpec.parse("softmax") == AttentionSpec.parse({"activation": "softmax"})
            True
        """
        if isinstance(value, AttentionSpec):
            return value
        if isinstance(value, str):
            return cls(**fields_of(value))
        if not isinstance(value, Mapping):
            from flashpoint.layers.named import NamedAttention

            if isinstance(value, NamedAttention):
                raise InputError(
                    "attention is a named one, which sets options of the layer too. Pass "
                    "**named.for_model() to create_model, **named.for_layer() to a layer, or "
                    "named.spec for the mathematics alone."
                )
            raise InputError(
                f"attention must be a name, a mapping or an AttentionSpec. Got {describe(value)}."
            )
        for name in value:
            if name not in _DEFAULTS:
                raise InputError(
                    f"attention has no field {describe(name)}. {hint(name, _DEFAULTS)}"
                    f"Known: {', '.join(_DEFAULTS)}."
                )
        return cls(**value)

    @staticmethod
    def named(name: str) -> "NamedAttention":
        """An attention of the literature by its name, with the options that a layer needs for it.

        Known: sigmoid_attention, hstu, rela, gau, polynomial, threshold.

        Example:
            >>> AttentionSpec.named("gau").spec.word, AttentionSpec.named("gau").gate
            ('relu2', 'silu')
        """
        from flashpoint.layers.named import RELATIVES

        check_choice("name", name, tuple(RELATIVES))
        return RELATIVES[name]

    def to_dict(self) -> dict[str, str | float | None]:
        """Every field as plain data; ``parse`` reads it back."""
        return dataclasses.asdict(self)


def _check_activation(name: str) -> None:
    """Refuse an unknown one; names of the literature stand for more than an activation."""
    known = (*known_activations(), SOFTMAX)
    if isinstance(name, str) and name not in known:
        from flashpoint.layers.named import RELATIVES

        if name in RELATIVES:
            raise InputError(
                f"{name!r} is no activation: it sets options of the layer too. Pass "
                f"**AttentionSpec.named({name!r}).for_model() to create_model, or .for_layer() "
                "to a layer; a config takes what these give."
            )
    check_choice("activation", name, known)


AnySpec = AttentionSpec | str | Mapping[str, Any]
"""What ``AttentionSpec.parse`` reads."""

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(AttentionSpec)}
_POINTWISE = tuple(name for name in _DEFAULTS if name != "activation")
