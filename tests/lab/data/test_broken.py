"""The limit on unreadable images: by what an epoch holds, not by chance."""

import re
from itertools import islice

import numpy as np
import pytest
from lab.data.pictures import config, make_folder, make_shards
from PIL import Image

from flashpoint.errors import InputError
from flashpoint.lab.data import stream as stream_module
from flashpoint.lab.data.batches import EvalBatches, TrainBatches
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.image_source import BrokenImageError, Source
from flashpoint.lab.data.streamed import upload


def run(batches, count):
    return list(islice(batches.iterate(), count))


class PartlyBroken(Source):
    """Gray images, some of which cannot be read."""

    def __init__(self, size, broken):
        super().__init__("partly", ("a", "b"), np.arange(size) % 2)
        self.bad = frozenset(broken)

    def read(self, index):
        if index in self.bad:
            raise BrokenImageError(self.describe(index))
        return Image.new("L", (8, 8)), int(self.labels[index])

    def describe(self, index):
        return f"image {index}"


def share(ranks):
    """Let ranks count together, as processes do; gives the error of each, or None."""
    noted = []
    for batches in ranks:
        log = batches._log
        noted.append((log._num_noted, list(log._noted)))
    errors = []
    for batches in ranks:
        try:
            batches.share_broken(lambda _: noted)
            errors.append(None)
        except InputError as error:
            errors.append(str(error))
    return errors


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_chance_does_not_stop_a_run_within_the_limit(world_size):
    broken = [3, 50, 51, 200]
    source = PartlyBroken(400, broken)  # 1%, which is the limit
    settings = config(augmentation={"mixup": 0.2})  # ranks also read a neighbor's image
    for seed in range(3):
        place = {"batch_size": 20, "seed": seed, "world_size": world_size}
        ranks = [TrainBatches(source, settings, rank=r, **place) for r in range(world_size)]
        streams = [batches.iterate() for batches in ranks]
        for step in range(1, 61):
            for stream in streams:
                next(stream)
            if step % 3 == 0:
                assert share(ranks) == [None] * world_size
        for batches in ranks:
            assert set(batches.broken) == {f"image {n}" for n in broken}
            assert batches.num_broken == 3 * len(broken)  # three epochs
            assert batches.broken_share == 0.01


def test_limit_counts_what_all_ranks_saw():
    """Six of 400 are too many; each of two ranks alone sees three."""
    source = PartlyBroken(400, range(0, 400, 70))
    ranks = [
        TrainBatches(source, config(), batch_size=20, seed=0, rank=r, world_size=2) for r in (0, 1)
    ]
    for batches in ranks:
        run(batches, 20)
    first, second = share(ranks)
    assert first == second
    assert first.startswith("6 of the 400 images of partly seen so far (1.50%) cannot be read, ")


def test_resident_sets_are_read_whole_by_every_rank():
    source, settings = PartlyBroken(400, [7, 8]), config(resident="yes")
    ranks = [
        TrainBatches(source, settings, batch_size=20, seed=0, rank=r, world_size=2) for r in (0, 1)
    ]
    assert share(ranks) == [None, None]
    assert [(batches.num_broken, batches.broken_share) for batches in ranks] == [(2, 0.005)] * 2


def test_batch_that_was_only_read_ahead_does_not_count(monkeypatch):
    """As on CUDA, where the next batch is uploaded while one is in use."""

    def one_ahead(decoded, device):
        uploaded = upload(decoded, device)
        ahead = next(uploaded)
        for following in uploaded:
            yield ahead
            ahead = following

    monkeypatch.setattr(stream_module, "upload", one_ahead)
    source = PartlyBroken(400, range(0, 400, 2))  # about half of every batch
    settings = config(max_broken_share=1.0)
    batches = TrainBatches(source, settings, batch_size=20, seed=0)
    expected = 0
    for step, _ in enumerate(islice(batches.iterate(), 30)):
        expected += sum(index in source.bad for _, index in batches.slots(step))
        assert (batches.num_broken, batches.broken_share) == (
            expected,
            expected / (20 * step + 20),
        )


def test_summary_names_the_first_image_and_the_damage(tmp_path):
    batches = TrainBatches(PartlyBroken(400, [7]), config(), batch_size=20, seed=0)
    assert batches.broken_summary == ""
    run(batches, 20)
    assert batches.broken_summary == (
        "1 of the 400 images of partly seen so far cannot be read and were replaced, first image 7"
    )
    make_shards(tmp_path, num_shards=4, each=10)
    (tmp_path / "set-001.tar").write_bytes(b"garbage" * 1000)
    source = open_source(f"shards:{tmp_path}", "train")
    batches = TrainBatches(source, config(max_broken_share=0.5), batch_size=20, seed=0)
    assert batches.broken_summary == (
        f"1 shards of shards:{tmp_path} are damaged and about 25.00% of its samples lost, first "
        f"{tmp_path}/set-001.tar: no header at byte 0"
    )


def test_limit_is_a_share_of_an_epoch():
    batches = TrainBatches(PartlyBroken(400, range(0, 400, 40)), config(), batch_size=20, seed=0)
    with pytest.raises(InputError) as stop:
        run(batches, 20)
    pattern = (
        r"(\d+) of the (\d+) images of partly seen so far \((.*)%\) cannot be read, "
        r"more than max_broken_share=1\.00% of the 400 of an epoch: image \d+"
    )
    count, seen, share = re.match(pattern, str(stop.value)).groups()
    assert int(count) > 4
    assert 100 <= int(seen) <= 400
    assert float(share) == pytest.approx(100 * int(count) / int(seen), abs=0.01)


def test_mostly_broken_sets_stop_early_in_training_only():
    source = PartlyBroken(2000, [n for n in range(2000) if n % 5 < 3])
    batches = TrainBatches(source, config(max_broken_share=0.3), batch_size=20, seed=0)
    with pytest.raises(InputError, match=r"of the 1\d0 images .* more than 50\.00% of them"):
        run(batches, 10)
    lenient = TrainBatches(source, config(max_broken_share=0.9), batch_size=20, seed=0)
    run(lenient, 10)
    in_order = PartlyBroken(2000, range(150))  # as one bad class
    evaluated = EvalBatches(in_order, config(max_broken_share=0.1), batch_size=50)
    assert sum(len(batch.labels) for batch in evaluated.iterate()) == 1850


def test_files_of_no_image_are_named_once(tmp_path):
    make_folder(tmp_path, {"a": 5, "b": 5})
    path = tmp_path / "a" / "0002.png"
    path.write_bytes(b"no image at all")
    source = open_source(str(tmp_path), "train")
    batches = TrainBatches(source, config(max_broken_share=0.5), batch_size=5, seed=0)
    run(batches, 20)
    assert batches.broken == [f"{path}: not a known image format"]
