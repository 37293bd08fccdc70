"""Batches of documents: pure functions of the seed and the step, whatever the ranks."""

import re
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch
from implementations import needs_gpu
from lab.data.text.corpora import config, make_documents, make_pieces

from flashpoint.errors import InputError
from flashpoint.lab.data.text import batch_plan
from flashpoint.lab.data.text.batch_plan import (
    check_rows,
    rows_of_width,
    widths_for,
    widths_of,
)
from flashpoint.lab.data.text.batches import TextBatches, TextEvalBatches
from flashpoint.lab.data.text.documents import Document, Documents
from flashpoint.lab.data.text.pieces import BOS, EOS, PAD

FIELDS = ("source", "source_lengths", "target_in", "target_out", "target_lengths")


def train_batches(settings=None, documents=None, **changes):
    options = {"tokens_per_batch": 2048, "seed": 0} | changes
    documents = documents or make_documents()
    return TextBatches(documents, make_pieces(), settings or config(), **options)


def eval_batches(settings=None, documents=None, **changes):
    options = {"tokens_per_batch": 2048} | changes
    documents = documents or make_documents()
    return TextEvalBatches(documents, make_pieces(), settings or config(), **options)


def epoch(batches):
    return list(islice(batches.iterate(), batches.batches_per_epoch))


def assert_same(one, other):
    for field in FIELDS:
        assert torch.equal(getattr(one, field), getattr(other, field)), field
    assert one.num_tokens == other.num_tokens


def texts_of(batch):
    """Source and target segments of each row."""
    pieces = make_pieces()
    return [
        (pieces.decode_segments(source), pieces.decode_segments(target))
        for source, target in zip(batch.source.tolist(), batch.target_out.tolist(), strict=True)
    ]


def pairs_of(batches):
    """How often each segment occurs; sides must have the same number of segments."""
    return Counter(
        pair
        for batch in batches
        for source, target in texts_of(batch)
        for pair in zip(source, target, strict=True)
    )


ALL = Counter(s for document in make_documents() for s in document.segments)


def test_rows_are_padded_shifted_and_ended():
    for batch in epoch(train_batches()):
        source = batch.source, batch.source_lengths
        for side, lengths in (source, (batch.target_out, batch.target_lengths)):
            places = torch.arange(side.shape[1])
            inside = places < lengths[:, None]
            assert ((side != PAD) == inside).all()
            assert ((side == EOS) == (places == lengths[:, None] - 1)).all()
            assert side.dtype == lengths.dtype == torch.int64
        assert (batch.target_in[:, 0] == BOS).all()
        shifted = batch.target_out[:, :-1].clone()
        shifted[shifted == EOS] = PAD
        assert torch.equal(batch.target_in[:, 1:], shifted)
        assert batch.num_tokens == int(batch.target_lengths.sum())


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("length", [64, 128, 512, 2048])
def test_an_epoch_has_every_segment_and_few_twice(join, length):
    batches = train_batches(config(length=length, join=join))
    found = pairs_of(epoch(batches))
    missing = ALL - found
    assert sum(missing.values()) == batches.num_too_long
    widest = 2048 // length
    most = max(len(source) for b in epoch(batches) for source, _ in texts_of(b))
    assert sum((found - ALL).values()) <= widest * most
    for pair, count in ALL.items():
        assert count - missing[pair] <= found[pair] <= 2 * count


