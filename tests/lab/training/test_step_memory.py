"""Memory of an update: what is estimated beforehand against what is taken."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from implementations import needs_gpu
from lab.training.runs import tiny_config, train_quietly
from lab.training.text_runs import text_config, write_corpus
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from flashpoint.errors import InputError
from flashpoint.lab.training import memory_check
from flashpoint.lab.training.optimizer import make_optimizer
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.sharing import Shared
from flashpoint.lab.training.step import Step
from flashpoint.lab.training.step_memory import _Storages, estimate
from flashpoint.lab.training.task_registry import task_class

TOLERANCE = 0.1
"""Of the peak that is measured; most are within a hundredth."""

SMALL = ("model.width=64", "model.mlp_dim=256", "model.patch_size=1", "batch_size=16")
WIDE = ("model.width=256", "model.num_heads=4", "model.mlp_dim=1024", "model.depth=3")
IMAGES = {
    "small": SMALL,
    "larger-batch": (*SMALL, "batch_size=48"),
    "softmax": (*SMALL, "model.attention=softmax"),
    "bf16": (*SMALL, "precision=bf16"),
    "wide": WIDE,
    "wide-bf16-in-parts": (*WIDE, "precision=bf16", "batch_size=64", "accumulate=4"),
    "no-norms": (*SMALL, "model.qk_norm=none", "model.pool=map", "loss=sigmoid"),
}
TEXTS = {
    "penalty": ("batch_size=2048",),
    "softmax": ("batch_size=2048", "model.attention=softmax"),
    "bf16-dropout": ("batch_size=4096", "precision=bf16", "model.dropout=0.1"),
    "wide": ("model.width=128", "model.mlp_dim=512", "penalty=0", "batch_size=1024"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def make_step(config, ranks):
    """A task, a step whose optimizer has its moments, and the batch that takes most."""
    task = task_class(config)(config, ranks)
    shared = Shared(task.build_model(), ranks, compiled=False)
    optimizer = make_optimizer(shared.module, config.optimizer, ranks.device, captured=False)
    step = Step(task, shared, optimizer)
    batch = task.largest_shares(config.batch_size)[0]()
    step(batch)
    optimizer.zero_grad(set_to_none=True)
    return task, step, batch


def held_bytes(step, batch):
    """Weights, moments and the batch: what is there before an update."""
    model = step.model.module
    moments = (t for state in step.optimizer.state.values() for t in state.values())
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers(), *moments, *batch))


def peak_on_cpu(config):
    """Bytes at the peak of an update, by the events of PyTorch's allocator."""
    task, step, batch = make_step(config, Ranks())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        step(batch)
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return task, held_bytes(step, batch) + peak


def assert_estimated(task, ranks, real):
    needed = estimate(task, ranks)
    expected = needed.total - task.bytes_read_ahead(task.config.batch_size)
    assert abs(expected - real) <= TOLERANCE * real, f"{expected:,} for {real:,} bytes: {needed}"


@pytest.mark.parametrize("changes", IMAGES.values(), ids=IMAGES)
def test_estimate_is_the_peak_of_an_update_of_images(changes):
    task, real = peak_on_cpu(tiny_config(*changes))
    assert_estimated(task, Ranks(), real)


def test_activations_of_a_batch_in_parts_are_those_of_a_part():
    """Beside them stand the gradients that the first part left."""
    whole, parts = (
        estimate(task_class(config)(config, Ranks()), Ranks())
        for config in (tiny_config(*SMALL, "batch_size=64", f"accumulate={n}") for n in (1, 4))
    )
    assert parts.activations < 0.4 * whole.activations
    assert parts.inputs == whole.inputs


@pytest.mark.parametrize("changes", TEXTS.values(), ids=TEXTS)
def test_estimate_is_the_peak_of_an_update_of_text(corpus, changes):
    task, real = peak_on_cpu(text_config(corpus, *changes))
    assert_estimated(task, Ranks(), real)


def test_partial_sums_of_a_gpu_are_counted(monkeypatch):
    """The H200's peak of this sum, by its allocator; narrow sums take nothing worth a word."""
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    peaks = {}
    for columns in (64, 256):
        with FakeTensorMode(), _Storages() as storages:
            gradient = torch.empty(65_536, columns, dtype=torch.bfloat16, device="cuda")
            gradient.sum(0)
        peaks[columns] = storages.peak - gradient.nbytes - 2 * columns
    assert peaks == {64: 0, 256: 128 * 2**20}


GPU_IMAGES = {
    name: ("device=cuda", "data.augmentation.mixup=0", *changes)
    for name, changes in {
        "small": (*SMALL, "batch_size=1024"),
        "bf16": (*SMALL, "precision=bf16", "batch_size=1024"),
        "softmax": (*SMALL, "precision=bf16", "batch_size=1024", "model.attention=softmax"),
        "wide": (*WIDE, "model.patch_size=1", "batch_size=512"),
        "in-parts": (*WIDE, "model.patch_size=1", "batch_size=1024", "accumulate=4"),
    }.items()
}
GPU_TEXTS = {
    name: ("device=cuda", "model.width=256", "precision=bf16", "batch_size=32768", *changes)
    for name, changes in {"penalty": (), "softmax": ("model.attention=softmax",)}.items()
}


