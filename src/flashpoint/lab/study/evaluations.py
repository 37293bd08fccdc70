"""What a trained model is asked after its run: flat numbers, and attention for the report."""

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from flashpoint.convert.fitting import fit
from flashpoint.errors import InputError, check_choice, hint
from flashpoint.lab.data.text.pieces import load_pieces
from flashpoint.lab.evaluation.attention_maps import spread_layers
from flashpoint.lab.evaluation.classification import evaluate_run
from flashpoint.lab.evaluation.few_shot import NotFinite
from flashpoint.lab.evaluation.probe import probe, probe_config
from flashpoint.lab.evaluation.run_inspection import inspect_model
from flashpoint.lab.evaluation.search import Search
from flashpoint.lab.evaluation.translation import Translator
from flashpoint.lab.evaluation.translation_scores import evaluate_translation
from flashpoint.lab.runs.names import ATTENTION, PIECES, STATISTICS, STATISTICS_PICTURE
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.study.language_evaluations import (
    LEAST_UPDATES,
    ask_adapted,
    ask_converted,
    ask_language_model,
)
from flashpoint.lab.training import config_file
from flashpoint.lab.training.adapting_recipe import adapting_values
from flashpoint.lab.training.loop import train
from flashpoint.lab.training.ranks import Ranks, choose_device
from flashpoint.lab.training.run_folder import Run, open_run
from flashpoint.lab.training.task_registry import task_class
from flashpoint.lab.training.vision import VisionConfig
from flashpoint.layers.attention import Attention
from flashpoint.models.reluformer import ReLUFormer
from flashpoint.models.vit import ViT

Numbers = dict[str, float]

LEARNED = ("alpha", "gain", "bias")
NUM_SAMPLES, NUM_IMAGES, NUM_LAYERS = 64, 2, 3
"""Images for statistics of attention, images and layers for its maps: about 40 kB at "small"."""


def run_evaluation(kind: str, folder: Path, options: Mapping[str, Any]) -> Numbers:
    """Ask a run's model, as it was at the end, and give the answer as flat numbers.

    | kind | options | numbers |
    |---|---|---|
    | "classify" | data, batch_size | top1, top5, loss |
    | "probe" | data, shots, seeds | mean, spread; mean alone, NaN, of a model that diverged |
    | "translate" | data, beam, batch_size | bleu, chrf, document_bleu, exact, repeated_share; \
bleu_129-256 and so on by the source's tokens |
    | "validate" | none | those of a validation of training; "data.validation" names other data |
    | "learned" | none | alpha, gain and bias where they are learned: mean over all heads, and \
alpha_layer0 and so on |
    | "adapt" | attention, share | top1 of every stage: teacher, converted, calibrated, matched, \
adapted |
    | "language" | data, distances, count | loss, perplexity, likelihood (of what it writes, by \
itself), text (of the passages), key_D by distance and keys, their mean |
    | "convert_language" | attention, layers, and as above | the same of converted_ and \
calibrated_, judged by the run's own model |
    | "adapt_language" | attention, layers, share, and as above | the same of the adapted model |

    Args:
        kind: as above.
        folder: of a run that has ended.
        options: as above. Dotted names change the run's config before: with "data.image_size"
            images come in another size and positions are interpolated, with
            "model.attention.length" weights are divided by another one, with "data.length"
            documents are cut to more tokens.
    """
    check_choice("kind", kind, tuple(_KINDS))
    changes = {name: value for name, value in options.items() if "." in name}
    rest = {name: value for name, value in options.items() if name not in changes}
    _check_options(kind, rest)
    trained = open_run(folder)
    model = trained.load_model("last")
    run = replace(trained, config=_changed(trained.config, changes)) if changes else trained
    if changes:
        model = _rebuilt(run, model)
    return _KINDS[kind](run, model.eval().to(choose_device(run.config.device)), **rest)


def inspect_attention(folder: Path) -> None:
    """What ``flashpoint inspect`` leaves in a run's folder, as far as a report shows it.

    Nothing if it is there, or if the run is one on text.
    """
    run = open_run(folder)
    out = folder / ATTENTION
    if not isinstance(run.config, VisionConfig) or (out / STATISTICS).exists():
        return
    step = run.find_step("last")
    model = _require(run.load_model(step), ViT).to(choose_device(run.config.device))
    inspect_model(
        model,
        run.config.data,
        out,
        step=step,
        num_samples=NUM_SAMPLES,
        num_images=NUM_IMAGES,
        layers=spread_layers(model, NUM_LAYERS),
    )
    (out / STATISTICS_PICTURE).unlink()  # reports draw it from the numbers


