"""Places that cannot be: whatever a user writes for one, the answer is one line."""

from functools import partial

import pytest
from lab.data.pictures import make_folder
from limits import answer

from flashpoint.lab.data.image_kinds import KINDS, open_source
from flashpoint.lab.data.text.document_kinds import KINDS as TEXT_KINDS
from flashpoint.lab.data.text.document_kinds import names_documents, open_documents
from flashpoint.lab.data.text.documents import Document
from flashpoint.lab.data.text.prepared import write_documents

WORDS = (
    *("", " ", "nowhere", "a" * 5000, "a/" * 3000, "~nobody-of-this-name/x", "x\0y"),
    *("\ud800", "a:b:c", ":", "*", "[", "{", "{}", "{..}", "{a,{b}", "x{2..1}*", "/dev/null"),
    *(
        "/dev/zero",
        "/dev/null/x",
        ",",
        "a,b,c",
        ".tsv",
        "x.tsv",
        "-1",
        "0",
        "9" * 50,
        "1-0",
        "1,0",
    ),
)


STARTS = ["", *(f"{kind}:" for kind in sorted({*KINDS, *TEXT_KINDS}))]


@pytest.mark.parametrize("kind", STARTS)
def test_any_place_is_one_line(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in (kind + word for word in WORDS):
        for split in ("train", "dev", "a" * 5000):
            longest = 800 + 4 * len(place + split)  # what the user wrote is shown
            is_text, said = answer(partial(names_documents, place), longest)
            assert not said
            opens = open_documents if is_text else open_source
            opened, said = answer(partial(opens, place, split), longest)
            assert said or opened


def put_images(folder):
    make_folder(folder, {"a": 2, "b": 2})


def put_documents(folder):
    segments = (("A", "a"), ("B", "b"))
    write_documents(folder / "train.jsonl", [Document("x", "", segments)])
    (folder / "summary.json").write_text('{"languages": ["en", "de"]}')


@pytest.mark.parametrize("put", [put_images, put_documents])
@pytest.mark.parametrize("kind", STARTS)
def test_empty_place_is_not_the_current_folder(kind, put, tmp_path, monkeypatch):
    put(tmp_path)
    monkeypatch.chdir(tmp_path)
    for word in ("", " ", "\t ", ":train", " :train"):
        assert not names_documents(word)
        for opens in (open_source, open_documents):
            opened, said = answer(partial(opens, kind + word, "train"))
            assert opened is None
            if not (kind + word).strip():
                assert "the place of data is empty" in said