def peak_on_gpu(config):
    """The same by the high-water mark of the GPU's allocator."""
    ranks = Ranks(device=torch.device("cuda"))
    task, step, batch = make_step(config, ranks)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(batch)
    torch.cuda.synchronize()
    return task, ranks, held_bytes(step, batch) + torch.cuda.max_memory_allocated() - before


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("changes", GPU_IMAGES.values(), ids=GPU_IMAGES)
def test_estimate_is_the_peak_on_a_gpu(changes):
    task, ranks, real = peak_on_gpu(tiny_config(*changes))
    assert_estimated(task, ranks, real)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("changes", GPU_TEXTS.values(), ids=GPU_TEXTS)
def test_estimate_of_text_is_the_peak_on_a_gpu(corpus, changes):
    task, ranks, real = peak_on_gpu(text_config(corpus, *changes))
    assert_estimated(task, ranks, real)


def test_estimate_leaves_nothing_behind():
    """Neither memory nor random numbers nor weights: a run is the same with it."""
    config = tiny_config()
    task = task_class(config)(config, Ranks())
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    estimate(task, Ranks())
    assert torch.rand(3).equal(expected)
    assert all(p.device.type == "cpu" for p in task.build_model().parameters())


def test_processes_divide_the_batch_and_fsdp_the_weights():
    def needed(size, parallel):
        config = tiny_config(*WIDE, "batch_size=64", f"parallel={parallel}")
        ranks = Ranks(size=size)
        return estimate(task_class(config)(config, ranks), ranks)

    alone, ddp, fsdp = needed(1, "ddp"), needed(2, "ddp"), needed(2, "fsdp")
    assert ddp.inputs == alone.inputs // 2
    assert ddp.gradients == 2 * alone.gradients
    assert (fsdp.parameters, fsdp.moments) == (alone.parameters // 2, alone.moments // 2)
    assert ddp.activations < alone.activations


@pytest.fixture
def free(monkeypatch):
    """Set how much memory there is; no update is too small to be looked at."""
    monkeypatch.setattr(memory_check, "SMALL_SHARE", 0.0)

    def set_free(count):
        monkeypatch.setattr(memory_check, "available_memory", lambda device: count)

    return set_free


def test_impossible_batch_is_refused_before_anything_is_written(tmp_path, free):
    free(20_000_000)
    with pytest.raises(InputError) as error:
        train_quietly(tiny_config(*SMALL, "batch_size=512"), tmp_path / "run")
    said = str(error.value)
    assert said.startswith("a step with batch_size=512 needs about 0.")
    for part in ("parameters 0.0", "activations 0.", "cpu has 0.02 GB free", "--set accumulate=N"):
        assert part in said
    assert "\n" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("compiled", ["default", "graphs", "graphs_only"])
def test_estimate_of_what_is_compiled_is_a_warning(free, compiled):
    """The compiler recomputes what a plain step keeps, and graphs keep memory for every shape."""
    config = tiny_config(f"compile={compiled}")
    task, lines = task_class(config)(config, Ranks()), []
    free(10**9)
    memory_check.check_memory(task, Ranks(), lines.append)
    assert not lines
    free(10_000)
    memory_check.check_memory(task, Ranks(), lines.append)
    (line,) = lines
    assert line.startswith("a step with batch_size=16 needs about 0.0")
    assert "; cpu has 1e-05 GB free. " in line
    assert line.endswith(f" With compile={compiled} it may need less or more. Trying it.")
    assert f"With compile={compiled} it" in memory_check.describe_memory(task, Ranks())


@pytest.mark.slow
def test_compiled_run_that_seems_too_large_is_tried(tmp_path, free, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    free(10_000)
    record, text = train_quietly(tiny_config("steps=2", "compile=default"), tmp_path / "run")
    assert record.steps == 2
    assert text.count("it may need less or more. Trying it.\n") == 1


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_finished_run_is_not_asked_for_memory(tmp_path, free, has_checkpoints):
    config = tiny_config("steps=2")
    free(None)
    train_quietly(config, tmp_path / "run")
    if not has_checkpoints:
        shutil.rmtree(tmp_path / "run" / "checkpoints")
    free(0)
    assert "nothing to do" in train_quietly(config, tmp_path / "run")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "share"), [("images", 0.9), ("images", 0.5), ("images", 0.21), ("text", 0.5)]
)
def test_largest_batch_fits_and_a_larger_one_does_not(corpus, kind, share):
    images = tiny_config(*SMALL, "batch_size=512", "accumulate=2")
    config = images if kind == "images" else text_config(corpus, "batch_size=8192")
    ranks = Ranks()
    task = task_class(config)(config, ranks)
    limit = int(share * estimate(task, ranks).total)
    found = memory_check.largest_batch(task, ranks, limit)
    assert estimate(task, ranks, found).total <= limit
    assert estimate(task, ranks, int(1.15 * found) // 2 * 2).total > limit
    assert task.round_batch(config, found, 1) == found


def test_model_that_never_fits_is_said(tmp_path, free):
    free(10_000)
    with pytest.raises(InputError, match=r"Not even the smallest batch fits: take a smaller mod"):
        train_quietly(tiny_config(*SMALL, "batch_size=2"), tmp_path / "run")


@pytest.mark.parametrize("changes", [*IMAGES.values(), ("model.width=2", "model.mlp_dim=1")])
def test_quick_bound_is_above_the_estimate(changes):
    config = tiny_config(*changes)
    task = task_class(config)(config, Ranks())
    assert memory_check.most_needed(task) > estimate(task, Ranks()).total


def test_quick_bound_of_text_is_above_the_estimate(corpus):
    for changes in TEXTS.values():
        config = text_config(corpus, *changes)
        task = task_class(config)(config, Ranks())
        assert memory_check.most_needed(task) > estimate(task, Ranks()).total
