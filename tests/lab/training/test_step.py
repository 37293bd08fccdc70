"""One update: parts add up to the batch, and one that is not finite is left out."""

import pytest
import torch
from lab.training.runs import tiny_config

from flashpoint.lab.training.optimizer import make_optimizer
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.sharing import Shared
from flashpoint.lab.training.step import Counts, Step, Tally
from flashpoint.lab.training.vision import VisionTask

CPU = torch.device("cpu")


def make_step(*changes):
    """A step of the tiny run, its model in fp64 so that sums compare well, and its batches."""
    task = VisionTask(tiny_config(*changes), Ranks())
    torch.manual_seed(0)
    model = task.build_model().double()
    torch.nn.init.normal_(model.head.weight, std=0.1)
    shared = Shared(model, Ranks(), compiled=False)
    optimizer = make_optimizer(model, task.config.optimizer, CPU, captured=False)
    step = Step(task, shared, optimizer)
    step.set_rate(1e-2)
    return step, (tuple(t.double() for t in batch) for batch in task.batches(0))


def snapshot(step):
    """Copies of all that an update may change."""
    weights = [p.detach().clone() for p in step.model.module.parameters()]
    return weights + [t.clone() for s in step.optimizer.state.values() for t in s.values()]


@pytest.mark.parametrize("accumulate", [2, 4, 16])
def test_accumulated_update_is_that_of_the_whole_batch(accumulate):
    whole, batches = make_step()
    parts, _ = make_step(f"accumulate={accumulate}")
    for _ in range(3):
        batch = next(batches)
        whole(batch)
        parts(batch)
    torch.testing.assert_close(snapshot(parts), snapshot(whole), rtol=1e-9, atol=1e-12)
    assert parts.tally.read().loss == pytest.approx(whole.tally.read().loss)


def test_update_changes_every_weight():
    step, batches = make_step()
    before = snapshot(step)
    step(next(batches))
    after = snapshot(step)[: len(before)]
    assert not any(a.equal(b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_update_is_left_out_and_counted(value):
    step, batches = make_step()
    step(next(batches))
    before, (images, targets) = snapshot(step), next(batches)
    bad = (images.index_fill(0, torch.tensor([3]), value), targets)
    for _ in range(2):
        step(bad)
    assert all(a.equal(b) for a, b in zip(before, snapshot(step), strict=True))
    counts = step.tally.read()
    assert (counts.good, counts.bad, counts.bad_row, counts.worst_row) == (1, 2, 2, 2)
    assert 0 < counts.loss < 10
    step((images, targets))
    counts = step.tally.read()
    assert (counts.good, counts.bad, counts.bad_row, counts.worst_row) == (2, 2, 0, 2)
    assert not any(a.equal(b) for a, b in zip(before, snapshot(step), strict=True))


def test_bad_part_spoils_the_whole_update():
    step, batches = make_step("accumulate=4")
    step(next(batches))
    before, (images, targets) = snapshot(step), next(batches)
    step((images.index_fill(0, torch.tensor([0]), float("nan")), targets))
    assert all(a.equal(b) for a, b in zip(before, snapshot(step), strict=True))


def test_long_gradient_is_clipped():
    step, batches = make_step("optimizer.clip=0.001")
    step(next(batches))
    gradients = [p.grad for p in step.model.module.parameters()]
    assert torch.stack([g.norm() for g in gradients]).norm() == pytest.approx(0.001, rel=1e-2)
    assert step.tally.read().grad_norm > 0.01  # as it was before


def test_nothing_is_clipped_where_clip_is_null():
    gradients = []
    for clip in ("null", "1e30"):
        step, batches = make_step(f"optimizer.clip={clip}")
        step(next(batches))
        gradients.append([p.grad for p in step.model.module.parameters()])
        norm = torch.stack([g.norm() for g in gradients[-1]]).norm()
        assert norm == pytest.approx(step.tally.read().grad_norm, rel=1e-3)
    assert all(a.equal(b) for a, b in zip(*gradients, strict=True))


def test_rehearsal_has_no_effect():
    step, batches = make_step()
    step(next(batches))
    before, counts, batch = snapshot(step), step.tally.read(), next(batches)
    step.rehearse(batch)
    assert all(a.equal(b) for a, b in zip(before, snapshot(step), strict=True))
    assert step.tally.read() == counts
    step(batch)
    assert not any(a.equal(b) for a, b in zip(before, snapshot(step), strict=True))


def test_tally_is_reset_to_what_it_read():
    tally = Tally(CPU)
    counts = Counts(loss=0.1, grad_norm=2.0, good=3.0, bad=4.0, bad_row=1.0, worst_row=2.0)
    tally.reset(counts)
    assert tally.read() == counts


def test_bf16_is_autocast_and_weights_stay_fp32():
    config = tiny_config("precision=bf16")
    task = VisionTask(config, Ranks())
    model = task.build_model()
    seen = []
    model.blocks[0].mlp.fc1.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    shared = Shared(model, Ranks(), compiled=False)
    step = Step(task, shared, make_optimizer(model, config.optimizer, CPU, captured=False))
    step(next(task.batches(0)))
    assert seen == [torch.bfloat16]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
