"""A model as a folder: ``save_pretrained`` writes it, ``from_pretrained`` reads it.

    model.safetensors   the weights
    config.json         the model's config, and which class and version of Flashpoint wrote it
    README.md           a card for readers, with the front matter that the Hugging Face Hub wants

These are the names that the Hub knows: ``huggingface_hub.upload_folder`` publishes such a folder,
and ``snapshot_download`` gives one back. Its ``PyTorchModelHubMixin`` would write the same files.
It is not used, for three reasons: it makes huggingface_hub a base class, and so a dependency, of
every model; where there is no safetensors file it unpickles one; and it leaves out what it does
not know of a config, where a model of another mathematics must not come up in silence.
"""

import dataclasses
import errno
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from flashpoint.errors import InputError, UnsupportedError, describe, hint, reason, show_names
from flashpoint.files import json_text, write_atomically
from flashpoint.layers.spec import SOFTMAX
from flashpoint.layers.terms import PointwiseTerms
from flashpoint.version import __version__

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = 1
"""Of ``config.json``; a later one may say what this version cannot read."""
_LIBRARY = "flashpoint"
Model = TypeVar("Model", bound="Pretrained")


class Pretrained:
    """Saving and loading for a model that has a ``config``, a frozen dataclass.

    Example:
        >>> import tempfile, flashpoint
        >>> from flashpoint.models.vit import ViT
        >>> model = flashpoint.create_model("vit", image_size=8, patch_size=4, width=16, depth=1,
        ...                                 num_heads=2, attention="relu4/sum")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = model.save_pretrained(folder)
        ...     ViT.from_pretrained(folder).config.attention.word
        'relu4/sum'
    """

    _kind: str
    _config_class: type
    _base: type
    _beyond_config: tuple[str, ...] = ()  # settings that may change and that no config holds

    def __init_subclass__(cls, *, config: type | None = None, **options: Any) -> None:
        """A model's class names its config's; a class made of it keeps both names."""
        super().__init_subclass__(**options)
        if config is not None:
            cls._kind, cls._config_class, cls._base = cls.__name__, config, cls

    def save_pretrained(self, folder: str | os.PathLike[str], *, card: str | None = None) -> Path:
        """Write weights, config and card into a folder, in the place of a model that is there.

        Args:
            folder: made if it is not there. One that has files of these names and no model of
                ours is refused: a README.md may be somebody's.
            card: README.md. None: one that says what the model is and how to load it.

        Raises:
            InputError: the folder cannot be written; what was there is as it was.
            UnsupportedError: the config does not say all of the model, so that another would be
                loaded: one whose blocks were pruned or whose attention was changed in place.
        """
        folder = Path(folder)
        _require_free(folder)
        _require_told(self)
        model = cast(Any, self)  # a module, which has a config
        state: dict[str, Tensor] = model.state_dict()
        weights = {name: x.detach().cpu().contiguous() for name, x in state.items()}
        content = {
            "library_name": _LIBRARY,
            "flashpoint_version": __version__,
            "format": FORMAT,
            "model": self._kind,
            "config": dataclasses.asdict(model.config),
        }
        files = {
            WEIGHTS: safetensors.torch.save(weights, metadata={"format": "pt"}),
            CARD: (model_card(self) if card is None else card).encode(),
            CONFIG: (json_text(content, indent=2) + "\n").encode(),
        }
        try:
            write_together(folder, files)
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror}.") from error
        return folder

    @classmethod
    def from_pretrained(cls: type[Model], folder: str | os.PathLike[str]) -> Model:
        """The model in a folder, on the CPU, in evaluation mode.

        Nothing is unpickled and nothing is downloaded. The dtype is that of the weights.

        Raises:
            InputError: the folder is not one, or is damaged; one line says how.
            UnsupportedError: a later version of Flashpoint wrote it.
        """
        folder = Path(folder)
        content = _read_config(folder)
        if content["model"] != cls._kind:
            raise InputError(
                f"{folder} holds a {describe(content['model'])}, not a {cls._kind}. Load it by "
                "that class."
            )
        make: Any = cls
        config = _make_config(cls._config_class, content["config"], folder)
        weights = _read_weights(folder)
        if cls is cls._base:  # before memory is taken for what a damaged config says
            with torch.device("meta"):
                _require_same(make(config), weights, folder)
        model = make(config)
        _load(model, weights, folder)
        return model.eval()


def _require_free(folder: Path) -> None:
    names = [name for name in (WEIGHTS, CONFIG, CARD) if (folder / name).exists()]
    if not names:
        return
    try:
        _read_config(folder)
    except UnsupportedError:
        return  # ours, of another version
    except InputError as error:
        raise InputError(
            f"{folder} has {show_names(names)} and no model of Flashpoint's. Give another folder."
        ) from error


def _require_told(model: Any) -> None:
    """Refuse a model that its config alone does not build again; a derived class knows its own."""
    if type(model) is not model._base:
        return
    with torch.device("meta"):
        blank = model._base(model.config)
    changed = _parts(blank).items() ^ _parts(model).items()
    names = {name for name, _ in changed}
    if names:
        raise UnsupportedError(
            f"{show_names(names)} of the {model._kind} differ from what its config says, and "
            "from_pretrained would build another model. Save its state_dict()."
        )


