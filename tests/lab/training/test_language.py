"""Language models on the shared loop: configs, losses, resuming, and models that come back."""

import json
import math

import pytest
import torch
from caches import new_cache
from implementations import needs_gpu
from lab.training.language_runs import language_config, require_gpt2
from lab.training.runs import assert_same_run, final, interrupt_at, train_quietly
from torch.utils.flop_counter import FlopCounterMode

from flashpoint.convert.substitute import Substitute
from flashpoint.errors import InputError
from flashpoint.lab.runs.failure import Preempted
from flashpoint.lab.training import config_file
from flashpoint.lab.training.language import LanguageTask, LossSums, open_both, token_losses
from flashpoint.lab.training.language_model import (
    LanguageModelConfig,
    build_language_model,
    logits_of,
    replaced_sites,
)
from flashpoint.lab.training.memory_check import describe_memory
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.run_folder import open_run

require_gpt2()

SIZES = {"width": 16, "depth": 4, "num_heads": 2, "length": 24, "vocabulary_size": 40}


def model_of(**settings):
    torch.manual_seed(0)
    return build_language_model(LanguageModelConfig(**SIZES, **settings))


def ids_of(rows=2, length=24):
    return torch.randint(0, 40, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was never interrupted."""
    cache = tmp_path_factory.mktemp("cache")
    out = tmp_path_factory.mktemp("language") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHPOINT_CACHE", new_cache(cache))
        _, said = train_quietly(language_config("model.attention=relu4/sum"), out)
    return out, said


# The model.


@pytest.mark.parametrize(("layers", "expected"), [("all", [0, 1, 2, 3]), ("every_second", [1, 3])])
def test_layers_say_which_are_replaced(layers, expected):
    model = model_of(attention={"activation": "relu"}, layers=layers)
    assert [site.name for site in replaced_sites(model)] == [
        f"transformer.h.{number}.attn" for number in expected
    ]
    assert not any(isinstance(module, Substitute) for module in model_of().modules())


def test_a_call_without_a_cache_is_the_model_s_own():
    for settings in ({}, {"attention": {"activation": "relu"}}):
        model, ids = model_of(**settings).eval(), ids_of()
        torch.testing.assert_close(logits_of(model, ids), model(input_ids=ids).logits)


@pytest.mark.parametrize("settings", [{}, {"attention": "relu", "layers": "every_second"}])
def test_no_mask_is_made_of_whole_rows_even_while_they_are_captured(settings, monkeypatch):
    model, ids = model_of(**settings).eval(), ids_of()
    expected, config = model(input_ids=ids).logits, model.transformer.config
    masks = []
    for block in model.transformer.h:
        block.attn.register_forward_pre_hook(
            lambda _, __, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
        )
    for module in ("masking_utils", "modeling_utils"):
        monkeypatch.setattr(f"transformers.{module}.is_tracing", lambda *_: True, raising=False)
    torch.testing.assert_close(logits_of(model, ids), expected)
    assert masks == [None] * 4
    assert model.transformer.config is config
    with pytest.raises(IndexError):  # of positions; the config comes back then, too
        logits_of(model, ids_of(length=25))
    assert model.transformer.config is config


def test_padding_and_caches_are_served_as_ever():
    model, ids = model_of(attention="relu").eval(), ids_of()
    hidden = torch.ones_like(ids)
    hidden[:, :6] = 0
    places = (hidden.cumsum(1) - 1).clamp(min=0)
    padded = model(input_ids=ids, attention_mask=hidden, position_ids=places).logits
    torch.testing.assert_close(padded[:, 6:], logits_of(model, ids[:, 6:]))
    first = model(input_ids=ids[:, :10], use_cache=True)
    rest = model(input_ids=ids[:, 10:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(rest, logits_of(model, ids)[:, 10:])


def test_later_tokens_change_nothing_before_them():
    model, ids = model_of(attention={"activation": "relu4", "normalize": "sum"}), ids_of()
    other = ids.clone()
    other[:, 12:] = 0
    torch.testing.assert_close(logits_of(model, ids)[:, :12], logits_of(model, other)[:, :12])


def test_scales_are_learned_where_the_config_says_so():
    spec = {"activation": "relu", "gain": "learned_per_head"}
    plain, scaled = (model_of(attention=spec, scale=s) for s in ("fixed", "learned_per_head"))
    new = set(scaled.state_dict()) - set(plain.state_dict())
    assert new == {f"transformer.h.{n}.attn.substitute.scale" for n in range(4)}
    torch.testing.assert_close(logits_of(plain, ids_of()), logits_of(scaled, ids_of()))


def test_operations_are_those_that_pytorch_counts():
    with FlopCounterMode(display=False) as counter:
        logits_of(model_of(attention="relu"), ids_of(rows=3))
    expected = 3 * SIZES["length"] * LanguageModelConfig(**SIZES).flops_per_token
    assert counter.get_total_flops() == expected


# Losses.


def test_loss_is_that_of_the_next_token():
    task = LanguageTask(language_config(), Ranks())
    inputs, targets = next(task.batches(0))
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    model = task.build_model()
    expected = model(input_ids=inputs, labels=inputs).loss  # transformers shifts by itself
    shifted = token_losses(logits_of(model, inputs)[:, :-1], inputs[:, 1:]).mean()
    torch.testing.assert_close(shifted, expected)
    assert task.loss(model, (inputs, targets)).isfinite()


def test_sums_weigh_every_token_alike():
    sums = LossSums()
    logits, targets = torch.randn(3, 7, 5), torch.randint(0, 5, (3, 7))
    sums.add(logits[:2], targets[:2])
    sums.add(logits[2:, :4], targets[2:, :4])
    losses = token_losses(logits, targets)
    expected = torch.cat([losses[:2].flatten(), losses[2, :4]]).mean().item()
    found = sums.numbers()
    assert found["loss"] == pytest.approx(expected)
    assert found["perplexity"] == pytest.approx(math.exp(expected))


def test_a_loss_beyond_all_numbers_has_a_perplexity():
    sums = LossSums()
    sums.add(torch.tensor([[[0.0, 1e6]]]), torch.tensor([[0]]))
    assert math.isfinite(sums.numbers()["perplexity"])


# Runs.


def test_a_run_learns_and_its_folder_is_complete(run):
    out, said = run
    found = open_run(out)
    losses = [line["loss"] for line in found.metrics if line["kind"] == "validation"]
    assert losses[1] < losses[0] < math.log(330)
    assert found.record.unit == "tokens"
    assert found.record.samples == 12 * 128
    assert set(found.record.validation) == {"loss", "perplexity"}
    assert (out / "pieces.model").is_file()
    assert "perplexity" in said
    assert found.config.model.settings["vocabulary_size"] == 330
    assert json.loads((out / "data.json").read_text())["passages"] == 60


def test_the_model_comes_back(run):
    found = open_run(run[0])
    model = found.load_model("last")
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert model.lm_head.weight is model.transformer.wte.weight
    assert len(replaced_sites(model)) == 2
    task = LanguageTask(found.config, Ranks())
    assert task.validate(model)["loss"] == pytest.approx(found.record.validation["loss"])
    stored = final(run[0]).model
    assert stored["lm_head.weight"].equal(stored["transformer.wte.weight"])


def test_a_stopped_run_goes_on_bit_for_bit(run, tmp_path, monkeypatch):
    config = language_config("model.attention=relu4/sum")
    with monkeypatch.context() as context:
        interrupt_at(7, context, task=LanguageTask)
        with pytest.raises(Preempted):
            train_quietly(config, tmp_path / "stopped")
    _, said = train_quietly(config, tmp_path / "stopped")
    assert "going on from step 7" in said
    assert_same_run(run[0], tmp_path / "stopped")


def test_parts_of_a_batch_give_its_gradient(tmp_path):
    records = [
        train_quietly(language_config(f"accumulate={n}", "steps=3"), tmp_path / str(n))[0]
        for n in (1, 2)
    ]
    losses = [record.validation["loss"] for record in records]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_memory_of_a_step_is_estimated():
    assert "needs about" in describe_memory(LanguageTask(language_config(), Ranks()), Ranks())


def test_pieces_of_the_folder_are_taken_if_they_are_as_many(run, tmp_path):
    (tmp_path / "train.txt").write_text("a river holds the old bridge.\n" * 60)
    (tmp_path / "val.txt").write_text("a river holds the new bridge.\n" * 20)
    (tmp_path / "pieces.model").write_bytes((run[0] / "pieces.model").read_bytes())
    places = (f"data.train={tmp_path}", f"data.validation={tmp_path}")
    task = LanguageTask(language_config(*places), Ranks())
    assert task.config.data.pieces.file == str(tmp_path / "pieces.model")


WRONG = {
    "model.depth=1 model.layers=every_second": "layers='every_second' needs 2 blocks",
    "model.layers=odd": "must be 'all' or 'every_second'",
    "model.width=15": "width=15 must be a multiple of num_heads=2",
    "model.wdth=3": "model.wdth is unknown. Did you mean 'model.width'",
    "model.name=vit_s16": "'vit_s16' is no language model",
    "model.length=16": "model.length=16 is less than data.length=32",
    "model.vocabulary_size=20": "is less than the 330 pieces",
    "model.attention=rellu": "Did you mean 'relu'",
    "batch_size=100": r"batch_size=100 must be a multiple of .* 32 x 1 x 1 = 32",
    "data.length=8": "data.length=8 must be a whole number from 16",
    "data.validation=words:60:x": "words:60:x",
    "optimizer.lr=0": "lr=0.0 must be a number above 0",
}


@pytest.mark.parametrize("changes", WRONG)
def test_wrong_settings_are_one_line(changes):
    with pytest.raises(InputError, match=WRONG[changes]) as caught:
        LanguageTask(language_config(*changes.split()), Ranks())
    assert "\n" not in str(caught.value)


def test_the_same_passages_twice_are_refused(tmp_path):
    for name in ("train", "val"):
        (tmp_path / f"{name}.txt").write_text("a")
    config = language_config(f"data.train={tmp_path}", f"data.validation={tmp_path}:train")
    with pytest.raises(InputError, match="are the same passages"):
        open_both(config.data)


def test_completed_config_is_the_same_after_its_file(tmp_path):
    config = LanguageTask(language_config(), Ranks()).config
    (tmp_path / "a.yaml").write_text(config_file.dump(config))
    assert config_file.load(tmp_path / "a.yaml") == config


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("attention", ["softmax", "relu", "relu4/sum"])
def test_captured_updates_learn_as_plain_ones_do(tmp_path, attention):
    found = []
    for word in ("none", "graphs_only"):
        changes = (f"model.attention={attention}", "device=cuda", f"compile={word}")
        record, _ = train_quietly(language_config(*changes, "precision=bf16"), tmp_path / word)
        found.append(record.validation["loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-2)
