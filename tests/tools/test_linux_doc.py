"""The kernel's documentation as passages: cleaned, split by page, every paragraph once."""

import json

import pytest

from data_preparation.command import prepare_set
from data_preparation.linux_doc import clean, prepare_passages, remove_repeats, split_pages
from flashpoint.errors import InputError
from flashpoint.lab.data.text.config import PiecesConfig
from flashpoint.lab.data.text.passages import Passage, open_passages
from flashpoint.lab.data.text.pieces import load_pieces

SOURCES = "usr/share/doc/linux-doc-6.1/html/_sources"
SMALL_PIECES = PiecesConfig(vocabulary_size=400)
LONG = "This paragraph is long enough that it may stand only once in the whole set of pages."


def page(number):
    """Some sixty words, which no other page has."""
    name = "abcdefghij"[number // 10] + "abcdefghij"[number % 10]
    words = " ".join(f"{name}{chr(ord('a') + place % 26)}" for place in range(60))
    return f"Title {number}\n=====\n\n\n   {words}  \n\n{LONG}\n"


@pytest.fixture
def package(tmp_path):
    """A folder that the package was extracted to."""
    root = tmp_path / "deb"
    for number in range(50):
        file = root / SOURCES / f"area{number % 3}" / f"page{number}.rst.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page(number))
    other = root / SOURCES / "translations" / "it" / "page.rst.txt"
    other.parent.mkdir(parents=True)
    other.write_text(page(99))
    return root


def test_lines_and_paragraphs_stay_and_blanks_go():
    assert clean("a  b\t c \n\n\n\n  d\n") == "a b c\n\nd"


def test_a_paragraph_is_kept_in_the_test_pages_first():
    pages = {name: [Passage(name, f"{clean(page(0))}")] for name in ("train", "test")}
    kept, removed = remove_repeats({**pages, "validation": []})
    assert [len(kept[name]) for name in ("train", "validation", "test")] == [0, 0, 1]
    assert removed == {"train": 2, "validation": 0, "test": 0}  # its title may repeat


def test_every_page_is_in_one_split():
    pages = [Passage(str(number), "x" * number) for number in range(1, 101)]
    splits = split_pages(pages)
    assert {name: len(part) for name, part in splits.items()} == {
        **{"train": 92, "validation": 4, "test": 4}
    }
    assert sorted(int(p.name) for part in splits.values() for p in part) == list(range(1, 101))


def test_prepared_folder_is_read_with_its_pieces(package, tmp_path, monkeypatch):
    monkeypatch.setattr("data_preparation.linux_doc.PiecesConfig", lambda: SMALL_PIECES)
    found = prepare_passages(tmp_path / "out", package, lambda text: None)
    assert found.pages == 50
    assert found.removed["train"] + found.removed["validation"] + found.removed["test"] == 49
    train = open_passages(str(tmp_path / "out"), "train")
    assert len(train.passages) == found.splits["train"][0] == 46
    assert not any("translations" in passage.name for passage in train.passages)
    assert load_pieces(train.pieces_file).size == found.num_pieces == 400
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["splits"]["test"]["passages"] == 2
    before = (tmp_path / "out" / "train.jsonl").read_bytes()
    prepare_passages(tmp_path / "out", package, lambda text: None)
    assert (tmp_path / "out" / "train.jsonl").read_bytes() == before


def test_other_packages_are_refused(tmp_path):
    (tmp_path / "other" / "usr").mkdir(parents=True)
    with pytest.raises(InputError, match=r"has no pages at html/_sources. Is it linux-doc-6.1"):
        prepare_passages(tmp_path / "out", tmp_path / "other", lambda text: None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds 0 of the 1 packages.*linux-doc-6.1"):
        prepare_passages(tmp_path / "out", tmp_path / "empty", lambda text: None)
    with pytest.raises(InputError, match="Did you mean 'linux-doc'"):
        prepare_set("linux-docs", None, tmp_path)
