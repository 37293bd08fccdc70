"""Key-value recall: what a sample is, that it is always the same, and that pieces are single."""

import re

import pytest

from flashpoint.data.text.config import DocumentConfig, PiecesConfig
from flashpoint.data.text.pieces import train_pieces
from flashpoint.data.text.recall import (
    NUM_HELD_OUT,
    NUM_KEYS,
    NUM_PIECES,
    VALUES,
    best_guess,
    open_recall,
)
from flashpoint.data.text.sources import names_documents, open_both, open_documents
from flashpoint.errors import InputError

PAIR = re.compile(r"([\u4e00-\u9fff])([A-Za-z0-9+-])")


def pairs_of(source):
    assert PAIR.sub("", source) == source[-1]  # the query
    return PAIR.findall(source)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_target_is_the_pair_that_the_source_asks_for(split):
    for document in open_documents("recall:2-40,300", split):
        [(source, target)] = document.segments
        pairs = pairs_of(source)
        assert 2 <= len(pairs) <= 40
        assert len(dict(pairs)) == len(pairs)
        assert target == source[-1] + dict(pairs)[source[-1]]


def test_numbers_of_pairs_are_spread_evenly_over_powers_of_two():
    counts = [len(pairs_of(d.segments[0][0])) for d in open_documents("recall:1-255", "test")]
    powers = [sum(2**n <= count < 2 ** (n + 1) for count in counts) for n in range(8)]
    assert min(powers) > 0.7 * len(counts) / 8
    assert max(powers) < 1.3 * len(counts) / 8


@pytest.mark.parametrize("pairs", [4, 32, 256])
def test_most_frequent_value_is_right_as_often_as_the_best_guess(pairs):
    values = [
        [value for _, value in pairs_of(document.segments[0][0])]
        for document in open_documents(f"recall:{pairs}", "train")[:3000]
    ]
    shares = [max(map(some.count, VALUES)) / pairs for some in values]
    assert sum(shares) / len(shares) == pytest.approx(best_guess(pairs), rel=0.02)


def test_samples_are_the_same_every_time_and_differ_between_splits():
    first, again = (open_documents("recall:8", "validation") for _ in range(2))
    assert list(first) == list(again)
    assert len(first) == NUM_HELD_OUT
    sources = {
        split: {d.segments[0][0] for d in open_documents("recall:8,1000", split)}
        for split in ("train", "validation", "test")
    }
    assert not sources["train"] & sources["validation"]
    assert not sources["test"] & sources["validation"]


def test_fewer_samples_to_train_on_are_the_first_ones():
    few, many = (open_documents(f"recall:2-8,{count}", "train") for count in (10, 20))
    assert list(few) == list(many)[:10]


def test_every_key_and_value_is_one_piece():
    documents = open_documents("recall:2-8,2000", "train")
    pieces = train_pieces(documents, PiecesConfig(vocabulary_size=NUM_PIECES))
    for document in list(documents)[:50]:
        for text in document.segments[0]:
            [ids] = pieces.encode([text])
            assert len(ids) == len(text) + 1  # the space in front
            assert pieces.decode(ids) == text
    assert pieces.size == NUM_PIECES
    assert len(set(VALUES)) == len(VALUES)


def test_place_is_known_as_text_and_has_splits():
    assert names_documents("recall:4")
    train, validation = open_both(
        DocumentConfig(train="recall:2-4,10", validation="recall:2-4", source="a", target="b")
    )
    assert (len(train), len(validation)) == (10, NUM_HELD_OUT)
    assert train.languages == ("a", "b")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("recall:many", "must name numbers of pairs"),
        ("recall:0", "rise from 1"),
        ("recall:8-4", "rise from 1"),
        (f"recall:{NUM_KEYS + 1}", str(NUM_KEYS)),
        ("recall:4,0", "samples to train on"),
        ("recall:", "needs a place"),
    ],
)
def test_wrong_place_is_refused_in_one_line(place, message):
    with pytest.raises(InputError, match=message) as error:
        open_documents(place, "train")
    assert "\n" not in str(error.value)


def test_opening_needs_no_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    open_recall("4", "test", ("en", "de"))
    assert not list(tmp_path.iterdir())
