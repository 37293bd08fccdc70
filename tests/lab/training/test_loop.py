"""The loop in one process: curves, checkpoints, going on, stopping."""

import errno
import json
import os
import re
import shutil
import signal

import pytest
import torch
from lab.training.runs import (
    assert_same_run,
    config_with_broken_images,
    curve,
    final,
    interrupt_at,
    plain_yaml,
    tiny_config,
    train_quietly,
)

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.data.batches import EvalBatches
from flashpoint.lab.runs import checkpoints
from flashpoint.lab.runs.failure import Preempted, RunError
from flashpoint.lab.training import metrics
from flashpoint.lab.training.vision import ClassificationSums, VisionTask


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The tiny run, never interrupted."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train_quietly(tiny_config(), out)
    return out


def poison(monkeypatch, is_bad):
    """Make the images of some steps not finite."""
    batches = VisionTask.batches

    def with_poison(self, start):
        for step, (images, targets) in enumerate(batches(self, start), start=start + 1):
            yield images * float("nan") if is_bad(step) else images, targets

    monkeypatch.setattr(VisionTask, "batches", with_poison)


def test_run_leaves_what_it_promises(whole):
    assert {path.name.split(".")[0] for path in whole.iterdir() if path.name[0] != "."} == {
        *("config", "data", "metrics", "events", "checkpoints", "saved", "record")
    }
    train = [line for line in curve(whole) if line["kind"] == "train"]
    validation = [line for line in curve(whole) if line["kind"] == "validation"]
    assert [line["step"] for line in train] == [5, 10, 12]
    assert [line["step"] for line in validation] == [6, 12]
    assert {"epoch", "loss", "lr", "grad_norm", "skipped"} <= train[0].keys()
    assert {"top1", "top5", "loss"} <= validation[0].keys()
    config = plain_yaml(whole / "config.yaml")
    assert config["model"]["num_classes"] == 10  # complete, also what the data decided


def test_record_has_the_final_numbers(whole):
    record = json.loads((whole / "record.json").read_text())
    validation = {k: v for k, v in curve(whole)[-1].items() if k not in ("kind", "step")}
    assert record["validation"] == validation
    assert record["best"]["top1"] == max(x["top1"] for x in curve(whole) if "top1" in x)
    assert record["samples"] == record["steps"] * 16 == 12 * 16
    assert record["epochs"] == pytest.approx(12 * 16 / 1437)
    assert record["flops"] > 0
    assert record["samples_per_s"] == pytest.approx(record["samples"] / record["seconds"])
    assert record["utilisation"] is None  # on a CPU
    assert {"device", "torch", "commit", "python", "time_utc"} <= record["environment"].keys()


def test_same_seed_is_the_same_run(whole, tmp_path):
    train_quietly(tiny_config(), tmp_path / "again")
    assert_same_run(whole, tmp_path / "again")


def test_other_seed_is_another_run(whole, tmp_path):
    train_quietly(tiny_config("seed=1"), tmp_path / "other")
    assert curve(whole)[0]["loss"] != curve(tmp_path / "other")[0]["loss"]


def test_loss_falls(tmp_path):
    plain = ("data.augmentation.crop=none", "data.augmentation.mixup=0", "model.patch_size=2")
    config = tiny_config("steps=100", "batch_size=32", "optimizer.lr=1e-2", *plain)
    train_quietly(config, tmp_path / "run")
    losses = [line["loss"] for line in curve(tmp_path / "run") if line["kind"] == "train"]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("step", [1, 5, 6, 7, 12])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_stopped_run_goes_on_as_if_nothing_happened(whole, tmp_path, monkeypatch, step, number):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(step, patch, number)
        with pytest.raises(Preempted, match=rf"{number.name} at step {step} of 12, all saved"):
            train_quietly(tiny_config(), out)
    assert final(out).step == step
    assert not (out / "record.json").exists()
    _, text = train_quietly(tiny_config(), out)
    assert f"going on from step {step} of 12" in text
    assert_same_run(whole, out)


