"""Another attention inside somebody else's model, in place, and back.

Each library's modules are found by a module of their own; here is what all share: which of them
are meant, what is refused, and the report.
"""

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn
from torch.jit import ScriptModule

from flashpoint.convert.calibrate import Batches, calibrated_spec, fit_numbers, take_numbers
from flashpoint.convert.choice import Layers, choose
from flashpoint.convert.number_search import Fit
from flashpoint.convert.sites import CHILD, Found, Site, original_class, path_of
from flashpoint.convert.substitute import Substitute
from flashpoint.errors import InputError, UnsupportedError, describe
from flashpoint.layers.spec import SOFTMAX, AnySpec, AttentionSpec
from flashpoint.layers.terms import PointwiseTerms

# A library whose modules can be there only once it is loaded, and the home of its ``find``.
_FINDERS = (
    ("timm", "flashpoint.convert.timm_attention"),
    ("torch", "flashpoint.convert.torch_attention"),
    ("transformers", "flashpoint.convert.transformers.sites"),
)
_HEADS = ("num_heads", "n_heads", "num_attention_heads", "n_head", "nhead", "heads", "nh")
_FUNCTIONS = (
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
    "flex_attention",
    "flash_attn_func",
    "memory_efficient_attention",
)
_PROJECTIONS = ("qkv", "q", "kv", "q_proj", "k_proj", "query", "to_q", "to_qkv", "in_proj_weight")


