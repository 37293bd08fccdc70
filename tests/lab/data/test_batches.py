"""Batch t is a function of (seed, t); ranks tile it; broken images are replaced and counted."""

import os
import subprocess
import sys
from collections import Counter
from itertools import islice, product

import numpy as np
import pytest
import torch
from lab.data.pictures import config, encoded, make_folder, make_shards, noise, numbers_of, picture

from flashpoint.errors import InputError
from flashpoint.lab.data.batches import EvalBatches, TrainBatches, _spans
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.image_source import Subset

AUGMENTATION = {"crop": "inception", "flip": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """30 images of 3 classes."""
    return make_folder(tmp_path_factory.mktemp("images"), {"a": 10, "b": 11, "c": 9})


@pytest.fixture(params=["folder", "resident folder", "digits", "shards"])
def made(request, folder, tmp_path):
    """A source, and options of a config that goes with it."""
    if request.param == "digits":
        return open_source("digits", "validation"), {"channels": 1}
    if request.param == "shards":
        return open_source(f"shards:{make_shards(tmp_path, 3, 10)}", "train"), {}
    source = open_source(str(folder), "train")
    return source, {"resident": "yes" if "resident" in request.param else "no"}


def same(a, b):
    return torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)


def take(batches, start, count):
    return list(islice(batches.iterate(start), count))


def test_batch_is_a_function_of_seed_and_step(made):
    source, options = made
    settings = config(augmentation=AUGMENTATION, **options)
    first, again, other = (TrainBatches(source, settings, batch_size=8, seed=s) for s in (0, 0, 1))
    batches = take(first, 0, 12)
    for step in (0, 3, 4, 11):
        assert same(take(again, step, 1)[0], batches[step])
    assert not same(take(other, 0, 1)[0], batches[0])
    assert batches[0].images.dtype == torch.float32
    assert batches[0].images.abs().max() <= 1.0
    assert len({batch.images.numpy().tobytes() for batch in batches}) == 12


def test_workers_change_nothing(folder):
    source = open_source(str(folder), "train")
    alone, helped = (
        TrainBatches(
            source,
            config(workers=workers, augmentation=AUGMENTATION | {"randaug_ops": 2}),
            batch_size=8,
            seed=0,
        )
        for workers in (0, 2)
    )
    expected = take(alone, 0, 10)
    assert all(same(a, b) for a, b in zip(take(helped, 0, 10), expected, strict=True))
    assert all(same(a, b) for a, b in zip(take(helped, 7, 3), expected[7:], strict=True))


@pytest.mark.parametrize(("mixup", "randaug"), [(0.0, 2), (0.5, 0), (0.5, 2)])
def test_ranks_tile_the_global_batch(made, mixup, randaug):
    source, options = made
    strong = {"mixup": mixup, "randaug_ops": randaug, "randaug_magnitude": 10}
    settings = config(augmentation=AUGMENTATION | strong, **options)
    whole = TrainBatches(source, settings, batch_size=12, seed=5)
    expected = take(whole, 3, 2)
    parts = [
        take(TrainBatches(source, settings, batch_size=12, seed=5, rank=r, world_size=3), 3, 2)
        for r in range(3)
    ]
    for step, batch in enumerate(expected):
        assert torch.equal(torch.cat([p[step].images for p in parts]), batch.images)
        assert torch.equal(torch.cat([p[step].labels for p in parts]), batch.labels)
        neighbors = [p[step].neighbor for p in parts]
        assert batch.neighbor is None
        if not mixup:
            assert neighbors == [None] * 3
            continue
        before = batch.images[[11, 3, 7]]
        assert torch.equal(torch.cat([n[0] for n in neighbors]), before)
        assert torch.equal(torch.cat([n[1] for n in neighbors]), batch.labels[[11, 3, 7]])