@pytest.mark.parametrize("step", [6, 12])
def test_stop_in_a_validation_does_not_wait_for_its_end(whole, tmp_path, monkeypatch, step):
    """Of 23 batches two are seen; going on, the same checkpoint is validated again."""
    out, iterate, seen = tmp_path / "run", EvalBatches.iterate, []

    def with_signal(self):
        for batch in iterate(self):
            seen.append(len(batch.labels))
            if len(seen) == 2 + 23 * (step // 6 - 1):
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(EvalBatches, "iterate", with_signal)
        with pytest.raises(Preempted, match=f"SIGTERM at step {step} of 12, all saved"):
            train_quietly(tiny_config(), out)
    assert len(seen) == 2 + 23 * (step // 6 - 1)
    assert final(out).step == step
    assert [line["step"] for line in curve(out) if line["kind"] == "validation"] == [6][: step > 6]
    train_quietly(tiny_config(), out)
    assert_same_run(whole, out)


def test_stop_behind_the_last_batch_keeps_the_validation(whole, tmp_path, monkeypatch):
    out, add, seen = tmp_path / "run", ClassificationSums.add, []

    def with_signal(self, logits, labels):
        seen.append(len(labels))
        if sum(seen) == 360:
            os.kill(os.getpid(), signal.SIGTERM)
        add(self, logits, labels)

    with monkeypatch.context() as patch:
        patch.setattr(ClassificationSums, "add", with_signal)
        with pytest.raises(Preempted, match="SIGTERM at step 7 of 12"):
            train_quietly(tiny_config(), out)
    assert [line["step"] for line in curve(out) if line["kind"] == "validation"] == [6]
    train_quietly(tiny_config(), out)
    assert_same_run(whole, out)


def test_signals_are_as_before_afterwards(tmp_path):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    train_quietly(tiny_config("steps=2"), tmp_path / "run")
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before


def test_finished_run_does_nothing(whole):
    before = {p: p.stat().st_mtime_ns for p in (whole / "checkpoints").rglob("*")}
    record = (whole / "record.json").read_bytes()
    found, text = train_quietly(tiny_config(), whole)
    assert "is finished (12 steps: top1" in text
    assert "nothing to do" in text
    assert found.steps == 12
    assert (whole / "record.json").read_bytes() == record
    assert {p: p.stat().st_mtime_ns for p in (whole / "checkpoints").rglob("*")} == before


def test_run_that_lost_its_record_only_writes_it_again(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "run")
    (out / "record.json").unlink()
    train_quietly(tiny_config(), out)
    assert_same_run(whole, out)
    assert (out / "record.json").exists()


def test_run_killed_in_its_last_validation_does_it_again(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "run")
    (out / "record.json").unlink()
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:-1]))
    train_quietly(tiny_config(), out)
    assert_same_run(whole, out)


def test_other_config_is_refused_with_the_keys(whole):
    with pytest.raises(InputError) as error:
        train_quietly(tiny_config("optimizer.lr=1e-2", "model.attention=softmax"), whole)
    assert "optimizer.lr was 0.002, is 0.01" in str(error.value)
    assert "model.attention.activation was 'relu', is 'softmax'" in str(error.value)
    assert "Pass another --out" in str(error.value)