@dataclass(frozen=True, kw_only=True, slots=True)
class Replaced:
    """One module that has another attention now.

    Attributes:
        name: the module's, dotted.
        kind: its own class, with where that is defined.
        spec: what it computes now.
        fit: how far its output is from softmax's, before and after calibration; None without.
    """

    name: str
    kind: str
    spec: AttentionSpec
    fit: Fit | None = None

    @property
    def described(self) -> str:
        """What it computes, in short."""
        if self.fit is None:
            return self.spec.word
        return f"{self.spec.word}, error {self.fit.before:.3g} -> {self.fit.after:.3g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaceReport:
    """What ``replace_attention`` did; ``print`` shows it as a table.

    Attributes:
        replaced: modules that have another attention now, in the order of the model.
        left: names of attention modules that were left as they are, each with the reason.
        num_parameters: the model's own, all of which it kept.
        num_new_parameters: those that the spec learns. An optimizer built before lacks them.
        num_with_dropout: replaced modules that drop weights in training, which is refused there.
    """

    replaced: tuple[Replaced, ...]
    left: Mapping[str, str]
    num_parameters: int
    num_new_parameters: int
    num_with_dropout: int

    def __str__(self) -> str:
        """A line of numbers, then a line a module."""
        total = len(self.replaced) + len(self.left)
        head = (
            f"{len(self.replaced)} of {total} attention modules replaced, "
            f"{self.num_parameters:,} parameters kept, {self.num_new_parameters:,} new"
        )
        rows = [(entry.name, entry.described, entry.kind) for entry in self.replaced]
        rows += [(name, "left", reason) for name, reason in self.left.items()]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        lines = [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
        if self.num_with_dropout:
            lines.append(
                f"  {self.num_with_dropout} of them drop weights in training, which pointwise "
                "attention refuses: set their dropout to 0 before training"
            )
        return "\n".join([head, *lines])


def replace_attention(
    model: nn.Module,
    attention: AnySpec = "relu",
    *,
    layers: Layers = None,
    calibrate: Batches | Mapping[str, Tensor] | None = None,
) -> ReplaceReport:
    """Let the attention modules of a model compute another attention, in place.

    Served are modules of timm, torch.nn and transformers. Parameters, the keys of the state dict,
    hooks and optimizers stay as they are; a spec that learns something adds parameters to each
    module. With "softmax" the model computes what it did. Everything is checked before anything is
    changed.

    A module is taken for attention if it calls a known function for it, or has two of these: a
    softmax; heads, or projections of q and k; "attention" or "attn" in its class's name. Methods
    and functions that its forward calls are looked through. A module that only holds attention is
    not meant. One whose exact class is not known is refused by name.

    Args:
        model: of timm, torch.nn, transformers, or anything that holds their modules. Of the last,
            replaced ones ignore ``set_attn_implementation`` until ``restore_attention``.
        attention: the mathematics: a word as "relu" or "relu4/sum", or an ``AttentionSpec``.
            Calling again with another one changes it.
        layers: which modules; the others keep what they compute. None: all. A sequence of indices
            or a slice: of the served ones, in the order of the model. A string: those whose names
            match this pattern of the shell, as "blocks.[0-5].*". A function: of the name.
        calibrate: a few batches that the model can be called with, as ``[images]``; a tuple or
            list is several arguments, a mapping named ones. Of a loader of images and labels pass
            ``(images for images, _ in loader)``. Every head gets a gain, a bias and a
            scale as new parameters, such that its output comes near to softmax's on them, and the
            report has the errors. To load a model that was calibrated: its state dict, which has
            these numbers, and no batches are needed; the other weights are loaded as ever.

    Returns:
        What was replaced and what was left, and why.

    Raises:
        UnsupportedError: the model has attention that cannot be replaced and that ``layers`` does
            not leave out, or drops weights in training; nothing was changed.
        InputError: no attention was found, or ``layers`` or ``calibrate`` does not fit.

    Example:
        >>> import torch
        >>> layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        >>> print(replace_attention(layer, "relu4/sum"))
        1 of 1 attention modules replaced, 8,544 parameters kept, 0 new
          self_attn  relu4/sum  torch.nn.modules.activation.MultiheadAttention
        >>> layer(torch.randn(2, 10, 32)).shape
        torch.Size([2, 10, 32])
        >>> restore_attention(layer)
        1
    """
    spec = AttentionSpec.parse(attention)
    found = find_attention(model)
    chosen, is_left_out = choose([site.name for site in found.sites], layers)
    refused = {name: why for name, why in found.left.items() if not is_left_out(name)}
    if refused:
        _refuse(refused, has_others=bool(found.sites))
    if not found.sites:
        raise InputError(f"{type(model).__name__} has no attention module that could be replaced.")
    sites = [found.sites[i] for i in chosen]
    if spec.activation != SOFTMAX:
        _refuse_dropout(sites)
    num_parameters = _count(model) - sum(_count(site.substitute) for site in found.sites)
    substitutes, fits = _substitutes_for(model, sites, spec, calibrate)
    for site, substitute in substitutes.items():
        site.install(substitute)
    return _report(found, substitutes, fits, num_parameters)


def restore_attention(model: nn.Module) -> int:
    """Undo ``replace_attention``: every module computes its own attention again.

    What a spec learned is lost. Returns how many modules were restored.

    Raises:
        UnsupportedError: a replaced module was changed since, so that it cannot be; nothing was
            restored.
    """
    found = find_attention(model)
    replaced = [site for site in found.sites if site.substitute is not None]
    for name, why in found.left.items():
        if isinstance(getattr(model.get_submodule(name), CHILD, None), Substitute):
            raise UnsupportedError(
                f"{name or 'the model itself'} cannot be restored: {why}. Nothing was changed."
            )
    for site in replaced:
        site.restore()
    return len(replaced)


def find_attention(model: nn.Module) -> Found:
    """The attention modules of a model, in its order, replaced ones too."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module. Got {describe(model)}.")
    modules = dict(model.named_modules())
    left = {name: _reason(x) for name, x in modules.items() if _looks_like_attention(x)}
    sites: dict[str, Site] = {}
    for library, home in _FINDERS:
        if library in sys.modules:
            found: Found = import_module(home).find(model)
            sites = {site.name: site for site in found.sites} | sites
            left |= {  # a library judges its own modules, and what anybody takes for attention
                name: why
                for name, why in found.left.items()
                if name in left or path_of(type(modules[name])).startswith(library + ".")
            }
    done = _inside(modules, sites) | _around({*sites, *left}, modules)
    return Found(
        sites=tuple(sites[name] for name in modules if name in sites),
        left={name: left[name] for name in modules if name in left and name not in done},
    )


def _inside(modules: Iterable[str], sites: Mapping[str, Site]) -> set[str]:
    """The sites, and the parts that they are made of."""
    return {name for name in modules if not sites.keys().isdisjoint([name, *_holders(name)])}


def _around(names: Iterable[str], modules: Mapping[str, nn.Module]) -> set[str]:
    """Modules that hold attention and compute none of their own."""
    holders = {holder for name in names for holder in _holders(name)}
    return {name for name in holders if not _computes_attention(modules[name])}


def _holders(name: str) -> Iterator[str]:
    """The names of the modules that hold this one; the model's own is empty."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _reason(module: nn.Module) -> str:
    """Why an attention that no finder knows is not replaced."""
    if isinstance(module, ScriptModule):
        return (
            f"{module.original_name} is TorchScript, which cannot change. Replace before torch.jit"
        )
    kind = path_of(original_class(module))
    if isinstance(module, PointwiseTerms):
        return f"{kind} has its attention from create_model(name, attention='relu4/sum')"
    return f"{kind} is not known here"


def _looks_like_attention(module: nn.Module) -> bool:
    if isinstance(module, Substitute):
        return False
    if isinstance(module, ScriptModule):  # has no Python to look into
        return _is_named_so(module)
    return (_is_named_so(module) and _has_parts(module)) or _computes_attention(module)


def _is_named_so(module: nn.Module) -> bool:
    """Whether its class, or one that this derives from, has the word in its name."""
    kinds = [kind.__name__ for kind in original_class(module).__mro__]
    names = [str(module.original_name)] if isinstance(module, ScriptModule) else kinds
    return any("attention" in name.lower() or "attn" in name.lower() for name in names)


def _computes_attention(module: nn.Module) -> bool:
    """Whether it does itself: by PyTorch's functions, or by a softmax and what q and k need."""
    stored = {getattr(value, "__name__", "") for value in vars(module).values()}
    words = _words_of(original_class(module)) | stored
    if not words.isdisjoint(_FUNCTIONS):
        return True
    has_softmax = "softmax" in words or any(isinstance(x, nn.Softmax) for x in module.children())
    return has_softmax and (_has_parts(module) or _is_named_so(module))


@functools.cache
def _words_of(kind: type[nn.Module]) -> frozenset[str]:
    """Names in the code of forward, and of the methods and functions that are called there."""
    words: set[str] = set()
    seen: set[CodeType] = set()
    waiting: list[Any] = [getattr(kind, "forward", None)]
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, FunctionType) or function.__code__ in seen:
            continue
        if seen and str(function.__module__).partition(".")[0] == "torch":
            continue  # PyTorch's own functions count by their names
        seen.add(function.__code__)
        names = set(_names_in(function.__code__))
        words |= names
        for name in names:
            waiting += [inspect.getattr_static(kind, name, None), function.__globals__.get(name)]
    return frozenset(words)


