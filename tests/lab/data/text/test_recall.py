"""Key-value recall: what a sample is, that it is always the same, and that pieces are single."""

import pytest

from flashpoint.errors import InputError
from flashpoint.lab.data.text.config import DocumentConfig, PiecesConfig
from flashpoint.lab.data.text.document_kinds import names_documents, open_both, open_documents
from flashpoint.lab.data.text.pieces import train_pieces
from flashpoint.lab.data.text.recall import (
    FIRST_PAIR,
    FIRST_QUERY,
    NUM_HELD_OUT,
    NUM_KEYS,
    NUM_PIECES,
    VALUES,
    best_guess,
    open_recall,
)

NUM_PAIRS = NUM_KEYS * len(VALUES)


def pairs_of(source):
    """Keys and values, from all characters but the last, the query."""
    numbers = [ord(character) - FIRST_PAIR for character in source[:-1]]
    assert all(0 <= number < NUM_PAIRS for number in numbers)
    return [(n // len(VALUES), VALUES[n % len(VALUES)]) for n in numbers]


def key_asked(source):
    return ord(source[-1]) - FIRST_QUERY


@pytest.mark.parametrize("split", ["train", "validation"])
def test_target_is_the_value_that_the_source_asks_for(split):
    for document in open_documents("recall:2-40,300", split):
        [(source, target)] = document.segments
        pairs = pairs_of(source)
        assert 2 <= len(pairs) <= 40
        assert len(dict(pairs)) == len(pairs)
        assert target == dict(pairs)[key_asked(source)]


def test_numbers_of_pairs_are_spread_evenly_over_powers_of_two():
    counts = [len(pairs_of(d.segments[0][0])) for d in open_documents("recall:1-127", "test")]
    powers = [sum(2**n <= count < 2 ** (n + 1) for count in counts) for n in range(7)]
    assert min(powers) > 0.7 * len(counts) / 7
    assert max(powers) < 1.3 * len(counts) / 7


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [4, 32, 128])
def test_most_frequent_value_is_right_as_often_as_the_best_guess(pairs):
    values = [
        [value for _, value in pairs_of(document.segments[0][0])]
        for document in open_documents(f"recall:{pairs},3000", "train")
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


@pytest.mark.slow
@pytest.mark.parametrize("place", ["recall:2-8,10000", "recall:2-64,10000"])
def test_every_pair_query_and_value_is_one_piece(place):
    pieces = train_pieces(open_documents(place, "train"), PiecesConfig(vocabulary_size=NUM_PIECES))
    texts = [
        *(chr(FIRST_PAIR + number) for number in range(NUM_PAIRS)),
        *(chr(FIRST_QUERY + key) for key in range(NUM_KEYS)),
        *VALUES,
    ]
    found = pieces.encode(texts)
    assert {len(ids) for ids in found} == {2}  # with the space in front
    assert len({ids[1] for ids in found}) == len(texts)
    assert pieces.size == NUM_PIECES
    source = "".join(texts)
    [ids] = pieces.encode([source])
    assert len(ids) == len(source) + 1  # no piece holds two of them
    assert pieces.decode(ids) == source


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