def test_how_a_run_is_computed_may_change_on_the_way(whole, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(5, patch)
        with pytest.raises(Preempted):
            train_quietly(tiny_config(), out)
    train_quietly(tiny_config("accumulate=2", "keep_checkpoints=1", "data.workers=0"), out)
    assert plain_yaml(out / "config.yaml")["accumulate"] == 2
    one, other = final(whole), final(out)
    for name, tensor in one.model.items():
        torch.testing.assert_close(other.model[name], tensor, rtol=1e-4, atol=1e-5)


def test_last_checkpoints_and_the_best_are_kept(tmp_path, monkeypatch):
    scores = iter([0.1, 0.9, 0.2, 0.3, 0.4, 0.5])
    monkeypatch.setattr(
        VisionTask, "validate", lambda *_: {"top1": next(scores), "top5": 1.0, "loss": 1.0}
    )
    config = tiny_config("evaluate_every=2", "checkpoint_every=3", "keep_checkpoints=2")
    record, _ = train_quietly(config, tmp_path / "run")
    assert checkpoints.saved_steps(tmp_path / "run" / "checkpoints") == [4, 10, 12]
    assert record.best == {"step": 4, "top1": 0.9, "top5": 1.0, "loss": 1.0}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_damaged_checkpoint_costs_steps_but_not_the_curve(whole, tmp_path, monkeypatch, name):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(10, patch)
        with pytest.raises(Preempted):
            train_quietly(tiny_config(), out)
    file = out / "checkpoints" / "step_10" / name
    file.write_bytes(file.read_bytes()[:100])
    _, text = train_quietly(tiny_config(), out)
    assert "checkpoint step_10 is damaged" in text
    assert "going on from step 8 of 12" in text
    assert_same_run(whole, out)


def test_bad_steps_are_left_out_and_counted(tmp_path, monkeypatch):
    poison(monkeypatch, lambda step: step in (2, 3, 7))
    record, _ = train_quietly(tiny_config(), tmp_path / "run")
    assert record.skipped == 3
    lines = [line for line in curve(tmp_path / "run") if line["kind"] == "train"]
    assert [line["skipped"] for line in lines] == [2, 3, 3]
    assert all(0 < line["loss"] < 5 for line in lines)


def test_unreadable_images_are_said_logged_and_recorded(tmp_path):
    config = config_with_broken_images(tmp_path, ["steps=24"], 30, 31)
    record, text = train_quietly(config, tmp_path / "run")
    path = tmp_path / "images" / "train" / "a" / "00"
    said = [line for line in text.splitlines() if "cannot be read and were replaced" in line]
    assert len(said) == 1
    assert re.match(rf"[12] of the \d+ images of .*, first {path}3[01]\.png: ", said[0])
    counts = [line["broken"] for line in curve(tmp_path / "run") if line["kind"] == "train"]
    assert counts == sorted(counts)
    assert counts[-1] == record.notes["broken_count"] == 2 * 24 * 16 // 192
    assert record.notes["broken_share"] == pytest.approx(2 / 192)
    assert len(record.notes["broken_images"]) == 2
    assert f", {counts[-1]} images unreadable, " in text


def test_stopped_run_goes_on_counting_unreadable_images(tmp_path, monkeypatch):
    config = config_with_broken_images(tmp_path, ["steps=24"], 30, 31)
    whole, _ = train_quietly(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_at(13, patch)
        with pytest.raises(Preempted):
            train_quietly(config, tmp_path / "run")
    record, _ = train_quietly(config, tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    for name in ("broken_count", "broken_share"):
        assert record.notes[name] == whole.notes[name]


def test_readable_images_are_not_spoken_of(tmp_path):
    _, text = train_quietly(config_with_broken_images(tmp_path, ["steps=5"]), tmp_path / "run")
    assert "read" not in text


def test_too_many_bad_steps_in_a_row_end_the_run(tmp_path, monkeypatch):
    poison(monkeypatch, lambda step: step > 5)
    out = tmp_path / "run"
    with pytest.raises(RunError) as error:
        train_quietly(tiny_config("max_bad_steps=4"), out)
    assert str(error.value).startswith(
        "loss or gradient was not finite in 5 updates in a row by step 10, more than "
        "max_bad_steps=4; the last checkpoint before them is step_4."
    )
    assert all(tensor.isfinite().all() for tensor in final(out).model.values())
    assert not (out / "record.json").exists()


def test_checkpoint_before_bad_steps_is_kept(tmp_path, monkeypatch):
    poison(monkeypatch, lambda step: step > 3)
    out = tmp_path / "run"
    with pytest.raises(RunError, match=r"the last checkpoint before them is step_3\."):
        train_quietly(
            tiny_config("max_bad_steps=7", "checkpoint_every=1", "keep_checkpoints=1"), out
        )
    assert 3 in checkpoints.saved_steps(out / "checkpoints")


def test_as_many_bad_steps_as_allowed_do_not(tmp_path, monkeypatch):
    poison(monkeypatch, lambda step: step % 6 != 0)
    record, _ = train_quietly(tiny_config("max_bad_steps=5"), tmp_path / "run")
    assert record.skipped == 10


def test_interval_without_a_finite_loss_is_no_number(tmp_path, monkeypatch):
    poison(monkeypatch, lambda step: step <= 5)
    train_quietly(tiny_config(), tmp_path / "run")
    assert curve(tmp_path / "run")[0]["loss"] is None


def test_full_disk_ends_the_run_and_room_lets_it_go_on(whole, tmp_path, monkeypatch):
    out, write = tmp_path / "run", checkpoints.write

    def full(path, content):
        if "step_8" in str(path):
            path.write_bytes(content[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", full)
        with pytest.raises(RunError, match=r"the disk is full: .*step_8 was not written\."):
            train_quietly(tiny_config(), out)
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step_4", "step_6"]
    train_quietly(tiny_config(), out)
    assert_same_run(whole, out)


def test_full_disk_under_the_metrics_is_the_same_line(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics.Metrics, "_show", _raise_full)
    with pytest.raises(RunError, match=r"the disk is full: .*metrics.jsonl was not written\."):
        train_quietly(tiny_config(), tmp_path / "run")


def _raise_full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("accumulate=3", InputError, "batch_size=16 must be a multiple of .* 1 x 3 = 3"),
        ("compile=graphs", UnsupportedError, "compile='graphs' needs one process on a GPU"),
        ("schedule.warmup_steps=13", InputError, "warmup_steps=13 is more than the run's 12"),
        ("model.positions=sine2d,model.width=18", InputError, "sine2d positions need a width of"),
        ("model.num_classes=9", InputError, "num_classes=9 is less than the 10 classes"),
        ("data.train=nowhere", InputError, "'nowhere' is neither a folder nor a known set"),
    ],
)
def test_impossible_run_is_refused_in_one_line_and_leaves_no_folder(
    tmp_path, change, error, message
):
    with pytest.raises(error, match=message):
        train_quietly(tiny_config(*change.split(",")), tmp_path / "run")
    assert not list(tmp_path.iterdir())  # it would refuse the corrected command


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_gpu_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="device 'cuda' is not available"):
        train_quietly(tiny_config("device=cuda"), tmp_path / "run")
