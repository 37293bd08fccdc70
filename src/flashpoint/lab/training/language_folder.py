"""A run's GPT-2 as a folder that transformers loads, and how its attention is put back there.

    model.safetensors   the weights, with what replaced layers learned
    config.json         transformers' own, with one more field: ``flashpoint_attention``
    README.md           a card whose code loads the model

transformers knows weights and sizes and not what a layer computes: by itself ``from_pretrained``
gives softmax everywhere. The card says what to call, and the same is called here: a folder is
written only if the model that comes back is the run's.
"""

import contextlib
import json
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from flashpoint.convert.calibrate import calibrated_spec
from flashpoint.convert.export import ExportError
from flashpoint.convert.replace import replace_attention
from flashpoint.errors import InputError, UnsupportedError, show_names
from flashpoint.lab.training.language_model import WHICH, LanguageModelConfig
from flashpoint.layers.spec import SOFTMAX
from flashpoint.models.pretrained import CARD, CONFIG, WEIGHTS, spec_text, write_together

MARK = "flashpoint_attention"
"""The field of config.json that names the attention of replaced layers."""


def save_language_model(
    model: Any,
    config: LanguageModelConfig,
    folder: Path,
    *,
    body: str = "",
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a model as transformers does, with a card, once it came back as it was.

    Args:
        model: that ``build_language_model`` made of the config.
        config: the run's, which says what was replaced.
        folder: made if it is not there; one with a model of somebody else is refused.
        body: of the card, after how to load the model.
        files: more of them, by name.

    Raises:
        UnsupportedError: what the layers learn cannot be put back in a line of code.
        ExportError: the model that came back differs; nothing was written.
    """
    _require_free(folder)
    _require_way_back(config)
    with tempfile.TemporaryDirectory() as place, _quiet_transformers():
        setattr(model.config, MARK, config.attention.word)
        model.save_pretrained(place)
        _require_same(model, config, Path(place))
        content = {file.name: file.read_bytes() for file in sorted(Path(place).iterdir())}
    content[CARD] = _card(model, config, body).encode()
    told = content.pop(CONFIG)  # last: without it no mixture is taken for a model
    try:
        write_together(folder, {**content, **(files or {}), CONFIG: told})
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from error
    return folder


def load_language_model(folder: Path, config: LanguageModelConfig) -> Any:
    """The model of such a folder, as its card says, in evaluation mode."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder)
    if config.attention.activation == SOFTMAX:
        return model
    weights = load_file(folder / WEIGHTS)
    replace_attention(
        model,
        config.attention,
        layers=WHICH[config.layers],
        calibrate=None if config.scale == "fixed" else weights,
    )
    if _learns(config) and config.scale == "fixed":
        model.load_state_dict(weights, strict=False)
    return model


def _loading_code(config: LanguageModelConfig) -> str:
    """What ``load_language_model`` does, for a reader."""
    lines = ["from transformers import GPT2LMHeadModel"]
    calls = ['model = GPT2LMHeadModel.from_pretrained("THIS_FOLDER")']
    if config.attention.activation != SOFTMAX:
        lines.append("from flashpoint import AttentionSpec, replace_attention")
        calls.append(f"spec = {spec_text(config.attention)}")
        options = "" if config.layers == "all" else f", layers={WHICH[config.layers]}"
        if _learns(config):
            lines.insert(0, "from safetensors.torch import load_file")
            calls.append('weights = load_file("THIS_FOLDER/model.safetensors")')
        if config.scale != "fixed":
            options += ", calibrate=weights"
        calls.append(f"replace_attention(model, spec{options})")
        if _learns(config) and config.scale == "fixed":
            calls.append("model.load_state_dict(weights, strict=False)")
    return "\n".join([*lines, "", *calls])


def _learns(config: LanguageModelConfig) -> bool:
    learned = any(config.attention.learns(name) for name in ("alpha", "gain", "bias"))
    return learned or config.scale != "fixed"


def _require_way_back(config: LanguageModelConfig) -> None:
    """Refuse scales without what else calibration sets, which ``calibrate=`` would ask for."""
    if config.scale != "fixed" and calibrated_spec(config.attention) != config.attention:
        raise UnsupportedError(
            "the model learns a scale for each head, but not both gain and bias, so that "
            "replace_attention cannot put its attention back. Export it as onnx or pt2."
        )


def _require_same(model: Any, config: LanguageModelConfig, folder: Path) -> None:
    loaded = load_language_model(folder, config)
    weights = loaded.state_dict()
    is_same = weights.keys() == model.state_dict().keys() and all(
        torch.equal(x, weights[name]) for name, x in model.state_dict().items()
    )
    ids = torch.arange(min(config.length, config.vocabulary_size, 16))[None]
    with torch.no_grad():
        is_same = is_same and torch.equal(loaded(ids).logits, model(ids).logits)
    if not is_same:
        raise ExportError(
            "the model that from_pretrained and replace_attention give back is another one. "
            "Export it as onnx or pt2."
        )


def _require_free(folder: Path) -> None:
    names = [name for name in (WEIGHTS, CONFIG, CARD) if (folder / name).exists()]
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        if MARK in json.loads((folder / CONFIG).read_text("utf-8")):
            return
    if names:
        raise InputError(
            f"{folder} has {show_names(names)} and no model of a run. Give another folder."
        )


def _card(model: Any, config: LanguageModelConfig, body: str) -> str:
    """README.md: what it is, how to load it, then the body."""
    is_softmax = config.attention.activation == SOFTMAX
    is_whole = not is_softmax and config.layers == "all"
    tag = "\n- attention-without-softmax" if is_whole else ""
    where = "" if config.layers == "all" else " in every second layer"
    num = sum(parameter.numel() for parameter in model.parameters())
    warning = (
        "\n\nWhat follows from_pretrained belongs to it: alone it gives softmax attention and "
        "other results, without an error."
    )
    sizes = ("width", "depth", "num_heads", "length", "vocabulary_size")
    rows = "\n".join(f"| {name} | {getattr(config, name)} |" for name in sizes)
    return f"""---
library_name: transformers
tags:
- flashpoint
- gpt2{tag}
---

# GPT-2 with {config.attention.word} attention{where}

{num:,} parameters.

```python
{_loading_code(config)}
```{"" if is_softmax else warning}

| size | |
|---|---|
{rows}
{body}"""


@contextlib.contextmanager
def _quiet_transformers() -> Generator[None]:
    """Without bars, and without the list of weights that are put back a moment later."""
    from transformers.utils import logging

    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()
