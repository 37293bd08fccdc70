"""Translation as a task: its config, its loss, its run, and that it goes on after a stop."""

import json
import math
import re
import shutil
from dataclasses import replace
from itertools import accumulate, islice, pairwise

import pytest
import torch
import torch.nn.functional as F
import yaml
from lab.training.runs import assert_same_run, curve, train_quietly
from lab.training.text_runs import text_config, write_corpus

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.data.text.pieces import PAD
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.training import config_file
from flashpoint.lab.training.config import ScheduleConfig
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.recipes import recipe
from flashpoint.lab.training.run_folder import open_run
from flashpoint.lab.training.schedule import Warmup, learning_rate, warmup_steps
from flashpoint.lab.training.text import TextTask
from flashpoint.lab.training.token_losses import TokenSums
from flashpoint.models.cost import translation_flops


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def first_batch(task):
    return next(task.batches(0))


def test_words_mean_what_the_paper_means(corpus):
    relu = TextTask(text_config(corpus, "model.attention=relu"), Ranks())
    softmax = TextTask(text_config(corpus, "model.attention=softmax"), Ranks())
    assert (relu.model_config.attention.alpha, relu.config.penalty) == (0.5, 0.1)
    assert (softmax.model_config.attention.activation, softmax.config.penalty) == ("softmax", 0.0)
    assert relu.config.optimizer.betas == (0.9, 0.98)
    assert (relu.config.schedule.kind, relu.config.label_smoothing) == ("inverse_sqrt", 0.1)


@pytest.mark.parametrize(
    ("own", "cross", "penalty"),
    [("relu4/sum", "null", 0.0), ("relu4/sum", "relu", 0.1), ("relu", "softmax", 0.1)],
)
def test_penalty_is_there_where_any_attention_can_have_it(corpus, own, cross, penalty):
    changes = (f"model.attention={own}", f"model.cross_attention={cross}")
    task = TextTask(text_config(corpus, *changes), Ranks())
    assert task.config.penalty == penalty
    assert config_file.parse(plain(task.config)) == task.config
    words = [spec.word for spec in task.model_config.specs]
    assert words == [own, own if cross == "null" else cross]


def test_completed_config_is_the_same_after_its_file(corpus, tmp_path):
    config = TextTask(text_config(corpus), Ranks()).config
    (tmp_path / "a.yaml").write_text(config_file.dump(config))
    again = config_file.load(tmp_path / "a.yaml")
    assert config_file.dump(again) == config_file.dump(config)
    task = TextTask(again, Ranks())
    assert task.config == TextTask(task.config, Ranks()).config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("penalty=-1", "penalty=-1.0 must be a number from 0 to"),
        ("label_smoothing=1", "label_smoothing=1.0 must be a number from 0 to below 1"),
        ("model.wdth=3", "model.wdth is unknown. Did you mean 'model.width'"),
        ("model.name=vit_s16", "not a model of text"),
        ("model.vocabulary_size=20", "is less than the 330 pieces"),
        ("accumulate=3", "has room for 16 rows .* 1 processes x 3 parts must share"),
        ("schedule.kind=cosin", "must be 'cosine' or 'inverse_sqrt'"),
    ],
)
def test_wrong_settings_are_one_line(corpus, change, message):
    with pytest.raises(InputError, match=message):
        TextTask(text_config(corpus, change), Ranks())


