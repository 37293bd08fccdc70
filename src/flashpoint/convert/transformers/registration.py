"""Names for ``attn_implementation=`` that transformers accepts, and what stands behind them."""

import functools
import re
from typing import Any, overload

from flashpoint.convert.substitute import Substitute
from flashpoint.convert.transformers.calls import attend, attend_by_module
from flashpoint.errors import InputError, UnsupportedError, describe, require
from flashpoint.layers.spec import SOFTMAX, AnySpec, AttentionSpec
from flashpoint.ops.activation import find_activation, known_activations

PREFIX = "pointwise"
"""The name whose function asks each module for its substitute; other names begin with it."""

_TAKEN = ("flash", "flex", "sdpa", "eager", "paged")
"""Parts of a name that transformers takes for its own implementations, and checks as such."""

_ours: dict[str, AttentionSpec] = {}


@overload
def register() -> tuple[str, ...]: ...
@overload
def register(attention: AnySpec, name: str | None = None) -> str: ...
def register(attention: AnySpec | None = None, name: str | None = None) -> str | tuple[str, ...]:
    """Make attention known to transformers, with its masks, for ``attn_implementation=``.

    The name then works in ``from_pretrained``, ``from_config``, a config and
    ``model.set_attn_implementation``. transformers does not store it with a model: register in
    every process, and name it again when a model is loaded. Models that never ask for a function
    by name, as Bloom and MPNet, are given the name all the same and go on with softmax:
    ``find(model).left`` lists such modules, and ``flashpoint.replace_attention`` refuses them.

    Args:
        attention: a spec, its word, or nothing: all words, as ``pointwise_relu`` for "relu" and
            ``pointwise_relu4_sum`` for "relu4/sum". It may learn nothing, since a function has no
            parameters: ``flashpoint.replace_attention`` gives every module its own. With
            ``length="keys"`` the empty slots of a static cache count too.
        name: of a spec; that of its word where it is no more than the word says.

    Returns:
        The name, or all names.

    Raises:
        InputError: the name is taken, or transformers would take it for something else.
        UnsupportedError: the spec learns something, or transformers is not installed.

    Example:
        >>> name = register("relu4/sum")  # doctest: +SKIP
        >>> GPT2LMHeadModel.from_pretrained("gpt2", attn_implementation=name)  # doctest: +SKIP
    """
    if attention is None:
        if name is not None:
            raise InputError(f"name={name!r} names nothing. Pass attention=, as 'relu4/sum'.")
        register_substitutes()
        return tuple(register(word) for word in _words() if _why_not(_name_of(word)) is None)
    spec = AttentionSpec.parse(attention)
    learned = [field for field in ("alpha", "gain", "bias") if spec.learns(field)]
    if learned:
        raise UnsupportedError(
            f"attention learns {', '.join(learned)}, and a registered function has no parameters. "
            "Use flashpoint.replace_attention, which gives every module its own."
        )
    name = _checked(name, spec)
    _ours[name] = spec
    _add(name, functools.partial(attend, Substitute(spec, num_heads=1)))
    return name


def register_substitutes() -> None:
    """Make the name known under which a module computes by its own substitute."""
    _add(PREFIX, attend_by_module)


def _words() -> tuple[str, ...]:
    """Every word for an attention that learns nothing."""
    words: list[str] = [SOFTMAX]
    for activation in known_activations():
        words.append(activation)
        if find_activation(activation).is_nonnegative:
            words.append(f"{activation}/sum")
    return tuple(words)


def _name_of(word: str) -> str:
    return f"{PREFIX}_{word.replace('/', '_').replace('+', '_plus_')}"


def _checked(name: object, spec: AttentionSpec) -> str:
    """A name for a spec; that of its word where none is given and the word says all."""
    is_plain = spec == AttentionSpec.parse(spec.word)
    usual = _name_of(spec.word)
    if name is None:
        if not is_plain:
            raise InputError(
                f"attention is more than {spec.word!r} says. Pass name=, under which "
                "attn_implementation= shall find it."
            )
        name = usual
    reason = _why_not(name)
    if reason is not None:
        raise InputError(f"name={describe(name)} {reason}. Choose another.")
    assert isinstance(name, str)
    if name.startswith(PREFIX) and not (is_plain and name == usual):
        raise InputError(f"name={name!r}: those with {PREFIX!r} stand for words. Choose another.")
    if _ours.get(name, spec) != spec:
        raise InputError(f"name={name!r} is another attention's already. Choose another.")
    return name


def _why_not(name: object) -> str | None:
    """Why transformers would look a name up elsewhere or take it for another; None if not."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        return "has more than letters, digits, '_', '-' and '.', or is looked up on the Hub"
    part = next((part for part in _TAKEN if part in name), None)
    if part is not None:
        return f"has {part!r} in it, which transformers takes for its own"
    functions = require("transformers", "attn_implementation", extra="hf").AttentionInterface()
    if name != PREFIX and name in functions and name not in _ours:
        return "is registered already"
    return None


def _add(name: str, function: Any) -> None:
    """An attention function and a mask function: without the second, causal masks are dropped."""
    transformers = require("transformers", "attn_implementation", extra="hf")
    masks = transformers.AttentionMaskInterface
    transformers.AttentionInterface.register(name, function)
    masks.register(name, masks()["sdpa"])
