"""Orders of epochs: every seed and every epoch has its own, the later ones too."""

from itertools import islice

import numpy as np
import pytest
from lab.data.pictures import config, make_folder, make_shards
from lab.data.text.corpora import config as text_config
from lab.data.text.corpora import make_documents, make_pieces

from flashpoint.lab.data.batches import TrainBatches
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.order import EpochOrder, Purpose, generator
from flashpoint.lab.data.text.batches import TextBatches

SEEDS, EPOCHS = (0, 1, 7), 4


@pytest.fixture(params=["folder", "shards"])
def source(request, tmp_path):
    if request.param == "folder":
        return open_source(str(make_folder(tmp_path, {"a": 15, "b": 15})), "train")
    return open_source(f"shards:{make_shards(tmp_path, num_shards=3, each=10)}", "train")


def assert_all_differ(orders):
    """``orders`` are by seed and epoch."""
    assert len(orders) == len(SEEDS) * EPOCHS
    by_order = {order: place for place, order in orders.items()}
    alike = [(place, by_order[order]) for place, order in orders.items()]
    assert all(place == other for place, other in alike), alike


def test_images_have_an_order_for_every_seed_and_epoch(source):
    count = source.num_samples
    orders = {}
    for seed in SEEDS:
        whole = EpochOrder(source, seed).samples(np.arange(EPOCHS * count)).tolist()
        batches = TrainBatches(source, config(), batch_size=count, seed=seed)
        for epoch in range(EPOCHS):
            part = whole[epoch * count : (epoch + 1) * count]
            assert sorted(part) == list(range(count))
            assert [sample for _, sample in batches.slots(epoch)] == part
            orders[seed, epoch] = tuple(part)
    assert_all_differ(orders)


def test_batches_of_documents_differ_by_seed_in_every_epoch():
    orders = {}
    for seed in SEEDS:
        batches = TextBatches(
            make_documents(), make_pieces(), text_config(), tokens_per_batch=2048, seed=seed
        )
        stream = batches.iterate()
        for epoch in range(EPOCHS):
            rows = islice(stream, len(batches._epoch(epoch).batches))
            orders[seed, epoch] = tuple(batch.source.numpy().tobytes() for batch in rows)
    assert_all_differ(orders)


@pytest.mark.parametrize("purpose", Purpose)
def test_random_numbers_differ_by_seed_and_number(purpose):
    drawn = {
        (seed, number): generator(seed, purpose, number).bytes(32)
        for seed in (*SEEDS, 2**40)
        for number in (0, 1, 2, 1000, 2**40)
    }
    assert len(set(drawn.values())) == len(drawn)