def test_short_run_of_a_recipe_is_told_what_to_set(corpus, tmp_path):
    """The recipe's 4000 steps of warm-up are a default that no config file shows."""
    values = recipe("reluformer_tiny", f"jsonl:{corpus}")
    changes = ("steps=20", "device=cpu", "batch_size=4096", "data.pieces.vocabulary_size=330")
    message = r"warmup_steps=4000 is more than the run's 20 steps\. .* --set (\S+), a tenth"
    with pytest.raises(InputError, match=message) as refusal:
        train_quietly(config_file.parse(values, changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    advice = re.search(message, str(refusal.value))[1]
    assert config_file.parse(values, (*changes, advice)).schedule.warmup_steps == 2


@pytest.mark.parametrize("word", ["graphs", "graphs_only"])
def test_graphs_need_a_gpu(corpus, tmp_path, word):
    with pytest.raises(UnsupportedError, match=f"compile='{word}' needs one process on a GPU"):
        train_quietly(text_config(corpus, f"compile={word}"), tmp_path / "run")


def test_operations_are_those_of_an_epoch(corpus):
    """Of its tokens, not of the room for them, whatever a batch has."""
    config = text_config(corpus, "data.join=false")
    task, wide = (TextTask(c, Ranks()) for c in (config, replace(config, batch_size=4096)))
    assert wide.flops_per_sample == task.flops_per_sample
    source, target = (
        sum(int(lengths[n].sum()) for lengths in islice(task.batches(0), task.steps_per_epoch))
        for n in (1, 4)
    )
    rows = sum(len(batch[0]) for batch in islice(task.batches(0), task.steps_per_epoch))
    flops = 3 * rows * translation_flops(task.model_config, source / rows, target / rows)
    assert task.flops_per_sample == pytest.approx(flops / target, rel=0.05)  # some rows come twice


def test_softmax_with_a_penalty_is_refused(corpus):
    with pytest.raises(InputError, match=r"penalty=0.1 is for relu attention only"):
        text_config(corpus, "model.attention=softmax", "penalty=0.1")
    attention = ("model.attention=relu4/sum", "model.cross_attention=softmax")
    with pytest.raises(InputError, match=r"not for 'relu4/sum' and 'softmax'. Set penalty: 0"):
        text_config(corpus, *attention, "penalty=0.1")


def test_rate_falls_as_the_inverse_square_root_of_the_step():
    schedule = ScheduleConfig(kind="inverse_sqrt", warmup_steps=4000)
    rates = [
        learning_rate(step, 7e-4, warmup_steps(schedule, 10**5), 10**5)
        for step in (0, 1000, 4000, 16_000, 64_000)
    ]
    assert rates == pytest.approx([0, 1.75e-4, 7e-4, 3.5e-4, 1.75e-4])


def test_inverse_square_root_does_not_depend_on_the_end_and_needs_no_warmup():
    way = Warmup(0, "inverse_sqrt")
    rates = [[learning_rate(step, 1.0, way, end) for step in (0, 1, 4)] for end in (5, 500)]
    assert rates[0] == rates[1] == [1.0, 1.0, 0.5]


def test_loss_is_smoothed_cross_entropy_of_the_existing_tokens_and_the_penalty(corpus):
    task = TextTask(text_config(corpus, "penalty=0.5"), Ranks())
    model, batch = task.build_model(), first_batch(task)
    source, source_lengths, target_in, target_out, target_lengths, _ = batch
    logits, penalty = model(
        source,
        target_in,
        source_lengths=source_lengths,
        target_lengths=target_lengths,
        with_penalty=True,
    )
    logs = logits.log_softmax(-1)[target_out != PAD]  # [T, V]
    right = logs.gather(1, target_out[target_out != PAD][:, None])
    wanted = -(0.9 * right.mean() + 0.1 * logs.mean()) + 0.5 * penalty
    assert penalty > 0
    assert task.loss(model, batch).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_parts_of_a_batch_add_up_to_the_whole(corpus):
    """As one process, as accumulated parts, and as ranks."""
    whole = TextTask(text_config(corpus, "penalty=0"), Ranks())
    model = whole.build_model()
    wanted = whole.loss(model, first_batch(whole)).item()
    parts = TextTask(text_config(corpus, "penalty=0", "accumulate=2"), Ranks())
    halves = zip(*(tensor.chunk(2) for tensor in first_batch(parts)), strict=True)
    losses = [parts.loss(model, half).item() for half in halves]
    assert sum(losses) / 2 == pytest.approx(wanted, rel=1e-5)
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)
    ranks = [TextTask(text_config(corpus, "penalty=0"), Ranks(rank=r, size=2)) for r in (0, 1)]
    losses = [task.loss(model, first_batch(task)).item() for task in ranks]
    assert sum(losses) / 2 == pytest.approx(wanted, rel=1e-5)


def test_token_sums_leave_padding_out():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator)
    targets = torch.tensor([[3, 4, 5, PAD, PAD], [6, 2, 1, 1, 3]])
    logits[0, 3, PAD] = 9.0
    sums = TokenSums()
    sums.add(logits[:1], targets[:1])
    sums.add(logits[1:], targets[1:])
    exists = targets != PAD
    numbers = sums.numbers()
    loss = F.cross_entropy(logits[exists], targets[exists]).item()
    right = (logits.argmax(-1) == targets)[exists].double().mean().item()
    assert numbers == {"loss": pytest.approx(loss), "token_accuracy": pytest.approx(right)}


