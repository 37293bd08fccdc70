"""Compiled and captured updates are the plain ones."""

import functools
import gc
import json
import weakref
from itertools import islice

import pytest
import torch
from implementations import needs_gpu
from lab.training.runs import assert_same_run, curve, final, tiny_config, train_quietly
from lab.training.text_runs import text_config, write_corpus

from flashpoint.errors import InputError
from flashpoint.lab.training import memory_check
from flashpoint.lab.training.loop import COMPILING
from flashpoint.lab.training.optimizer import make_optimizer
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.sharing import Shared, compiled_for_shapes
from flashpoint.lab.training.step import CapturedStep, Step
from flashpoint.lab.training.text import TextTask
from flashpoint.lab.training.vision import VisionTask


@pytest.fixture
def compiled(monkeypatch):
    """Graphs that go to the compiler, of which only the front end works."""
    graphs = []
    compiler = torch.compile

    def run_eagerly(graph, _):
        graphs.append(graph)
        return graph.forward

    def compile_eagerly(function, *, dynamic=None):
        return compiler(function, backend=run_eagerly, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", compile_eagerly)
    torch.compiler.reset()
    return graphs


@pytest.mark.slow
def test_compiled_run_is_the_plain_run(tmp_path, compiled):
    """What is compiled, and that rehearsals leave no trace."""
    train_quietly(tiny_config(), tmp_path / "plain")
    train_quietly(tiny_config("compile=default"), tmp_path / "compiled")
    assert len(compiled) == 1
    assert_same_run(tmp_path / "plain", tmp_path / "compiled")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.slow
def test_compiled_run_of_text_is_the_plain_run(tmp_path, corpus, compiled, monkeypatch):
    """Also where batches have several shapes, each rehearsed, and dropout draws numbers.

    The model is compiled once for all of them, and so is the loss, although the check of memory
    has called both before.
    """
    monkeypatch.setattr(memory_check, "SMALL_SHARE", 0.0)
    changes = ("data.join=false", "data.length=128", "batch_size=1024", "model.dropout=0.2")
    config = functools.partial(text_config, corpus, *changes)
    shapes = {batch[0].shape for batch in islice(TextTask(config(), Ranks()).batches(0), 12)}
    assert len(shapes) > 1
    train_quietly(config(), tmp_path / "plain")
    _, said = train_quietly(config("compile=default"), tmp_path / "compiled")
    assert said.count(COMPILING) == 1
    assert len(compiled) == 2
    assert_same_run(tmp_path / "plain", tmp_path / "compiled")


def test_numbers_are_fixed_while_shapes_are_compiled_and_only_then(monkeypatch):
    from torch._dynamo import config

    seen = []

    def compile_nothing(function, *, dynamic):
        return lambda x: seen.append((dynamic, config.specialize_float)) or function(x)

    monkeypatch.setattr(torch, "compile", compile_nothing)
    with config.patch(specialize_float=False):  # monkeypatch would leave it hidden behind it
        assert compiled_for_shapes(abs)(-3) == 3
        assert seen == [(True, True)]
        assert not config.specialize_float


def make_step(config, task_class=VisionTask):
    """A step on the GPU, without the compiler, and its batches."""
    ranks = Ranks(device=torch.device("cuda"))
    task = task_class(config, ranks)
    torch.manual_seed(0)
    shared = Shared(task.build_model(), ranks, compiled=False)
    optimizer = make_optimizer(shared.module, config.optimizer, ranks.device, captured=True)
    return Step(task, shared, optimizer), task.batches(0)


gpu_config = functools.partial(tiny_config, "device=cuda")


def snapshot(step):
    """Copies of all that an update may change."""
    weights = [p.detach().clone() for p in step.model.module.parameters()]
    return weights + [t.clone() for s in step.optimizer.state.values() for t in s.values()]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("accumulate", [1, 2])
def test_captured_updates_are_the_plain_ones(accumulate):
    plain, batches = make_step(gpu_config(f"accumulate={accumulate}"))
    step, _ = make_step(gpu_config(f"accumulate={accumulate}"))
    first = next(batches)
    before = [p.detach().clone() for p in step.model.module.parameters()]
    captured = CapturedStep(step, first)
    after = [p.detach() for p in step.model.module.parameters()]
    assert all(a.equal(b) for a, b in zip(before, after, strict=True))
    for number, rate in enumerate((1e-3, 5e-3, 0.0, 1e-3)):
        batch = first if number == 0 else next(batches)
        for one in (plain, step):
            one.set_rate(rate)
        plain(batch)
        captured(batch)
    torch.testing.assert_close(snapshot(step), snapshot(plain), rtol=1e-4, atol=1e-6)
    assert step.tally.read().loss == pytest.approx(plain.tally.read().loss, rel=1e-5)


@pytest.mark.gpu
@needs_gpu
def test_captured_updates_drop_the_branches_that_plain_ones_drop():
    (plain, batches), (step, others) = (
        make_step(gpu_config("model.drop_path=0.5")) for _ in range(2)
    )
    for one in (plain, step):
        one.set_rate(1e-3)
    for batch in islice(batches, 4):
        plain(batch)
    captured = None
    for batch in islice(others, 4):
        captured = captured or CapturedStep(step, batch)
        captured(batch)
    torch.testing.assert_close(snapshot(step), snapshot(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@needs_gpu
def test_captured_bad_update_is_left_out():
    step, batches = make_step(gpu_config())
    step.set_rate(1e-3)
    images, targets = next(batches)
    captured = CapturedStep(step, (images, targets))
    captured((images, targets))
    before = snapshot(step)
    captured((images * float("nan"), targets))
    assert all(a.equal(b) for a, b in zip(before, snapshot(step), strict=True))
    captured((images, targets))
    assert not any(a.equal(b) for a, b in zip(before, snapshot(step), strict=True))
    counts = step.tally.read()
    assert (counts.good, counts.bad, counts.bad_row, counts.worst_row) == (2, 1, 0, 1)


@pytest.mark.gpu
@needs_gpu
def test_captured_step_keeps_the_weights_that_its_graph_changes():
    step, batches = make_step(gpu_config())
    step.set_rate(1e-3)
    batch = next(batches)
    weight = weakref.ref(next(step.model.module.parameters()))
    captured = CapturedStep(step, batch)
    del step
    gc.collect()
    assert weight() is not None
    before = weight().clone()
    for _ in range(2):  # the head starts at zero: the first update reaches nothing before it
        captured(batch)
    assert not before.equal(weight())


@pytest.mark.gpu
@needs_gpu
def test_batch_of_another_shape_is_refused():
    step, batches = make_step(gpu_config())
    images, targets = next(batches)
    captured = CapturedStep(step, (images, targets))
    with pytest.raises(InputError, match="cannot be replayed by a graph"):
        captured((images[:4], targets[:4]))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_updates_between_two_logs_never_wait_for_the_gpu():
    step, batches = make_step(gpu_config())
    update = CapturedStep(step, next(batches))
    next(batches)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step.set_rate(1e-3)
            update(next(batches))
            step(next(batches))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("attention", ["relu", "softmax"])
def test_captured_updates_of_text_are_the_plain_ones(corpus, attention):
    """Of every shape, with one memory for all graphs, whatever the order; dropout drops alike."""
    changes = ("data.join=false", "data.length=128", "batch_size=1024", "model.dropout=0.2")
    config = text_config(corpus, *changes, "device=cuda", f"model.attention={attention}")
    (plain, batches), (step, others) = (make_step(config, TextTask) for _ in range(2))
    pool, captured = torch.cuda.graph_pool_handle(), {}
    for one in (plain, step):
        one.set_rate(1e-3)
    for batch in islice(batches, 12):
        plain(batch)
    for batch in islice(others, 12):
        if batch[0].shape not in captured:
            captured[batch[0].shape] = CapturedStep(step, batch, pool)
        captured[batch[0].shape](batch)
    assert len(captured) > 1
    torch.testing.assert_close(snapshot(step), snapshot(plain), rtol=1e-3, atol=1e-5)
    assert step.tally.read().loss == pytest.approx(plain.tally.read().loss, rel=1e-4)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("attention", ["relu", "softmax"])
def test_updates_of_text_never_wait_for_the_gpu(corpus, attention):
    config = text_config(corpus, "device=cuda", "precision=bf16", f"model.attention={attention}")
    step, batches = make_step(config, TextTask)
    batch = next(batches)
    update = CapturedStep(step, batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            batch = next(batches)
            step.set_rate(1e-3)
            update(batch)
            step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # fp32 stays fp32
@pytest.mark.parametrize("compiled", ["default", "graphs", "graphs_only"])
def test_run_of_text_on_a_gpu_ends_where_the_cpu_does(tmp_path, corpus, compiled):
    """In fp32, through the whole loop, with several shapes and a stop in the middle."""
    changes = ("data.join=false", "data.length=128", "batch_size=1024")
    train_quietly(text_config(corpus, *changes), tmp_path / "cpu")
    config = text_config(corpus, *changes, "device=cuda", f"compile={compiled}")
    train_quietly(config, tmp_path / "gpu")
    for mine, theirs in zip(curve(tmp_path / "cpu"), curve(tmp_path / "gpu"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-2)
    (tmp_path / "gpu" / "record.json").unlink()
    before = final(tmp_path / "gpu").model
    for file in (tmp_path / "gpu" / "checkpoints" / "step_12").iterdir():
        file.write_bytes(b"")
    train_quietly(config, tmp_path / "gpu")
    for name, tensor in final(tmp_path / "gpu").model.items():
        torch.testing.assert_close(tensor, before[name], rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # fp32 stays fp32
@pytest.mark.parametrize("compiled", ["none", "default", "graphs", "graphs_only"])
def test_run_on_a_gpu_ends_where_the_cpu_does(tmp_path, compiled):
    """In fp32, through the whole loop, with a stop in the middle."""
    train_quietly(tiny_config(), tmp_path / "cpu")
    config = functools.partial(tiny_config, "device=cuda", f"compile={compiled}")
    train_quietly(config(), tmp_path / "gpu")
    for mine, theirs in zip(curve(tmp_path / "cpu"), curve(tmp_path / "gpu"), strict=True):
        assert mine["step"] == theirs["step"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-2)
    (tmp_path / "gpu" / "record.json").unlink()
    before = final(tmp_path / "gpu").model
    for file in (tmp_path / "gpu" / "checkpoints" / "step_12").iterdir():
        file.write_bytes(b"")
    train_quietly(config(), tmp_path / "gpu")
    for name, tensor in final(tmp_path / "gpu").model.items():
        torch.testing.assert_close(tensor, before[name], rtol=1e-2, atol=1e-3)
    record = json.loads((tmp_path / "gpu" / "record.json").read_text())
    assert record["utilisation"] > 0
    assert record["peak_memory_bytes"] > 0