def test_an_epoch_has_every_sample_once(made):
    source, options = made
    source = source if source.num_samples == 30 else Subset(source, range(30))
    batches = TrainBatches(source, config(**options), batch_size=7, seed=0)
    assert batches.batches_per_epoch == 30 / 7
    if source.is_small:  # its images have no numbers
        labels = torch.cat([batch.labels for batch in take(batches, 0, 9)])
        for first in (0, 30):
            epoch = labels[first : first + 30].tolist()
            assert sorted(epoch) == sorted(source.labels.tolist())
        return
    seen = [n for batch in take(batches, 0, 18) for n in numbers_of(batch.images)]
    epochs = [seen[first : first + 30] for first in range(0, 120, 30)]
    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    labels = dict(enumerate(source.labels.tolist()))
    for batch in take(batches, 2, 3):
        assert [labels[n] for n in numbers_of(batch.images)] == batch.labels.tolist()


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_each_time_a_sample_is_augmented_anew(tmp_path, resident):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(encoded(noise()))
    source = open_source(str(tmp_path), "train")
    settings = config(resident=resident, augmentation={"crop": "inception"})
    batches = take(TrainBatches(source, settings, batch_size=6, seed=0), 0, 2)
    images = torch.cat([batch.images for batch in batches])
    assert len({image.numpy().tobytes() for image in images}) == 12


def test_a_batch_may_be_larger_than_the_set(folder):
    source = open_source(str(folder), "train")
    (batch,) = take(TrainBatches(source, config(), batch_size=64, seed=0), 0, 1)
    counts = Counter(numbers_of(batch.images))
    assert set(counts) == set(range(30))
    assert max(counts.values()) <= 3


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 7), (2, 8), (3, 30), (7, 100)])
def test_evaluation_sees_every_sample_once(made, world_size, batch_size):
    source, options = made
    ranks = [
        EvalBatches(
            source, config(**options), batch_size=batch_size, rank=r, world_size=world_size
        )
        for r in range(world_size)
    ]
    batches = [list(rank.iterate()) for rank in ranks]
    assert [len(b) for b in batches] == [ranks[0].num_batches] * world_size
    assert all(len(batch.labels) for rank in batches for batch in rank)
    labels = torch.cat([batch.labels for rank in batches for batch in rank])
    assert sorted(labels.tolist()) == sorted(source.labels.tolist())
    if not source.is_small:
        images = torch.cat([batch.images for rank in batches for batch in rank])
        assert sorted(numbers_of(images)) == list(range(30))


def test_parts_of_ranks_tile_any_number_of_samples():
    sizes = product(range(1, 41), range(1, 9), range(1, 42, 4))
    for num_samples, world_size, batch_size in sizes:
        parts = [_spans(num_samples, batch_size, r, world_size) for r in range(world_size)]
        seen = [n for spans in parts for span in spans for n in range(*span)]
        assert sorted(seen) == list(range(num_samples))
        if num_samples >= world_size:
            assert len({len(spans) for spans in parts}) == 1
        for same_batch in zip(*parts, strict=num_samples >= world_size):
            lengths = [last - first for first, last in same_batch]
            assert max(lengths) - min(lengths) <= 1


def test_evaluation_can_be_repeated_with_workers(folder):
    source = open_source(str(folder), "train")
    batches = EvalBatches(source, config(workers=2), batch_size=8)
    next(batches.iterate())  # left before its end
    first, second = (list(batches.iterate()) for _ in range(2))
    assert sum(len(batch.labels) for batch in first) == 30
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    assert numbers_of(torch.cat([batch.images for batch in first])) == list(range(30))