def _names_in(code: CodeType) -> Iterator[str]:
    """What a function looks up, and the functions that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _has_parts(module: nn.Module) -> bool:
    """Whether it has a number of heads, or projections of q and k."""
    has_heads = any(isinstance(getattr(module, name, None), int) for name in _HEADS)
    return has_heads or any(hasattr(module, name) for name in _PROJECTIONS)


def _refuse(refused: Mapping[str, str], *, has_others: bool) -> None:
    """Say what cannot be replaced, before anything is."""
    name, why = next(iter(refused.items()))
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    raise UnsupportedError(
        f"{name or 'the model itself'}{more} cannot be replaced: {why}. Nothing was changed. "
        + (
            "Leave it out by layers=, a pattern or a function of names."
            if has_others
            else "The model has no attention that can be."
        )
    )


def _refuse_dropout(sites: list[Site]) -> None:
    """Say who drops weights in training, of which no pointwise attention keeps any."""
    for site in sites:
        if site.module.training and site.dropout > 0:
            raise UnsupportedError(
                f"{site.name or 'the model itself'} drops {site.dropout:g} of its weights in "
                "training, and pointwise attention keeps no weights to drop. Nothing was changed. "
                f"To train, {site.dropout_advice}; otherwise call model.eval() first."
            )


def _substitutes_for(
    model: nn.Module,
    sites: list[Site],
    spec: AttentionSpec,
    calibrate: Batches | Mapping[str, Tensor] | None,
) -> tuple[dict[Site, Substitute], Mapping[Site, Fit]]:
    """What to install at each site, calibrated or not, and how far it is from softmax if known."""
    if calibrate is None:
        return {site: _substitute_for(site, spec) for site in sites}, {}
    spec = calibrated_spec(spec)
    substitutes = {site: _substitute_for(site, spec, learns_scale=True) for site in sites}
    if isinstance(calibrate, Mapping):
        take_numbers(substitutes, calibrate)
        return substitutes, {}
    return substitutes, fit_numbers(model, substitutes, calibrate)


def _substitute_for(site: Site, spec: AttentionSpec, *, learns_scale: bool = False) -> Substitute:
    """One that is where the module is, in its dtype and mode."""
    substitute = Substitute(spec, site.num_heads, learns_scale=learns_scale)
    substitute.train(site.module.training)
    like = next((p for p in site.module.parameters() if p.is_floating_point()), None)
    return substitute if like is None else substitute.to(like.device, like.dtype)


def _report(
    found: Found,
    substitutes: Mapping[Site, Substitute],
    fits: Mapping[Site, Fit],
    num_parameters: int,
) -> ReplaceReport:
    left = dict(found.left)
    for site in found.sites:
        if site not in substitutes:
            before = "" if site.substitute is None else f", computes {site.substitute.spec.word}"
            left[site.name] = f"not chosen by layers{before}"
    replaced = tuple(
        Replaced(name=site.name, kind=site.kind, spec=substitute.spec, fit=fits.get(site))
        for site, substitute in substitutes.items()
    )
    return ReplaceReport(
        replaced=replaced,
        left=left,
        num_parameters=num_parameters,
        num_new_parameters=sum(map(_count, substitutes.values())),
        num_with_dropout=sum(
            site.dropout > 0 and substitute.spec.activation != SOFTMAX
            for site, substitute in substitutes.items()
        ),
    )


def _count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())