def test_run_learns_and_its_folder_stands_alone(corpus, tmp_path, monkeypatch):
    config = text_config(corpus, "steps=60", "evaluate_every=20", "schedule.warmup_steps=10")
    record, shown = train_quietly(config, tmp_path / "run")
    validations = [line for line in curve(tmp_path / "run") if line["kind"] == "validation"]
    assert validations[-1]["loss"] < 0.8 * math.log(330)
    assert validations[-1]["loss"] < validations[0]["loss"]
    assert record.unit == "tokens"
    batches = islice(TextTask(config, Ranks()).batches(0), 60)
    counts = [0, *accumulate(int(target_lengths.sum()) for *_, target_lengths, _ in batches)]
    assert record.samples == counts[60] < 60 * 512
    assert record.flops == pytest.approx(counts[60] * TextTask(config, Ranks()).flops_per_sample)
    assert 0 < record.notes["padding_share"] < 1
    assert "tokens/s" in shown
    train_lines = [line for line in curve(tmp_path / "run") if line["kind"] == "train"]
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    timed = [line for line in map(json.loads, metrics) if line["kind"] == "train"]
    for before, line in pairwise(timed):
        tokens = line["tokens_per_s"] * (line["seconds"] - before["seconds"])
        assert tokens == pytest.approx(counts[line["step"]] - counts[before["step"]])
    assert train_lines[-1]["lr"] == pytest.approx(3e-3 * math.sqrt(10 / 59))
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "empty"))
    shutil.move(tmp_path / "run", tmp_path / "moved")
    run = open_run(tmp_path / "moved")
    assert run.best_step == min(validations, key=lambda line: line["loss"])["step"]
    assert run.load_model().config.vocabulary_size == 330
    assert (run.path / "pieces.model").is_file()


@pytest.mark.parametrize("change", ["model.dropout=0.2", "model.attention=softmax"])
def test_run_goes_on_bit_for_bit(corpus, tmp_path, change):
    config = text_config(corpus, change, "keep_checkpoints=9")
    train_quietly(config, tmp_path / "whole")
    train_quietly(config, tmp_path / "cut")
    for name in ("step_8", "step_12"):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / name, ignore_errors=True)
    (tmp_path / "cut" / "record.json").unlink()
    _, shown = train_quietly(config, tmp_path / "cut")
    assert "going on from step 6 of 12" in shown
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_run_with_other_pieces_is_refused(corpus, tmp_path):
    config = text_config(corpus, "steps=2")
    train_quietly(config, tmp_path / "run")
    pieces = tmp_path / "run" / "pieces.model"
    pieces.write_bytes(pieces.read_bytes() + b"\n")
    with pytest.raises(InputError, match=r"pieces.model differs from what this config gives"):
        train_quietly(config, tmp_path / "run")


def test_run_with_other_documents_is_refused(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_corpus(corpus)
    train_quietly(text_config(corpus, "steps=2"), tmp_path / "run")
    file = corpus / "train.jsonl"
    pieces = f"data.pieces.file={tmp_path / 'run' / 'pieces.model'}"
    file.write_text(file.read_text().replace("time", "tame"))
    with pytest.raises(InputError, match="was begun with other data: text was"):
        train_quietly(text_config(corpus, "steps=2", pieces), tmp_path / "run")


def test_test_split_that_is_validated_on_is_remarked(tmp_path):
    folder = write_corpus(tmp_path)
    assert TextTask(text_config(folder), Ranks()).remark == ""
    (folder / "validation.jsonl").rename(folder / "test.jsonl")
    said = f"jsonl:{folder} has no validation split: "
    assert TextTask(text_config(folder), Ranks()).remark.startswith(said)


def test_best_checkpoint_is_none_without_a_finite_loss():
    scores = [TextTask.score({"loss": loss}) for loss in (1.0, 2.0, math.nan, None)]
    assert scores == [(-1.0,), (-2.0,), (-math.inf,), (-math.inf,)]


def test_recipe_of_a_named_model_is_a_run(corpus):
    config = config_file.parse(recipe("reluformer_base", f"jsonl:{corpus}"))
    assert (config.task, config.optimizer.betas) == ("text", (0.9, 0.98))
    assert (config.schedule.kind, config.schedule.warmup_steps) == ("inverse_sqrt", 4000)


def test_run_of_an_earlier_version_is_opened(corpus, tmp_path):
    """Its config has neither sums nor cross-attention nor kinds of samples; its weights fit."""
    train_quietly(text_config(corpus, "steps=4"), tmp_path / "run")
    file = tmp_path / "run" / "config.yaml"
    values = yaml.safe_load(file.read_text())
    for name in ("cross_attention", "qk_norm", "gate", "output_norm", "qkv_init"):
        del values["model"][name]
    for name in ("normalize", "floor"):
        del values["model"]["attention"][name]
    del values["data"]["samples"]
    expected = open_run(tmp_path / "run").load_model(4).state_dict()
    file.write_text(yaml.safe_dump(values))
    run = open_run(tmp_path / "run")
    found = run.load_model(4).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    train_quietly(text_config(corpus, "steps=4"), tmp_path / "run")  # it is the same run
    with pytest.raises(InputError, match=r"model.attention.normalize was 'length', is 'sum'"):
        train_quietly(text_config(corpus, "model.attention=relu/sum"), tmp_path / "run")