SIGNALLED = """
import os, signal, sys, threading, time
from lab.data.pictures import config
from flashpoint.lab.data.batches import TrainBatches
from flashpoint.lab.data.image_kinds import open_source

asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
source = open_source(sys.argv[1], "train")
batches = TrainBatches(source, config(workers=2), batch_size=8, seed=0).iterate()
if sys.argv[2] == "early":  # while workers are on their way out of the group
    leave = os.setpgrp
    os.setpgrp = lambda: (time.sleep(1.0), leave())
    threading.Timer(0.5, os.killpg, (0, signal.SIGTERM)).start()
    next(batches)
else:
    next(batches)
    os.killpg(0, signal.SIGTERM)
for _ in range(20):
    next(batches)
assert asked == [signal.SIGTERM]
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["early", "later"])
def test_workers_survive_a_signal_to_the_group(folder, when):
    process = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(folder), when],
        capture_output=True,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")


def test_evaluation_view_follows_source_and_config(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(encoded(noise((64, 64))))
    source = open_source(str(tmp_path), "train")
    views = {
        view: next(
            EvalBatches(source, config(evaluation_view=view), batch_size=2).iterate()
        ).images
        for view in ("auto", "crop", "whole", "squash")
    }
    assert torch.equal(views["auto"], views["crop"])
    assert torch.equal(views["squash"], views["crop"])  # of a square image
    assert not torch.equal(views["whole"], views["crop"])
    resident = EvalBatches(source, config(resident="yes"), batch_size=2)
    assert torch.equal(next(resident.iterate()).images, views["crop"])


def break_images(folder, numbers):
    """Cut the files of these numbers; gives their paths."""
    paths = [path for path in sorted(folder.rglob("*.png")) if int(path.stem) in numbers]
    for path in paths:
        path.write_bytes(path.read_bytes()[:60])
    return [str(path) for path in paths]


@pytest.mark.parametrize("resident", ["yes", "no"])
@pytest.mark.parametrize("workers", [0, 2])
def test_broken_images_are_replaced_counted_and_named(tmp_path, resident, workers):
    make_folder(tmp_path, {"a": 10, "b": 10})
    broken = break_images(tmp_path, {4, 5, 19})
    source = open_source(str(tmp_path), "train")
    settings = config(resident=resident, workers=workers, max_broken_share=0.5)
    batches = TrainBatches(source, settings, batch_size=10, seed=0)
    got = take(batches, 0, 2)
    seen = Counter(numbers_of(torch.cat([batch.images for batch in got])))
    expected = Counter(range(20)) - Counter([4, 5, 19]) + Counter([6, 6, 0])
    assert seen == expected
    labels = torch.cat([batch.labels for batch in got])
    assert sorted(labels.tolist()) == [0] * 11 + [1] * 9  # the label is the replacement's
    assert sorted(name.partition(": ")[0] for name in batches.broken) == broken
    assert batches.broken_share == pytest.approx(3 / 20, abs=0.06)
    evaluated = EvalBatches(source, settings, batch_size=10)
    left = numbers_of(torch.cat([batch.images for batch in evaluated.iterate()]))
    assert left == [n for n in range(20) if n not in (4, 5, 19)]
    assert sorted(name.partition(": ")[0] for name in evaluated.broken) == broken


def test_too_many_broken_images_stop_the_run(tmp_path):
    make_folder(tmp_path, {"a": 30, "b": 30})
    broken = break_images(tmp_path, {7, 20, 40})
    source = open_source(str(tmp_path), "train")
    batches = TrainBatches(source, config(max_broken_share=0.04), batch_size=10, seed=0)
    with pytest.raises(InputError) as stop:
        take(batches, 0, 40)
    message = str(stop.value)
    assert "more than max_broken_share=4.00%" in message
    assert "\n" not in message
    assert any(name in message for name in broken)
    lenient = TrainBatches(source, config(max_broken_share=0.06), batch_size=10, seed=0)
    assert len(take(lenient, 0, 40)) == 40
    assert len(lenient.broken) == 3
    resident = config(max_broken_share=0.04, resident="yes")
    TrainBatches(source, resident, batch_size=10, seed=0)  # fewer than 100 samples seen


def test_nothing_readable_stops_the_run(tmp_path):
    make_folder(tmp_path, {"a": 3, "b": 3})
    break_images(tmp_path, set(range(6)))
    source = open_source(str(tmp_path), "train")
    settings = config(max_broken_share=1.0)
    with pytest.raises(InputError, match=r"too many images in a row that cannot be read: .*a/0"):
        take(TrainBatches(source, settings, batch_size=2, seed=0), 0, 1)
    with pytest.raises(InputError, match="none of the 6 images"):
        TrainBatches(source, config(resident="yes"), batch_size=2, seed=0)
    assert list(EvalBatches(source, settings, batch_size=2).iterate()) == []


def test_damaged_shards_are_named_and_limited(tmp_path):
    make_shards(tmp_path, num_shards=10, each=10)
    shard = tmp_path / "set-004.tar"
    shard.write_bytes(shard.read_bytes()[:-15_000])
    source = open_source(f"shards:{tmp_path}", "train")
    lost = 100 - source.num_samples
    assert 0 < lost < 10
    batches = TrainBatches(source, config(max_broken_share=0.1), batch_size=10, seed=0)
    assert batches.broken == [line for line in source.damage if str(shard) in line]
    take(batches, 0, 20)
    with pytest.raises(InputError, match=f"1 shards of .* about {lost}.00% .*set-004.tar"):
        TrainBatches(source, config(), batch_size=10, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 9, "world_size": 2}, "batch_size=9 must be a multiple of the 2 ranks"),
        ({"batch_size": 1, "world_size": 2}, "batch_size=1 must be at least the 2 ranks"),
        ({"batch_size": 8, "rank": 2, "world_size": 2}, "rank=2 must lie in"),
        ({"batch_size": 8, "seed": -1}, "seed=-1 must be 0 or more"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    source = open_source("digits", "train")
    with pytest.raises(InputError, match=message):
        TrainBatches(source, config(channels=1), **({"seed": 0} | options))


def test_negative_step_is_refused():
    batches = TrainBatches(
        open_source("digits", "train"), config(channels=1), batch_size=8, seed=0
    )
    with pytest.raises(InputError, match="start_step=-1"):
        batches.iterate(-1)


def test_randaug_leaves_small_sets_on_the_device():
    source = open_source("digits", "train")
    plain = TrainBatches(source, config(channels=1), batch_size=8, seed=0)
    settings = config(channels=1, augmentation={"randaug_ops": 2, "randaug_magnitude": 10})
    busy = TrainBatches(source, settings, batch_size=8, seed=0)
    assert (plain.is_resident, busy.is_resident) == (True, True)
    a, b = take(plain, 0, 1)[0], take(busy, 0, 1)[0]
    assert torch.equal(a.labels, b.labels)
    assert not torch.equal(a.images, b.images)


def test_gray_and_color_follow_the_config(folder):
    color = open_source(str(folder), "train")
    for channels in (1, 3):
        settings = config(channels=channels)
        for source in (color, open_source("digits", "train")):
            (batch,) = take(TrainBatches(source, settings, batch_size=4, seed=0), 0, 1)
            assert batch.images.shape == (4, channels, 8, 8)


def test_sizes_follow_the_config():
    source = open_source("digits", "train")
    for resident in ("yes", "no"):
        settings = config(channels=1, image_size=12, resident=resident)
        (batch,) = take(TrainBatches(source, settings, batch_size=4, seed=0), 0, 1)
        assert batch.images.shape == (4, 1, 12, 12)


def test_values_span_minus_one_to_one(tmp_path):
    for name, value in (("a", 0), ("b", 255)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(encoded(picture(0).point([value] * 768)))
    source = open_source(str(tmp_path), "train")
    for batch in EvalBatches(source, config(), batch_size=2).iterate():
        assert batch.images.amin(dim=(1, 2, 3)).tolist() == [-1.0, 1.0]
        assert batch.images.amax(dim=(1, 2, 3)).tolist() == [-1.0, 1.0]


def test_order_changes_with_epochs_not_with_batch_size(folder):
    source = open_source(str(folder), "train")
    orders = []
    for size in (5, 6):
        batches = TrainBatches(source, config(), batch_size=size, seed=0)
        shown = [n for batch in take(batches, 0, 30 // size) for n in numbers_of(batch.images)]
        orders.append(shown)
    assert orders[0] == orders[1]
    assert orders[0] != sorted(orders[0])
    assert not np.array_equal(orders[0], np.arange(30))