def _check_options(kind: str, options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(_KINDS[kind]).parameters.values()
    known = {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}
    for name in options:
        if name not in known:
            raise InputError(
                f"evaluation {kind!r} has no option {name!r}. {hint(name, known)}Known: "
                f"{', '.join(known) or 'none'}, and dotted names of the config."
            )
    missing = [name for name, is_needed in known.items() if is_needed and name not in options]
    if missing:
        raise InputError(f"evaluation {kind!r} needs {', '.join(missing)}.")


def _changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """The config with other values; the model follows the size of the images."""
    if "data.image_size" in changes:
        changes = {"model.image_size": changes["data.image_size"], **changes}
    texts = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    return config_file.parse(plain(config), texts)


def _rebuilt(run: Run, model: nn.Module) -> nn.Module:
    """A model of the run's config with the weights of another."""
    built = run.config.new_model()
    weights = model.state_dict()
    if isinstance(built, ViT):  # positions of another grid are interpolated
        weights = fit(weights, built.state_dict(), str(run.path)).weights
    built.load_state_dict(weights)
    return built


def _classify(
    run: Run, model: nn.Module, *, data: str | None = None, batch_size: int = 256
) -> Numbers:
    found = evaluate_run(run, _require(model, ViT), data=data, batch_size=batch_size)
    return {"top1": found.top1, "top5": found.top5, "loss": found.loss}


def _probe(run: Run, model: nn.Module, *, data: str, shots: int = 10, seeds: int = 3) -> Numbers:
    config = probe_config(run.config.data, data)
    try:
        found = probe(_require(model, ViT), config, shots=shots, seeds=range(seeds))
    except NotFinite:  # a run that diverged is a result
        return {"mean": math.nan}
    spread = {} if found.spread is None else {"spread": found.spread}
    return {"mean": found.mean, **spread}


def _translate(
    run: Run, model: nn.Module, *, data: str | None = None, beam: int = 1, batch_size: int = 256
) -> Numbers:
    search = Search(beam_size=beam, batch_size=batch_size, is_bf16=run.config.precision == "bf16")
    former = _require(model, ReLUFormer)
    pieces = load_pieces(run.path / PIECES)
    data_config = run.config.data
    translator = Translator(
        former, pieces, data_config.length, search, by_segment=data_config.by_segment
    )
    found = evaluate_translation(run.config, translator, data=data)
    return {
        "bleu": found.all.bleu,
        "chrf": found.all.chrf,
        "document_bleu": found.all.document_bleu,
        "exact": found.all.exact,
        "repeated_share": found.repeated_share,
        **{f"bleu_{name}": scores.bleu for name, scores in found.by_length.items()},
    }


def _validate(run: Run, model: nn.Module) -> Numbers:
    device = choose_device(run.config.device)
    task = task_class(run.config)(run.config, Ranks(device=device))
    return {**task.validate(model)}


def _learned(run: Run, model: nn.Module) -> Numbers:
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    found: Numbers = {}
    for name in LEARNED:
        values = [getattr(layer, name) for layer in layers]
        values = [value.detach().float() for value in values if value is not None]
        if values:
            found[name] = sum(value.mean().item() for value in values) / len(values)
            found[f"{name}_lowest"] = min(value.min().item() for value in values)
            found[f"{name}_highest"] = max(value.max().item() for value in values)
        for number, value in enumerate(values):
            found[f"{name}_layer{number}"] = value.mean().item()
    return found


def _adapt(run: Run, model: nn.Module, *, attention: str, share: float) -> Numbers:
    _require(model, ViT)
    assert run.record is not None  # the run has ended
    total = max(LEAST_UPDATES, round(share * run.record.steps))
    values = adapting_values(run, run.find_step("last"), attention, total)
    with TemporaryDirectory() as folder:
        record = train(config_file.parse(values), Path(folder, "adapted"))
    stages: dict[str, Any] = {**record.notes["weights"]["stages"], "adapted": record.validation}
    return {name: numbers["top1"] for name, numbers in stages.items()}


def _require(model: nn.Module, wanted: type[Any]) -> Any:
    if not isinstance(model, wanted):
        raise InputError(
            f"the run trained {type(model).__name__}, and this evaluation needs {wanted.__name__}."
        )
    return model


_KINDS: dict[str, Callable[..., Numbers]] = {
    "classify": _classify,
    "probe": _probe,
    "translate": _translate,
    "validate": _validate,
    "learned": _learned,
    "adapt": _adapt,
    "language": ask_language_model,
    "convert_language": ask_converted,
    "adapt_language": ask_adapted,
}
