"""Classification: losses, counts, and what a model takes from its data."""

import shutil

import pytest
import torch
from lab.data.pictures import make_folder
from lab.training.runs import assert_same_run, curve, tiny_config, train_quietly

from flashpoint.lab.data.transforms import mixup_share
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.vision import ClassificationSums, VisionTask, cross_entropy


def test_softmax_loss_is_minus_the_log_of_the_share():
    logits, targets = torch.randn(5, 7), torch.rand(5, 7)
    wanted = -(targets * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(cross_entropy(logits, targets, "softmax"), wanted)


def test_sigmoid_loss_is_a_sum_over_classes():
    logits, targets = torch.randn(5, 7), torch.rand(5, 7)
    p = logits.sigmoid()
    wanted = -(targets * p.log() + (1 - targets) * (1 - p).log()).sum(-1)
    torch.testing.assert_close(cross_entropy(logits, targets, "sigmoid"), wanted)


def test_loss_of_bf16_logits_is_fp32():
    loss = cross_entropy(torch.randn(2, 3).bfloat16(), torch.eye(3)[:2], "sigmoid")
    assert loss.dtype == torch.float32


def test_sums_count_first_guesses_and_five():
    logits = torch.tensor([[9.0, 8, 7, 6, 5, 4, 3]] * 4)
    sums = ClassificationSums("softmax")
    sums.add(logits[:3], torch.tensor([0, 4, 5]))
    sums.add(logits[3:], torch.tensor([1]))
    numbers = sums.numbers()
    assert (numbers["top1"], numbers["top5"]) == (0.25, 0.75)
    losses = -logits.log_softmax(-1)[torch.arange(4), torch.tensor([0, 4, 5, 1])]
    assert numbers["loss"] == pytest.approx(losses.mean().item(), rel=1e-6)


def test_sums_of_few_classes_have_a_top5():
    sums = ClassificationSums("softmax")
    sums.add(torch.eye(2), torch.tensor([0, 0]))
    assert sums.numbers()["top5"] == 1.0


def test_model_takes_size_channels_and_classes_from_the_data():
    config = VisionTask(tiny_config(), Ranks()).model_config
    assert (config.image_size, config.channels, config.num_classes) == (8, 1, 10)


def test_model_may_have_more_classes_than_the_data():
    task = VisionTask(tiny_config("model.num_classes=12"), Ranks())
    images, targets = next(task.batches(0))
    assert targets.shape == (16, 12)
    assert task.build_model()(images).shape == (16, 12)


def test_batches_are_mixed_by_the_share_of_their_step():
    plain = VisionTask(tiny_config("data.augmentation.mixup=0"), Ranks())
    mixed = VisionTask(tiny_config("data.augmentation.mixup=0.7"), Ranks())
    for step in (3, 4):
        (images, targets), (got, shares) = (next(task.batches(step)) for task in (plain, mixed))
        share = mixup_share(0.7, 0, step)
        torch.testing.assert_close(got, share * images + (1 - share) * images.roll(1, 0))
        torch.testing.assert_close(shares, share * targets + (1 - share) * targets.roll(1, 0))


def test_batches_do_not_depend_on_where_one_begins():
    task = VisionTask(tiny_config(), Ranks())
    batches = task.batches(0)
    third = [next(batches) for _ in range(3)][2]
    assert all(a.equal(b) for a, b in zip(third, next(task.batches(2)), strict=True))


def test_validation_leaves_weights_without_gradients():
    task = VisionTask(tiny_config(), Ranks())
    model = task.build_model()
    numbers = task.validate(model)
    assert numbers["loss"] == pytest.approx(torch.tensor(10.0).log().item())  # a zero head
    assert all(parameter.grad is None for parameter in model.parameters())


def test_flops_are_three_forwards():
    from flashpoint.models.cost import forward_flops

    task = VisionTask(tiny_config(), Ranks())
    assert task.flops_per_sample == 3 * forward_flops(task.model_config)


def test_test_split_that_is_validated_on_is_said_once_and_noted(tmp_path):
    images = tmp_path / "images"
    for split in ("train", "test"):
        make_folder(images / split, {"a": 16, "b": 16})
    where = (f"data.train={images}", f"data.validation={images}", "data.workers=0", "steps=2")
    said = f"{images} has no validation split: "
    record, first = train_quietly(tiny_config(*where), tmp_path / "run")
    assert first.count(said) == 1
    assert record.notes["data"].startswith(said)
    assert said not in train_quietly(tiny_config(*where), tmp_path / "run")[1]
    record, other = train_quietly(tiny_config("steps=2"), tmp_path / "digits")
    assert "validation split" not in other
    assert "data" not in record.notes


def test_run_with_dropped_branches_goes_on_bit_for_bit(tmp_path):
    config = tiny_config("model.drop_path=0.5", "keep_checkpoints=9")
    train_quietly(config, tmp_path / "whole")
    train_quietly(tiny_config("keep_checkpoints=9"), tmp_path / "plain")
    train_quietly(config, tmp_path / "cut")
    for name in ("step_8", "step_12"):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / name)
    (tmp_path / "cut" / "record.json").unlink()
    _, shown = train_quietly(config, tmp_path / "cut")
    assert "going on from step 6 of 12" in shown
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    losses = [curve(tmp_path / name)[0]["loss"] for name in ("whole", "plain")]
    assert losses[0] != losses[1]
