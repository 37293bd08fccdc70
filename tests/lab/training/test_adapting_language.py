"""Runs that bring a softmax GPT-2 to other attention, from a run or from transformers' folder."""

import json
from dataclasses import replace

import pytest
import torch
from caches import new_cache
from lab.training.language_runs import language_config, require_gpt2
from lab.training.runs import assert_same_run, final, interrupt_at, train_quietly

from flashpoint.errors import InputError
from flashpoint.lab.data.text.passages import open_passages
from flashpoint.lab.runs.failure import Preempted
from flashpoint.lab.training import config_file
from flashpoint.lab.training.adapting_language import AdaptLanguageTask, converted
from flashpoint.lab.training.adapting_recipe import (
    adapting_values,
    folder_values,
    is_saved_model,
)
from flashpoint.lab.training.blending import set_share
from flashpoint.lab.training.gpt2_layers import GPT2Layers, calibrate_gpt2
from flashpoint.lab.training.language import LanguageTask
from flashpoint.lab.training.language_model import (
    LanguageModelConfig,
    build_language_model,
    logits_of,
    replaced_sites,
)
from flashpoint.lab.training.matching import layer_errors, match_layers
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.run_folder import open_run

require_gpt2()

LEARNED = {"gain": "learned_per_head", "bias": "learned_per_head"}
SPEC = {"activation": "relu4", "normalize": "sum", **LEARNED}
SIZES = {"width": 16, "depth": 4, "num_heads": 2, "length": 24, "vocabulary_size": 40}


