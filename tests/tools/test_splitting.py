"""Documents to splits."""

import random

from lab.data.text.corpora import word

from data_preparation.alignment import fingerprint
from data_preparation.splitting import SPLITS, remove_repeats, split_documents
from flashpoint.lab.data.text.documents import Document


def make_documents(origin, number):
    """Documents of 1, 2, ... segments, each different."""
    return [
        Document(
            f"{origin}/{n}",
            origin,
            tuple((f"{origin} {word(n)} {word(s)}", f"{word(s)} {word(n)}") for s in range(n + 1)),
        )
        for n in range(number)
    ]


def test_splits_are_a_partition_with_each_origin_and_the_longest_in_test():
    documents = make_documents("a", 100) + make_documents("b", 30) + make_documents("c", 2)
    splits = split_documents(documents, seed=0)
    assert sorted(d.name for part in splits.values() for d in part) == sorted(
        d.name for d in documents
    )
    counts = {s: {o: sum(d.origin == o for d in splits[s]) for o in "abc"} for s in SPLITS}
    assert counts == {
        "train": {"a": 90, "b": 26, "c": 2},
        "validation": {"a": 4, "b": 1, "c": 0},
        "test": {"a": 6, "b": 3, "c": 0},
    }
    assert sum(len(d.segments) > 75 for d in splits["test"]) == 3  # of the longest quarter of a


def test_splits_depend_on_the_seed_alone():
    documents = make_documents("a", 100)
    shuffled = random.Random(0).sample(documents, len(documents))
    assert split_documents(documents, 0) == split_documents(shuffled, 0)
    assert split_documents(documents, 0) != split_documents(documents, 1)


def document(name, *segments):
    return Document(name, "o", tuple(segments))


def fingerprints(documents):
    return {fingerprint(text) for d in documents for segment in d.segments for text in segment}


def test_nothing_of_a_held_out_split_stays_in_another():
    splits = {
        "train": [
            document("1", ("Open it", "Öffne es"), ("new", "neu"), ("other", "Alles zu!")),
            document("2", ("2. OPEN it.", "anders")),
            document("3", ("keep", "behalten"), ("Save", "Sichern")),
        ],
        "validation": [document("4", ("Save", "Speichern"), ("Open it", "Öffne es"))],
        "test": [document("5", ("Open it", "Öffne es"), ("Close all", "alles zu"))],
    }
    kept, removed = remove_repeats(splits)
    assert kept == {
        "train": [document("1", ("new", "neu")), document("3", ("keep", "behalten"))],
        "validation": [document("4", ("Save", "Speichern"))],
        "test": splits["test"],
    }
    assert removed == {"train": 4, "validation": 1, "test": 0}
    held_out = [*kept["validation"], *kept["test"]]
    assert fingerprints(held_out).isdisjoint(fingerprints(kept["train"]))