def _parts(model: Any) -> dict[str, str]:
    """What must be as the config says: shapes of weights, attention, settings beside it."""
    parts = {name: str(x.shape) for name, x in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, PointwiseTerms):
            parts[name] = str(module.spec)
    return parts | {name: str(getattr(model, name)) for name in model._beyond_config}


def write_together(folder: Path, files: Mapping[str, bytes]) -> None:
    """All files, or none: each is written whole beside its place before any takes it."""
    for name in files:
        if (folder / name).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as staging:
        for name, data in files.items():
            write_atomically(Path(staging) / name, lambda handle, data=data: handle.write(data))
        (folder / CONFIG).unlink(missing_ok=True)  # without it no mixture is taken for a model
        for name in files:  # so it comes last, too
            os.replace(Path(staging) / name, folder / name)


def model_card(model: Any, body: str = "") -> str:
    """README.md of a model: what it is, how to load it, then the body."""
    config, kind = model.config, type(model)._kind
    num = sum(parameter.numel() for parameter in model.parameters())
    sizes = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in sizes.items())
    module = type(model).__module__
    specs = {"Attention": config.attention}
    if getattr(config, "cross_attention", None) is not None:
        specs["Cross-attention"] = config.cross_attention
    told = " ".join(f"{name}: `{spec_text(spec)}`." for name, spec in specs.items())
    has_softmax = any(spec.activation == SOFTMAX for spec in specs.values())
    has_softmax |= getattr(config, "pool", None) == "map"  # whose probe attends by softmax
    tag = "" if has_softmax else "\n- attention-without-softmax"
    return f"""---
library_name: {_LIBRARY}
tags:
- {_LIBRARY}
- {kind.lower()}{tag}
---

# {kind} with {config.attention.word} attention

{num:,} parameters. {told}

```python
from {module} import {type(model).__name__}

model = {type(model).__name__}.from_pretrained("THIS_FOLDER")
```

| size | |
|---|---|
{rows}
{body}"""


def spec_text(spec: Any) -> str:
    """The fields of a spec that are not the defaults, and its activation."""
    changed = [
        f"{field.name}={getattr(spec, field.name)!r}"
        for field in dataclasses.fields(spec)
        if field.name == "activation" or getattr(spec, field.name) != field.default
    ]
    return f"AttentionSpec({', '.join(changed)})"


def _read_config(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says, checked as far as any model's."""
    file = folder / CONFIG
    try:
        content = json.loads(file.read_text("utf-8"))
    except OSError as error:
        found = show_names(os.listdir(folder)) if folder.is_dir() else "no such folder"
        raise InputError(
            f"{folder} is no model that save_pretrained wrote: {CONFIG} cannot be read "
            f"({error.strerror}). There is: {found}."
        ) from error
    except (ValueError, RecursionError) as error:  # also of what is no UTF-8
        raise InputError(f"{file} is no JSON: {reason(error)}. Save the model again.") from error
    if not isinstance(content, dict) or content.get("library_name") != _LIBRARY:
        raise InputError(
            f"{file} is not Flashpoint's. For models of others there are "
            "flashpoint.convert.load_timm_vit and load_transformers_vit."
        )
    missing = [name for name in ("format", "model", "config") if name not in content]
    if missing:
        raise InputError(f"{file} has no {', '.join(missing)}. Save the model again.")
    if content["format"] != FORMAT:
        raise UnsupportedError(
            f"{file} has format {describe(content['format'])}, written by Flashpoint "
            f"{describe(content.get('flashpoint_version'))}; this is {__version__} "
            f"and reads format {FORMAT}. Update Flashpoint."
        )
    return content


def _make_config(config_class: type, fields: Any, folder: Path) -> Any:
    """The model's config; a field that it has not is refused, one that is missing its default."""
    if not isinstance(fields, dict):
        raise InputError(f"{folder / CONFIG}: config must be an object. Got {describe(fields)}.")
    known = {field.name: field for field in dataclasses.fields(config_class)}
    for name in fields:
        if name not in known:
            raise InputError(
                f"{folder / CONFIG}: {config_class.__name__} has no field {describe(name)}. "
                f"{hint(name, known)}A later version of Flashpoint may have it."
            )
    try:
        return config_class(**fields)
    except (InputError, TypeError) as error:
        raise InputError(f"{folder / CONFIG}: {reason(error)}.") from error


def _read_weights(folder: Path) -> dict[str, Tensor]:
    file = folder / WEIGHTS
    try:
        return safetensors.torch.load(file.read_bytes())
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}. Weights are read from safetensors only; "
            "nothing is unpickled."
        ) from error
    except safetensors.SafetensorError as error:
        raise InputError(f"{file} is damaged: {reason(error)}. Save the model again.") from error


def _load(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Weights into the model, in their dtype; every name and shape must be the model's."""
    _require_same(model, weights, folder)
    dtypes = {weight.dtype for weight in weights.values() if weight.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(weights)


def _require_same(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    expected = model.state_dict()
    for what, names in (
        ("lacks", expected.keys() - weights.keys()),
        ("has too much:", weights.keys() - expected.keys()),
    ):
        if names:
            raise InputError(
                f"{folder / WEIGHTS} {what} {show_names(names)}. It is of another model than "
                f"{CONFIG}."
            )
    for name, weight in weights.items():
        if weight.shape != expected[name].shape:
            raise InputError(
                f"{folder / WEIGHTS}: {name} has shape {list(weight.shape)}, {CONFIG} says "
                f"{list(expected[name].shape)}."
            )
