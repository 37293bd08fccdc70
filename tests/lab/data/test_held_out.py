"""Parts of a training split, to choose settings on: always the same ones, with nothing shared."""

import numpy as np
import pytest
from lab.data.pictures import config

from flashpoint.errors import InputError
from flashpoint.lab.data.image_kinds import open_source, open_sources
from flashpoint.lab.data.text.config import DocumentConfig
from flashpoint.lab.data.text.document_kinds import open_both, open_documents
from flashpoint.lab.data.text.documents import Document
from flashpoint.lab.data.text.prepared import write_documents


@pytest.fixture
def images(tmp_path):
    """A prepared set of 40 images, 20 of each class; a pixel is its image's number."""
    for split, count in (("train", 40), ("test", 4)):
        pixels = np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1)
        content = {"images": pixels, "labels": np.arange(count) % 2, "class_names": ["a", "b"]}
        np.savez(tmp_path / f"{split}.npz", name="mnist", **content)
    return f"mnist:{tmp_path}"


def pixels_of(where):
    return open_source(where, "train").images.ravel().tolist()


def test_images_are_held_out_of_every_class(images):
    fit, held_out = (open_source(f"{images}:{part}", "train") for part in ("fit", "held-out"))
    assert held_out.label_counts.tolist() == [2, 2]
    assert fit.label_counts.tolist() == [18, 18]
    both = [*pixels_of(f"{images}:fit"), *pixels_of(f"{images}:held-out")]
    assert sorted(both) == pixels_of(images)
    assert held_out.name.endswith(":held-out")


def test_images_of_parts_are_kept_apart(images):
    parts = {"train": f"{images}:fit", "validation": f"{images}:held-out"}
    train, validation = open_sources(config(parts["train"], validation=parts["validation"]))
    assert (train.num_samples, validation.num_samples) == (36, 4)
    open_sources(config(parts["train"], validation=f"{images}:test"))
    for part in parts.values():
        with pytest.raises(InputError, match=r"share 1 of 1 shards of the latter"):
            open_sources(config(images, validation=part))


@pytest.fixture
def documents(tmp_path):
    """Forty documents of two segments; all have one in common with the next, but for case."""
    (tmp_path / "summary.json").write_text('{"languages": ["en", "de"]}')
    names = [f"{one}{other}" for one in "abcde" for other in "stuvwxyz"]
    found = [
        Document(name, "", ((f"{name} 1", f"x{name}"), (f"{after.upper()}!", f"y{name}")))
        for name, after in zip(names, [*names[1:], names[0]], strict=True)
    ]
    write_documents(tmp_path / "train.jsonl", found)
    write_documents(tmp_path / "validation.jsonl", found[:1])
    return f"documents:{tmp_path}"


def test_documents_to_fit_have_nothing_of_those_held_out(documents):
    fit, held_out = (open_documents(f"{documents}:{p}", "train") for p in ("fit", "held-out"))
    assert [document.name for document in held_out] == ["as", "cw"]
    assert len(fit) == 38
    assert fit.num_segments == 2 * 38 - 4  # a neighbor on either side of each
    assert [text for document in fit[:1] for text in document.segments] == [("AU!", "yat")]


def test_documents_that_are_held_out_are_not_trained_on(documents):
    apart = DocumentConfig(train=f"{documents}:fit", validation=f"{documents}:held-out")
    train, validation = open_both(apart)
    assert (len(train), len(validation)) == (38, 2)
    with pytest.raises(InputError, match=r"holds the documents of .*held-out'\. Train on .*:fit"):
        open_both(DocumentConfig(train=documents, validation=f"{documents}:held-out"))
