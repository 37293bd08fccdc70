"""Blocks of tokens: by the seed and the step alone, and every token once in a validation."""

from itertools import islice

import numpy as np
import pytest
import torch

from flashpoint.errors import InputError
from flashpoint.lab.data.text.blocks import BlockBatches, BlockEvalBatches, encode_passages
from flashpoint.lab.data.text.config import PiecesConfig
from flashpoint.lab.data.text.passages import Passage, Passages, open_passages
from flashpoint.lab.data.text.pieces import EOS, TokenizerPieces, load_pieces, train_pieces

IDS = np.arange(103, dtype=np.uint16)  # each id says where it stands


def batches(start=0, count=12, rows=4, seed=0, **place):
    found = BlockBatches(IDS, "ids", length=10, rows=rows, seed=seed, **place)
    return list(islice(found.iterate(start), count))


def test_targets_are_the_next_tokens():
    for inputs, targets in batches():
        assert inputs.shape == targets.shape == (4, 10)
        assert (targets == inputs + 1).all()
        assert (inputs.diff() == 1).all()
        assert inputs.dtype == torch.int64


def test_batch_t_follows_from_the_seed_and_t():
    whole = batches()
    for (a, _), (b, _) in zip(whole[5:], batches(start=5, count=7), strict=True):
        assert a.equal(b)
    assert not whole[0][0].equal(batches(seed=1)[0][0])


def test_an_epoch_has_every_block_once_and_the_next_one_is_cut_elsewhere():
    starts = [int(row[0]) for inputs, _ in batches(count=9) for row in inputs]  # 36 of 9 an epoch
    epochs = [sorted(starts[n : n + 9]) for n in range(0, 36, 9)]
    for epoch in epochs:
        assert np.diff(epoch).tolist() == [10] * 8
    assert len({epoch[0] for epoch in epochs}) > 1


def test_ranks_share_batches():
    parts = [batches(rank=rank, world_size=2, count=3) for rank in (0, 1)]
    for (whole, _), (a, _), (b, _) in zip(batches(count=3), *parts, strict=True):
        assert whole.equal(torch.cat([a, b]))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("count", [103, 101, 100, 11, 5])
def test_validation_predicts_every_token_but_the_first_once(count, world_size):
    found = [
        token
        for rank in range(world_size)
        for _, targets in BlockEvalBatches(
            IDS[:count], length=10, rows=4, rank=rank, world_size=world_size
        ).iterate()
        for token in targets.flatten().tolist()
    ]
    assert sorted(found) == list(range(1, count))


def test_too_little_text_is_refused():
    with pytest.raises(InputError, match=r"ids has 19 tokens, .*data.length=10: twice that"):
        BlockBatches(IDS[:19], "ids", length=10, rows=1, seed=0)


@pytest.fixture
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_own_cache")
def test_passages_are_one_row_and_come_back():
    passages = open_passages("words:30", "train")
    pieces = train_pieces(passages, PiecesConfig(vocabulary_size=330))
    ids = encode_passages(passages, pieces)
    ends = np.flatnonzero(ids == EOS)
    assert len(ends) == 30
    assert pieces.decode(ids[: ends[0]].tolist()) == passages.passages[0].text  # line breaks too
    assert encode_passages(passages, pieces).tolist() == ids.tolist()  # from the cache


@pytest.mark.usefixtures("_own_cache")
def test_a_tokenizer_of_hugging_face_does_as_well(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2, "<|endoftext|>": 3}, unk_token="?")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(1)  # as callers of transformers leave it; texts are not to be cut
    made.enable_padding(length=7)
    file = tmp_path / "tokenizer.json"
    made.save(str(file))
    pieces = load_pieces(file)
    assert isinstance(pieces, TokenizerPieces)
    two = Passages("two", [Passage("1", "a b"), Passage("2", "b c")])
    assert encode_passages(two, pieces).tolist() == [0, 1, 3, 1, 2, 3]
    file.write_text('{"no": "tokenizer"}')
    with pytest.raises(InputError, match=r"is no tokenizer.json"):
        load_pieces(file)
