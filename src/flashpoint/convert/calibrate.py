"""Three numbers a head that bring a substitute near the softmax attention it stands in for.

For every head a gain g, a bias b and a scale s are chosen such that

    g * attention(s * q, k, v, bias=b)

has the least squared distance to softmax's output over the queries of a few batches. Every module
is compared on what it is asked in the model as it was, with softmax everywhere. Given b and s the
best g is known. b and s are searched (``number_search.py``).

Shapes: B samples, H query heads, Lq queries, Lk keys.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from flashpoint.convert.number_search import Call, Fit, search_numbers
from flashpoint.convert.sites import CHILD, Site
from flashpoint.convert.substitute import Substitute
from flashpoint.errors import InputError, describe
from flashpoint.layers.spec import LOG_LENGTH, SOFTMAX, AttentionSpec

SAMPLES, QUERIES = 8, 256
"""Of each call at most so many samples, and of each sample so many queries, are compared."""

Batches = Iterable[Any]
"""What a model is called with, a call each: one argument, a sequence of them, or a mapping."""


def calibrated_spec(spec: AttentionSpec) -> AttentionSpec:
    """The spec with a gain and a bias for each head, which start at its own.

    A bias of "-log_length" stays: it grows with the row, so no number a head can take its place.

    Example:
        >>> calibrated_spec(AttentionSpec(activation="sigmoid", bias=-3.0)).bias_start
        -3.0
    """
    if spec.activation == SOFTMAX:
        raise InputError(
            "calibrate is for attention that stands in for softmax, and attention is softmax. "
            "Leave calibrate out."
        )
    changes: dict[str, Any] = {}
    for name in ("gain", "bias"):
        value = getattr(spec, name)
        if value != LOG_LENGTH:
            start = getattr(spec, f"{name}_start") if spec.learns(name) else value
            changes |= {name: "learned_per_head", f"{name}_start": start}
    return replace(spec, **changes)


def fit_numbers(
    model: nn.Module, substitutes: Mapping[Site, Substitute], batches: Batches
) -> dict[Site, Fit]:
    """Give substitutes the numbers with which they follow softmax best on these batches.

    Args:
        model: what the sites are in. It is called in eval mode, with softmax at all these sites,
            and left as it was.
        substitutes: not installed, by the sites that they are for. Their gains, biases and scales
            are set where they are learned per head.
        batches: few do, since there are three numbers a head. A tensor is one argument, a tuple
            or list are several, a mapping is named ones.

    Raises:
        InputError: there is no batch, or the model called some site with none of them.
    """
    calls = _record(model, list(substitutes), batches)
    return {site: search_numbers(x, calls[site], site.name) for site, x in substitutes.items()}


@torch.no_grad()
def take_numbers(substitutes: Mapping[Site, Substitute], weights: Mapping[str, Tensor]) -> None:
    """Give substitutes the numbers that a calibrated model's state dict has for them.

    All are found before any is set.
    """
    found: list[tuple[nn.Parameter, Tensor]] = []
    for site, substitute in substitutes.items():
        for name, parameter in substitute.named_parameters():
            key = f"{site.name}.{CHILD}.{name}" if site.name else f"{CHILD}.{name}"
            given = weights.get(key)
            if given is None or given.shape != parameter.shape:
                has = f"lacks {key!r}" if given is None else f"has {describe(given)} as {key!r}"
                raise InputError(
                    f"calibrate {has}, expected {list(parameter.shape)}. Give the state dict of "
                    "a model that was calibrated with this attention and these layers; batches "
                    "come in a list."
                )
            found.append((parameter, given))
    for parameter, given in found:
        parameter.copy_(given)


@torch.no_grad()
def _record(model: nn.Module, sites: Sequence[Site], batches: Batches) -> dict[Site, list[Call]]:
    """What softmax attention is asked at every site, and what it answers."""
    if isinstance(batches, (Tensor, str)) or not isinstance(batches, Iterable):
        raise InputError(
            f"calibrate must be batches, as [images], or a state dict. Got {describe(batches)}."
        )
    calls: dict[Site, list[Call]] = {site: [] for site in sites}
    num_batches = 0
    with _listening(model, calls):
        for batch in batches:
            num_batches += 1
            if isinstance(batch, Mapping):
                model(**batch)
            elif isinstance(batch, Sequence):
                model(*batch)
            else:
                model(batch)
    if not num_batches:
        raise InputError("calibrate has no batch. Give at least one.")
    silent = [site.name for site, heard in calls.items() if not heard]
    if silent:
        raise InputError(
            f"{len(silent)} of {len(sites)} attention modules were not called with the batches: "
            f"{', '.join(silent[:3])}. Give batches that reach them, or leave them out by layers."
        )
    return calls


@contextmanager
def _listening(model: nn.Module, calls: Mapping[Site, list[Call]]) -> Generator[None]:
    """The model in eval mode, its softmax attention written down; then as it was."""
    modes = {module: module.training for module in model.modules()}
    before = {site: site.substitute for site in calls}
    try:
        for site, heard in calls.items():
            softmax = Substitute(SOFTMAX, site.num_heads)
            softmax.register_forward_hook(_writer(heard), with_kwargs=True)
            site.install(softmax)
        model.eval()
        yield
    finally:
        for site, substitute in before.items():
            if substitute is None:
                site.restore()
            else:
                site.install(substitute)
        for module, training in modes.items():
            module.training = training


def _writer(calls: list[Call]) -> Callable[..., None]:
    """A hook that keeps a part of a call."""

    def write(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], o: Tensor) -> None:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
        given = dict(zip(names, args, strict=False)) | kwargs
        calls.append(part_of_call(o, **given))

    return write


def part_of_call(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """Some samples and queries of a call of SDPA, evenly spread, in fp32 at least."""
    samples = _spread(len(query), SAMPLES, query.device)
    rows = _spread(query.shape[2], QUERIES, query.device)
    if is_causal and len(rows) < query.shape[2]:  # what is left of them is no triangle
        dims = query.shape[2], key.shape[2]
        attn_mask = torch.ones(dims, dtype=torch.bool, device=query.device).tril()
        is_causal = False
    if attn_mask is not None:
        if attn_mask.dim() == 4 and len(attn_mask) > 1:
            attn_mask = attn_mask[samples]
        if attn_mask.shape[-2] > 1:
            attn_mask = attn_mask.index_select(-2, rows)
        attn_mask = attn_mask.detach()

    def part(x: Tensor) -> Tensor:
        x = x.detach()[samples]
        return x.to(torch.promote_types(x.dtype, torch.float32))

    return Call(
        tensors=(part(query[:, :, rows]), part(key), part(value)),
        options={
            "attn_mask": attn_mask,
            "is_causal": is_causal,
            "scale": scale,
            "enable_gqa": enable_gqa,
        },
        output=part(output[:, :, rows]),
    )


def _spread(count: int, most: int, device: torch.device) -> Tensor:
    """At most so many of ``count`` indices, evenly spread; all where there are no more."""
    most = min(count, most)
    return torch.arange(most, device=device) * count // max(most, 1)