@pytest.fixture(scope="module", autouse=True)
def _shared_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A softmax run."""
    out = tmp_path_factory.mktemp("adapt") / "teacher"
    train_quietly(language_config("steps=40", "evaluate_every=40", "checkpoint_every=40"), out)
    return out


def adapting(teacher, *changes, attention="relu4/sum", layers="all", total=10):
    """The config of a small run that adapts it."""
    run = open_run(teacher)
    values = adapting_values(run, run.find_step("last"), attention, total, layers)
    values |= {"log_every": 5, "evaluate_every": 4, "checkpoint_every": 4}
    return config_file.parse(values, ("adapt.anneal_share=0.5", *changes))


@pytest.fixture(scope="module")
def adapted(teacher, tmp_path_factory):
    """The small run, never interrupted."""
    out = tmp_path_factory.mktemp("adapt") / "adapted"
    _, said = train_quietly(adapting(teacher), out)
    return out, said


def pair(spec=SPEC, layers="all"):
    """A softmax model whose tokens attend unevenly, and one with its weights."""
    torch.manual_seed(0)
    config = LanguageModelConfig(**SIZES)
    one = build_language_model(config).eval()
    with torch.no_grad():
        for block in one.transformer.h:
            block.attn.c_attn.weight[:, :32].normal_(std=0.7)
    student = replace(
        LanguageModelConfig(**SIZES, attention=spec), layers=layers, scale="learned_per_head"
    )
    return one, converted(one, student).eval()


def ids_of(rows=4):
    return torch.randint(0, 40, (rows, 24), generator=torch.Generator().manual_seed(1))


# Stages.


@pytest.mark.parametrize("layers", ["all", "every_second"])
@pytest.mark.parametrize("activation", ["relu", "relu4"])
def test_calibration_brings_every_replaced_layer_nearer(activation, layers):
    normalize = "sum" if activation == "relu4" else "length"
    one, two = pair({"activation": activation, "normalize": normalize, **LEARNED}, layers)
    kind, ids = GPT2Layers(layers), ids_of()
    before = layer_errors(kind, one, two, ids)
    weights = {n: w.clone() for n, w in two.state_dict().items() if "substitute" not in n}
    calibrate_gpt2(two, [ids])
    after = layer_errors(kind, one, two, ids)
    assert len(after) == len(replaced_sites(two)) == (4 if layers == "all" else 2)
    assert all(a < b for a, b in zip(after, before, strict=True))
    assert all(two.state_dict()[name].equal(weight) for name, weight in weights.items())


def test_matching_trains_q_k_and_numbers_alone_and_lowers_the_error():
    one, two = pair(layers="every_second")
    kind, ids = GPT2Layers("every_second"), ids_of()
    calibrate_gpt2(two, [ids])
    before = {name: weight.clone() for name, weight in two.state_dict().items()}
    error = sum(layer_errors(kind, one, two, ids))
    steps = list(match_layers(kind, one, two, iter([ids] * 20), steps=20, lr=3e-3))
    assert len(steps) == 20
    assert sum(layer_errors(kind, one, two, ids)) < 0.9 * error
    for name, weight in two.state_dict().items():
        replaced = name.startswith(("transformer.h.1.attn", "transformer.h.3.attn"))
        if replaced and "c_attn" in name:
            assert weight[..., 32:].equal(before[name][..., 32:])  # v
            assert not weight[..., :16].equal(before[name][..., :16])  # q
        else:
            assert weight.equal(before[name]) != (replaced and "substitute" in name), name
    assert all(parameter.grad is None for parameter in two.parameters())


def test_a_share_goes_from_softmax_to_the_layers_own_attention():
    one, two = pair()
    ids = ids_of()
    calibrate_gpt2(two, [ids])
    own, names = logits_of(two, ids), list(two.state_dict())
    two.train()
    for share, expected in ((0.0, logits_of(one, ids)), (1.0, own)):
        set_share(two, torch.tensor(share))
        torch.testing.assert_close(logits_of(two, ids), expected, rtol=1e-4, atol=1e-5)
    set_share(two, torch.tensor(0.0))
    torch.testing.assert_close(logits_of(two.eval(), ids), own)  # for training only
    set_share(two.train(), None)
    torch.testing.assert_close(logits_of(two, ids), own)
    assert names == list(two.state_dict())
    assert not any(site.substitute._forward_hooks for site in replaced_sites(two))


# Runs.


def test_a_run_says_what_every_stage_reached(teacher, adapted):
    out, said = adapted
    start = json.loads((out / "weights.json").read_text())
    assert list(start["stages"]) == ["teacher", "converted", "calibrated", "matched"]
    assert list(start["layers"]) == ["converted", "calibrated", "matched"]
    converted, calibrated, _ = (sum(start["layers"][name]) for name in start["layers"])
    assert calibrated < converted
    wanted = open_run(teacher).record.validation["perplexity"]
    assert start["stages"]["teacher"]["perplexity"] == pytest.approx(wanted)
    assert "calibrated: perplexity " in said
    assert "matching step 2 of 2: mean layer error " in said
    assert "6 more that are new: " in said


def test_the_result_is_a_plain_model(adapted):
    model = open_run(adapted[0]).load_model("last")
    assert [site.substitute.spec.word for site in replaced_sites(model)] == ["relu4/sum"] * 2
    assert set(final(adapted[0]).model) == set(model.state_dict())


def test_a_stopped_run_goes_on_bit_for_bit(teacher, adapted, tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        interrupt_at(3, context, task=LanguageTask)  # while annealed
        with pytest.raises(Preempted):
            train_quietly(adapting(teacher), tmp_path / "stopped")
    train_quietly(adapting(teacher), tmp_path / "stopped")
    assert_same_run(adapted[0], tmp_path / "stopped")


def test_low_rank_updates_merge_into_plain_weights(teacher, tmp_path):
    config = adapting(teacher, "adapt.rank=2", "adapt.match_steps=0", layers="every_second")
    train_quietly(config, tmp_path / "run")
    run = open_run(tmp_path / "run")
    model, first = run.load_model("last"), open_run(teacher).load_model("last")
    assert [site.name for site in replaced_sites(model)] == ["transformer.h.1.attn"]
    names = ("transformer.h.0.mlp.c_fc.weight", "transformer.wte.weight")
    changed, kept = (model.state_dict()[n] - first.state_dict()[n] for n in names)
    assert torch.linalg.matrix_rank(changed, rtol=1e-4) == 2
    assert not kept.any()


REFUSED = {
    "no teacher": (("weights=null",), "task 'adapt_language' needs a teacher"),
    "no run": (("weights=/nowhere",), "/nowhere cannot be read"),
    "softmax": (("model.attention=softmax", "model.scale=fixed"), "as the teacher's"),
    "sizes": (("model.width=32",), r"does not fit: .* has shape .*, expected \[330, 32\]"),
    "deeper": (("model.depth=3",), r"does not fit: transformer.h.2\S* has nothing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_adapted_is_refused_before_a_folder_is_made(teacher, tmp_path, case):
    changes, said = REFUSED[case]
    with pytest.raises(InputError, match=said):
        train_quietly(adapting(teacher, *changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_teacher_without_softmax_is_refused(teacher, adapted):
    with pytest.raises(InputError, match="computes relu4 already, not softmax"):
        AdaptLanguageTask(adapting(teacher, f"weights={adapted[0]}"), Ranks())


# A folder of transformers.


@pytest.fixture
def folder(tmp_path):
    """A GPT-2 and its tokenizer, as transformers saves them."""
    tokenizers = pytest.importorskip("tokenizers")
    text = " ".join(text for text in open_passages("words:60", "train").texts())
    words = sorted({"?", "<|endoftext|>", ".", *text.replace(".", "").split()})
    known = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model = build_language_model(LanguageModelConfig(**SIZES | {"vocabulary_size": len(words)}))
    model.save_pretrained(tmp_path / "hf")
    made.save(str(tmp_path / "hf" / "tokenizer.json"))
    return tmp_path / "hf"


def test_a_saved_gpt2_is_adapted_on_any_passages(folder, tmp_path):
    assert is_saved_model(folder)
    values = folder_values(folder, "words:60", "relu", 5, "every_second")
    values |= {"precision": "fp32", "device": "cpu", "batch_size": 72}
    train_quietly(config_file.parse(values), tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert len(replaced_sites(run.load_model("last"))) == 2
    assert run.config.data.length == 24
    task = AdaptLanguageTask(config_file.parse(values), Ranks())
    with_tied_head = build_language_model(task.model_config).state_dict()
    assert "lm_head.weight" in with_tied_head
    assert task.teacher.lm_head.weight is task.teacher.transformer.wte.weight


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("model_type", "llama", "of type 'llama', and only gpt2"),
        ("n_inner", 7, "has n_inner=7, which GPT-2s of configs cannot have"),
        ("activation_function", "relu", "has activation_function='relu'"),
        ("n_embd", "wide", "n_embd='wide' must be a whole number"),
    ],
)
def test_other_saved_models_are_refused(folder, field, value, said):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, field: value}))
    with pytest.raises(InputError, match=said):
        folder_values(folder, "words:60", "relu", 5)


def test_a_saved_model_needs_its_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"has no tokenizer.json"):
        folder_values(folder, "words:60", "relu", 5)