def test_every_sample_may_be_one_segment():
    settings = config(length=128, samples="segments")
    batches, validation = train_batches(settings), eval_batches(settings)
    for some in (epoch(batches), list(validation.iterate())):
        rows = [pair for batch in some for pair in texts_of(batch)]
        assert all(len(source) == len(target) == 1 for source, target in rows)
    assert pairs_of(validation.iterate()) == ALL
    assert pairs_of(epoch(batches)).keys() == ALL.keys()
    assert batches.num_samples == validation.num_samples == sum(ALL.values())
    orders = [texts_of(next(train_batches(settings, seed=seed).iterate())) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_batches_of_segments_are_as_narrow_as_segments():
    settings = config(length=128, samples="segments")
    batches = train_batches(settings, tokens_per_batch=1024)
    widths = {batch.source.shape[1] for batch in epoch(batches)}
    assert min(widths) < 32
    assert widths <= set(widths_of(settings)) == {8, 16, 32, 48, 64, 96, 128}
    assert batches.padding_share < 0.4
    for some in (epoch(batches), list(eval_batches(settings).iterate())):
        for batch in some:
            needed = int(torch.cat([batch.source_lengths, batch.target_lengths]).max())
            assert needed <= batch.source.shape[1]


@pytest.mark.parametrize("join", [True, False])
def test_an_epoch_has_every_segment_at_each_resolution(join):
    settings = config(length=256, join=join, resolutions=4)
    batches = train_batches(settings)
    first = epoch(batches)
    found = pairs_of(first)
    assert found.keys() == ALL.keys()
    assert all(found[pair] >= 4 * count for pair, count in ALL.items())
    assert sum(found.values()) < 4.05 * sum(ALL.values())
    once = train_batches(config(length=256, join=join))
    assert batches.num_tokens == 4 * once.num_tokens
    assert 3.5 < batches.batches_per_epoch / once.batches_per_epoch < 5.5
    sizes = {batch.source.shape[1] for batch in first}
    assert {32, 64, 128, 256} <= sizes <= set(widths_for(256))
    assert batches.padding_share < 0.35
    assert pairs_of(eval_batches(settings).iterate()) == ALL


@pytest.mark.parametrize("resolutions", [1, 3])
@pytest.mark.parametrize("join", [True, False])
def test_a_batch_depends_on_seed_and_step_alone(join, resolutions):
    settings = config(join=join, resolutions=resolutions)
    batches = train_batches(settings)
    number = 2 * batches.batches_per_epoch + 3
    straight = list(islice(batches.iterate(), number))
    for start in (0, 1, batches.batches_per_epoch - 1, batches.batches_per_epoch, number - 1):
        assert_same(next(train_batches(settings).iterate(start)), straight[start])
        assert_same(next(batches.iterate(start)), straight[start])
    other = next(train_batches(settings, seed=1).iterate())
    assert other.source.shape != straight[0].source.shape or not torch.equal(
        other.source, straight[0].source
    )


def test_epochs_differ():
    batches = train_batches()
    count = batches.batches_per_epoch
    first, second = (
        [tuple(map(str, texts_of(b))) for b in islice(batches.iterate(n * count), count - 1)]
        for n in (0, 1)
    )
    assert not set(first) & set(second)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_ranks_hold_slices_of_the_same_batch(world_size):
    whole = epoch(train_batches())
    ranks = [
        list(islice(train_batches(rank=r, world_size=world_size).iterate(), len(whole)))
        for r in range(world_size)
    ]
    for step, batch in enumerate(whole):
        parts = [rank[step] for rank in ranks]
        for field in FIELDS:
            joined = torch.cat([getattr(part, field) for part in parts])
            assert torch.equal(joined, getattr(batch, field)), field
        assert {part.num_tokens for part in parts} == {batch.num_tokens}
        assert len({len(part.source) for part in parts}) == 1


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("length", [200, 256, 700])
def test_a_batch_has_one_of_few_shapes(length, join):
    """In all epochs, so that what is compiled or captured for one serves the next."""
    batches = train_batches(config(length=length, join=join), tokens_per_batch=8192)
    shapes = set()
    for batch in islice(batches.iterate(), 3 * batches.batches_per_epoch):
        rows, width = batch.source.shape
        assert batch.target_in.shape == batch.target_out.shape == (rows, width)
        assert rows == rows_of_width(width, 8192)
        shapes.add(width)
    assert shapes <= set(widths_for(length))
    assert len(shapes) <= (2 if join else 8)


@pytest.mark.parametrize("resolutions", [1, 3])
@pytest.mark.parametrize("join", [True, False])
def test_tokens_are_counted_before_they_come(join, resolutions):
    settings = config(length=256, join=join, resolutions=resolutions)
    ahead, beside = (train_batches(settings, tokens_per_batch=4096) for _ in range(2))
    number = 2 * ahead.batches_per_epoch + 3
    total = ahead.tokens_until(number)
    counts = [0]
    for step, batch in enumerate(islice(beside.iterate(), number), start=1):
        counts.append(counts[-1] + batch.num_tokens)
        assert beside.tokens_until(step) == counts[-1]
    assert total == counts[-1]
    assert [ahead.tokens_until(step) for step in range(number + 1)] == counts
    next(ahead.iterate(number))
    assert ahead.tokens_until(number) == total
    assert ahead.tokens_until(ahead.batches_per_epoch) >= ahead.num_tokens


def test_padding_is_little_and_measured():
    assert train_batches(config(length=512), tokens_per_batch=4096).padding_share < 0.12
    batches = train_batches(config(length=512, join=False))
    held = padded = rows = 0
    for batch in epoch(batches):
        held += int(batch.source_lengths.sum() + batch.target_lengths.sum())
        padded += batch.source.numel() + batch.target_in.numel()
        rows += len(batch.source)
    assert batches.padding_share == pytest.approx(1 - held / padded)
    assert batches.padding_share < 0.25 < 0.4 < 1 - held / (rows * 2 * 512)


def test_joined_samples_are_nearly_full_and_others_hold_one_document():
    batches = train_batches(config(length=256), tokens_per_batch=4096)
    lengths = torch.cat([batch.target_lengths for batch in epoch(batches)])
    assert lengths.median() > 200
    homes = {}
    for document in make_documents():
        for segment in document.segments:
            homes.setdefault(segment, set()).add(document.name)
    for batch in epoch(train_batches(config(length=256, join=False))):
        for source, target in texts_of(batch):
            names = [homes[pair] for pair in zip(source, target, strict=True)]
            assert set.intersection(*names)


def test_a_set_smaller_than_a_batch_is_repeated():
    documents = Documents("tiny", make_documents().documents[:2])
    batches = train_batches(config(length=64), documents)
    first = epoch(batches)
    assert len(first) == 1
    assert len(first[0].source) == 32
    assert pairs_of(first).keys() == {s for document in documents for s in document.segments}


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("world_size", [1, 3, 5])
def test_validation_has_every_segment_once_over_all_ranks(join, world_size):
    settings = config(join=join)
    ranks = [eval_batches(settings, rank=r, world_size=world_size) for r in range(world_size)]
    batches = [list(rank.iterate()) for rank in ranks]
    assert {len(part) for part in batches} == {ranks[0].num_batches}
    found = pairs_of(batch for part in batches for batch in part)
    assert sum((found - ALL).values()) == 0
    assert sum((ALL - found).values()) == ranks[0].num_too_long
    tokens = sum(int(b.target_lengths.sum()) for part in batches for b in part)
    assert tokens == ranks[0].num_tokens == sum(b.num_tokens for b in batches[0])
    rows = sum(len(b.source) for part in batches for b in part)
    assert rows == ranks[0].num_samples


def test_validation_is_the_same_each_time_and_in_order():
    batches = eval_batches(config(join=False, length=4096), tokens_per_batch=2048)
    first, second = list(batches.iterate()), list(batches.iterate())
    for one, other in zip(first, second, strict=True):
        assert_same(one, other)
    documents = {tuple(d.segments) for d in make_documents()}
    rows = [tuple(zip(*row, strict=True)) for batch in first for row in texts_of(batch)]
    assert set(rows) == documents  # a row longer than the tokens of a batch is one of its own
    assert all(len(batch.source) == 1 for batch in first if batch.source.shape[1] > 1024)


def test_fewer_samples_than_ranks_leave_ranks_without_a_batch():
    documents = Documents("one", [Document("x", "", (("kaeio", "kaubd"),))])
    ranks = [eval_batches(documents=documents, rank=r, world_size=2) for r in (0, 1)]
    counts = [len(list(rank.iterate())) for rank in ranks]
    assert counts == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens_per_batch": 100}, "batch_size=100 has room for 0 rows of 128 tokens"),
        (
            {"world_size": 3},
            r"64 rows of 32 tokens \(.*\), which 3 processes x 1 parts must share",
        ),
        ({"rank": 2, "world_size": 2}, r"rank=2 must lie in \[0, world_size=2\)"),
        ({"seed": -1}, "seed=-1 must be 0 or more"),
    ],
)
def test_wrong_arguments_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        train_batches(**changes)
    with pytest.raises(InputError, match="start_step=-1 must be 0 or more"):
        train_batches().iterate(-1)


