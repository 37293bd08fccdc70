"""The limit on unreadable images: by what an epoch holds, not by chance."""

import re
from itertools import islice

import numpy as np
import pytest
from data.pictures import config, make_folder
from PIL import Image

from flashpoint.data.batches import EvalBatches, TrainBatches
from flashpoint.data.source import BrokenImageError, Source
from flashpoint.data.sources import open_source
from flashpoint.errors import InputError


def run(batches, count):
    return list(islice(batches.iterate(), count))


class PartlyBroken(Source):
    """Grey images, some of which cannot be read."""

    def __init__(self, size, broken):
        super().__init__("partly", ("a", "b"), np.arange(size) % 2)
        self.bad = frozenset(broken)

    def read(self, index):
        if index in self.bad:
            raise BrokenImageError(self.describe(index))
        return Image.new("L", (8, 8)), int(self.labels[index])

    def describe(self, index):
        return f"image {index}"


@pytest.mark.parametrize(("world_size", "broken"), [(1, [3, 50, 51]), (2, [3, 50])])
def test_chance_does_not_stop_a_run_within_the_limit(world_size, broken):
    source = PartlyBroken(400, broken)  # 0.75% or 0.5%, with a limit of 1%
    for seed in range(5):
        batches = TrainBatches(source, config(), batch_size=20, seed=seed, world_size=world_size)
        run(batches, 60 * world_size)
        assert set(batches.broken) <= {f"image {n}" for n in broken}


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
