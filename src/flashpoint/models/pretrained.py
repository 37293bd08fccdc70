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
import json
import os
from pathlib import Path
from typing import Any, TypeVar, cast

import safetensors
import safetensors.torch
from torch import Tensor, nn

from flashpoint.errors import InputError, UnsupportedError, describe, hint, reason, show_names
from flashpoint.files import json_text, write_atomically
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

    def __init_subclass__(cls, *, config: type | None = None, **options: Any) -> None:
        """A model's class names its config's; a class made of it keeps both names."""
        super().__init_subclass__(**options)
        if config is not None:
            cls._kind, cls._config_class = cls.__name__, config

    def save_pretrained(self, folder: str | os.PathLike[str], *, card: str | None = None) -> Path:
        """Write weights, config and card into a folder, in the place of a model that is there.

        Args:
            folder: made if it is not there. One that has files of these names and no model of
                ours is refused: a README.md may be somebody's.
            card: README.md. None: one that says what the model is and how to load it.
        """
        folder = Path(folder)
        _require_free(folder)
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
            for name, data in files.items():  # the config last: without it there is no model
                write_atomically(folder / name, lambda handle, data=data: handle.write(data))
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
        model = make(_make_config(cls._config_class, content["config"], folder))
        _load(model, _read_weights(folder), folder)
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
    return f"""---
library_name: {_LIBRARY}
tags:
- {_LIBRARY}
- {kind.lower()}
- attention-without-softmax
---

# {kind} with {config.attention.word} attention

{num:,} parameters. Attention: `{_spec_text(config.attention)}`.

```python
from {module} import {type(model).__name__}

model = {type(model).__name__}.from_pretrained("THIS_FOLDER")
```

| size | |
|---|---|
{rows}
{body}"""


def _spec_text(spec: Any) -> str:
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
    except ValueError as error:  # also of what is no UTF-8
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
    dtypes = {weight.dtype for weight in weights.values() if weight.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(weights)