@pytest.mark.parametrize(
    ("length", "batch_size", "processes", "parts"),
    [(64, 100, 1, 3), (512, 100, 1, 1), (512, 16_384, 3, 1), (700, 4096, 2, 8), (300, 9999, 5, 1)],
)
def test_refusal_names_the_next_batch_size_that_works(
    length, batch_size, processes, parts, monkeypatch
):
    with pytest.raises(InputError, match=f"{processes} processes x {parts} parts") as refusal:
        check_rows(widths_for(length), batch_size, processes, parts)
    found = int(
        re.search(r"rows of up to \d+ tokens is batch_size=(\d+)\.$", str(refusal.value))[1]
    )
    check_rows(widths_for(length), found, processes, parts)
    monkeypatch.setattr(batch_plan, "_next_batch_size", lambda *_: 0)  # is searched for each time
    shares = processes * parts
    assert found % shares == 0
    for smaller in range(batch_size + -batch_size % shares, found, shares):
        with pytest.raises(InputError, match=f"batch_size={smaller} has room"):
            check_rows(widths_for(length), smaller, processes, parts)


@pytest.mark.gpu
@needs_gpu
def test_batches_reach_the_gpu():
    here, there = (next(train_batches(device=device).iterate()) for device in ("cpu", "cuda"))
    assert there.source.is_cuda
    moved = {field: getattr(there, field).cpu() for field in FIELDS}
    assert_same(here, replace(there, **moved))
