"""Subword pieces: exact, the same every time, and out of the reach of what a text says."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.data.text.corpora import make_documents, make_pieces

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.data.text.config import PiecesConfig
from flashpoint.lab.data.text.documents import Document, Documents
from flashpoint.lab.data.text.pieces import (
    EOS,
    SEP,
    SPECIAL,
    cached_pieces,
    load_pieces,
    train_pieces,
)

CONFIG = PiecesConfig(vocabulary_size=400)


@given(st.text().filter(lambda text: "\u2581" not in text))
def test_every_text_comes_back(text):
    pieces = make_pieces()
    assert pieces.decode(pieces.encode([text])[0]) == text


@pytest.mark.parametrize(
    "text", ["<sep> </s> <pad> <unk> <0x0A>", "漢字 🎉\u2028", "  two  spaces ", "a\tb\nc\x00"]
)
def test_special_and_unknown_characters_are_ordinary_text(text):
    pieces = make_pieces()
    ids = pieces.encode([text])[0]
    assert min(ids) > SEP
    assert pieces.decode(ids) == text


def test_segments_survive():
    pieces = make_pieces()
    segments = ["kaeio kaubd", "", "漢 <sep>", "kaaaa"]
    ids, nothing, other = pieces.encode_sources([segments, [], ["kaubd"]])
    assert ids.count(SEP) == 3
    assert ids[-1] == EOS
    assert pieces.decode_segments(ids) == segments
    assert pieces.decode_segments([*ids, *ids]) == segments  # nothing behind the end counts
    assert pieces.decode_segments(ids[:-1]) == segments
    assert nothing == [EOS]
    assert pieces.decode_segments(other) == ["kaubd"]


def test_special_pieces_have_the_first_ids():
    pieces = make_pieces()
    assert pieces.size == 400
    assert (pieces.pad, pieces.unk, pieces.bos, pieces.eos, pieces.sep) == tuple(range(5))
    assert pieces.decode(range(5)) == ""
    assert len(SPECIAL) == 5


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_documents_give_the_same_pieces(kind):
    settings = PiecesConfig(kind=kind, vocabulary_size=320)
    models = {train_pieces(make_documents(), settings).model for _ in range(2)}
    assert len(models) == 1
    assert models != {train_pieces(make_documents(seed=1), settings).model}


def test_pieces_are_kept_and_found_again(tmp_path, monkeypatch):
    first = cached_pieces(make_documents(), CONFIG, tmp_path)
    file = next(tmp_path.iterdir())
    assert file.name.startswith("pieces-bpe-400-")
    assert load_pieces(file).digest == first.digest

    def refuse(documents, config):
        raise AssertionError("trained again")

    monkeypatch.setattr("flashpoint.lab.data.text.pieces.train_pieces", refuse)
    assert cached_pieces(make_documents(), CONFIG, tmp_path).model == first.model
    given_file = PiecesConfig(file=str(file))
    assert cached_pieces(make_documents(seed=1), given_file, tmp_path).model == first.model
    for other in (make_documents(seed=1), make_documents(number=59)):
        with pytest.raises(AssertionError, match="trained again"):
            cached_pieces(other, CONFIG, tmp_path)


def test_sizes_that_do_not_fit_are_refused_with_the_limit():
    few = Documents("few", [Document("x", "", (("The cat sat", "Die Katze saß"),))])
    with pytest.raises(InputError, match=r"vocabulary_size=5000 is too much for few: take \d+ or"):
        train_pieces(few, PiecesConfig(vocabulary_size=5000))
    letters = "".join(chr(0x4E00 + n) for n in range(100))
    many = Documents("many", [Document("x", "", ((letters, letters[::-1]),))])
    with pytest.raises(InputError, match=r"vocabulary_size=300 is too little for many: take over"):
        train_pieces(many, PiecesConfig(vocabulary_size=300))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"x.model cannot be read: No such file"):
        load_pieces(tmp_path / "x.model")
    (tmp_path / "x.model").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"x.model is no SentencePiece model"):
        load_pieces(tmp_path / "x.model")
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=make_documents().texts(),
        model_prefix=str(tmp_path / "foreign"),
        vocab_size=60,
        minloglevel=2,
    )
    with pytest.raises(InputError, match=r"foreign.model starts with the pieces <unk>, <s>, </s>"):
        load_pieces(tmp_path / "foreign.model")


def test_without_sentencepiece_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\.\[lab\]'"):
        train_pieces(make_documents(), CONFIG)
