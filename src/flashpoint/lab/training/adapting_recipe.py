"""A sensible run that adapts a softmax model: of a run, from its own config, or of a folder."""

from pathlib import Path
from typing import Any, TypedDict

from flashpoint.convert.calibrate import calibrated_spec
from flashpoint.errors import InputError, describe
from flashpoint.lab.runs.checkpoints import step_folder
from flashpoint.lab.runs.names import CHECKPOINTS, PIECES
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.runs.stored import read_json
from flashpoint.lab.training.language_folder import MARK
from flashpoint.lab.training.run_folder import Run
from flashpoint.layers.spec import SOFTMAX, AttentionSpec

MATCHED_SHARE = 0.2
"""Of all updates, those that match layers; the others fine-tune the whole model."""
RATE = 0.1
"""Of the teacher's peak learning rate, what fine-tuning takes."""
WARMUP_SHARE = 0.1
LANGUAGE_TEMPERATURE = 1.0
"""Of language models: tokens are many, and their probabilities are what is wanted."""
FOLDER_RATE = 1e-4
"""Peak learning rate where nothing is known of the teacher's training."""
FOLDER_ROWS, FOLDER_LENGTH = 8, 512

HF_CONFIG, HF_TOKENIZER = "config.json", "tokenizer.json"
_TASKS = {"vision": "adapt", "language": "adapt_language"}
_USUAL = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
"""What the GPT-2 of configs has, by the names of transformers."""


class _Sizes(TypedDict):
    """What is read of a GPT-2's config.json."""

    model_type: str
    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int


def adapting_values(
    run: Run, step: int, attention: str, total: int, layers: str = "all"
) -> dict[str, Any]:
    """Plain data of the config that adapts a run's model; ``config_file.parse`` reads it.

    Args:
        run: the teacher's; data, sizes, batches and precision are its own.
        step: of its checkpoint.
        attention: what to compute, in a word.
        total: updates, those that match layers included.
        layers: of a language model, which layers are replaced.
    """
    task = run.config.task
    if task not in _TASKS:
        raise InputError(
            f"{run.path} is a run of task {task!r}, and only those of {' and '.join(_TASKS)} can "
            "be adapted."
        )
    values = plain(run.config)
    match_steps = round(MATCHED_SHARE * total)
    values["optimizer"]["lr"] *= RATE
    values["schedule"] |= {"warmup_steps": 0, "warmup_share": WARMUP_SHARE}
    values["model"] |= _attention(attention, task, layers)
    if task == "language":
        values["data"]["pieces"]["file"] = str(run.path / PIECES)
    elif layers != "all":
        raise InputError(f"--layers {layers} is for language models; {run.path} is of images.")
    return values | {
        "task": _TASKS[task],
        "weights": str(step_folder(run.path / CHECKPOINTS, step)),
        "epochs": None,
        "steps": total - match_steps,
        "adapt": _adapt(task, match_steps),
    }


def folder_values(
    folder: Path, data: str, attention: str, total: int, layers: str = "all"
) -> dict[str, Any]:
    """Plain data of the config that adapts a GPT-2 which transformers saved.

    Args:
        folder: of ``save_pretrained``, with the tokenizer.json that goes with the model.
        data: passages.
        attention, total, layers: as ``adapting_values`` has them.
    """
    sizes = _hf_sizes(folder)
    if not (folder / HF_TOKENIZER).is_file():
        raise InputError(
            f"{folder} has no {HF_TOKENIZER}, so that nothing can be read for the model. Save its "
            "tokenizer there: tokenizer.save_pretrained."
        )
    length = min(FOLDER_LENGTH, sizes["length"])
    match_steps = round(MATCHED_SHARE * total)
    return {
        "task": "adapt_language",
        "model": {"name": "gpt2", **sizes, **_attention(attention, "language", layers)},
        "data": {
            **{"train": data, "validation": data, "length": length},
            "pieces": {"file": str(folder / HF_TOKENIZER)},
        },
        "weights": str(folder),
        "steps": total - match_steps,
        "batch_size": FOLDER_ROWS * length,
        "optimizer": {"lr": FOLDER_RATE, "weight_decay": 0.0},
        "schedule": {"warmup_share": WARMUP_SHARE},
        "adapt": _adapt("language", match_steps),
    }


def is_saved_model(folder: Path) -> bool:
    """Whether transformers, and not a run, wrote a folder."""
    return (folder / HF_CONFIG).is_file()


def _attention(attention: str, task: str, layers: str) -> dict[str, Any]:
    """What the student computes, calibrated."""
    found: dict[str, Any] = {"attention": plain(calibrated_spec(AttentionSpec.parse(attention)))}
    if task == "language":
        found |= {"layers": layers, "scale": "learned_per_head"}
    return found


def _adapt(task: str, match_steps: int) -> dict[str, Any]:
    own = {"temperature": LANGUAGE_TEMPERATURE} if task == "language" else {}
    return {"match_steps": match_steps, **own}


def _hf_sizes(folder: Path) -> dict[str, int]:
    """A GPT-2's sizes by our names; other models, and other GPT-2s, are refused."""
    found = read_json(folder / HF_CONFIG, _Sizes, "Save the model again: save_pretrained.")
    settings: dict[str, Any] = {**found}
    if found["model_type"] != "gpt2":
        raise InputError(
            f"{folder} holds a model of type {describe(found['model_type'])}, and only gpt2 can "
            "be adapted here. flashpoint.replace_attention takes others."
        )
    if settings.get(MARK, SOFTMAX) != SOFTMAX:
        raise InputError(
            f"{folder} holds a model with {describe(settings[MARK])} attention, and only softmax "
            "models can be adapted."
        )
    inner = settings.get("n_inner")
    other = {n: settings[n] for n, usual in _USUAL.items() if settings.get(n, usual) != usual}
    other |= {} if inner in (None, 4 * found["n_embd"]) else {"n_inner": inner}
    if other:
        name, value = next(iter(other.items()))
        raise InputError(
            f"{folder} has {name}={describe(value)}, which GPT-2s of configs cannot have. "
            "flashpoint.replace_attention takes it."
        )
    return {
        "width": found["n_embd"],
        "depth": found["n_layer"],
        "num_heads": found["n_head"],
        "length": found["n_positions"],
        "vocabulary_size": found["vocab_size"],
    }
