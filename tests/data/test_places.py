"""Places that cannot be: whatever a user writes for one, the answer is one line."""

from functools import partial

import pytest
from limits import answer

from flashpoint.data.sources import KINDS, open_source
from flashpoint.data.text.sources import KINDS as TEXT_KINDS
from flashpoint.data.text.sources import names_documents, open_documents

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


@pytest.mark.parametrize("kind", ["", *(f"{kind}:" for kind in sorted({*KINDS, *TEXT_KINDS}))])
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
