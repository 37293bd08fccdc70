"""Documents cut and joined between segments."""

import numpy as np
import pytest
from lab.data.text.corpora import make_documents, make_pieces

from flashpoint.errors import InputError
from flashpoint.lab.data.text.chunks import cut_documents, num_too_long
from flashpoint.lab.data.text.config import PiecesConfig
from flashpoint.lab.data.text.documents import Document, Documents
from flashpoint.lab.data.text.pieces import SEP, train_pieces
from flashpoint.lab.data.text.tokens import TokenDocuments, TokenSide, encode_documents


def tokens_of(*documents):
    """Documents given as lists of (source, target) lengths, separators included."""
    pairs = np.array([pair for document in documents for pair in document])
    sides = []
    for lengths in pairs.T:
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        sides.append(TokenSide(np.arange(offsets[-1], dtype=np.uint16), offsets))
    borders = np.cumsum([0, *map(len, documents)])
    return TokenDocuments(sides[0], sides[1], borders)


def spans(chunks):
    """The segments of each chunk."""
    pairs = zip(chunks.starts, chunks.ends, strict=True)
    return [chunks.segments[start:end].tolist() for start, end in pairs]


DOCUMENTS = tokens_of([(4, 5), (4, 2), (3, 3)], [(2, 2)], [(9, 3), (2, 9), (1, 1)])


def test_joined_chunks_take_all_that_fits_on_both_sides():
    chunks = cut_documents(DOCUMENTS, 10, join=True)
    assert spans(chunks) == [[0, 1], [2, 3], [4], [5, 6]]
    assert chunks.lengths.tolist() == [[8, 5, 9, 3], [7, 5, 3, 10]]


def test_chunks_stay_within_documents_without_joining():
    assert spans(cut_documents(DOCUMENTS, 10, join=False)) == [[0, 1], [2], [3], [4], [5, 6]]
    assert spans(cut_documents(DOCUMENTS, 13, join=False)) == [[0, 1, 2], [3], [4, 5, 6]]


def test_every_segment_may_be_a_sample():
    chunks = cut_documents(DOCUMENTS, 10, join=True, by_segment=True)
    assert spans(chunks) == [[n] for n in range(7)]
    assert chunks.lengths.tolist() == [[4, 4, 3, 2, 9, 2, 1], [5, 2, 3, 2, 3, 9, 1]]
    assert spans(cut_documents(DOCUMENTS, 8, join=False, by_segment=True)) == [
        [0], [1], [2], [3], [6]
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_segments_as_samples_are_each_there_once_in_every_epoch(seed):
    documents = encode_documents(make_documents(), make_pieces())
    rng = np.random.default_rng(seed)
    chunks = cut_documents(documents, 64, join=True, by_segment=True, rng=rng)
    kept = np.maximum(documents.source.lengths, documents.target.lengths) <= 64
    assert (chunks.ends - chunks.starts == 1).all()
    assert sorted(chunks.segments.tolist()) == np.flatnonzero(kept).tolist()
    for side, lengths in zip(documents.sides, chunks.lengths, strict=True):
        assert (lengths == side.lengths[chunks.segments]).all()


def test_segments_longer_than_a_chunk_are_left_out_and_counted():
    assert spans(cut_documents(DOCUMENTS, 8, join=False)) == [[0, 1], [2], [3], [6]]
    assert num_too_long(DOCUMENTS, 8) == 2
    assert num_too_long(DOCUMENTS, 9) == 0
    assert spans(cut_documents(DOCUMENTS, 2, join=True)) == [[3], [6]]
    with pytest.raises(InputError, match=r"length=0 is less .* any segment: the shortest has 1"):
        cut_documents(DOCUMENTS, 0, join=True)


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize(("length", "seed"), [*((128, n) for n in range(5)), (512, 0), (2048, 0)])
def test_shuffled_documents_keep_their_order_inside(join, length, seed):
    documents = encode_documents(make_documents(), make_pieces())
    chunks = cut_documents(documents, length, join=join, rng=np.random.default_rng(seed))
    kept = np.flatnonzero(np.maximum(documents.source.lengths, documents.target.lengths) <= length)
    assert sorted(chunks.segments.tolist()) == kept.tolist()
    assert chunks.lengths.max() <= length
    assert chunks.ends[-1] == len(chunks.segments)
    home = np.searchsorted(documents.borders, chunks.segments, side="right")
    assert len(np.flatnonzero(np.diff(home))) == len(np.unique(home)) - 1  # in one piece each
    same = np.diff(home) == 0
    assert (np.diff(chunks.segments)[same] > 0).all()
    if not join:
        assert all(
            len(set(home[a:b])) == 1 for a, b in zip(chunks.starts, chunks.ends, strict=True)
        )


@pytest.mark.parametrize("join", [True, False])
def test_cuts_change_from_epoch_to_epoch_even_of_one_document(join):
    one = tokens_of([(3, 3)] * 100)
    found = {
        tuple(map(len, spans(cut_documents(one, 30, join=join, rng=np.random.default_rng(n)))))
        for n in range(8)
    }
    assert len(found) > 2
    assert all(max(counts) == 10 for counts in found)
    short = tokens_of(*[[(3, 3)] * 9] * 4)
    whole = cut_documents(short, 30, join=False, rng=np.random.default_rng(0))
    assert [len(span) for span in spans(whole)] == [9] * 4  # what fits is not cut


def test_each_resolution_cuts_to_half_of_the_one_before():
    chunks = cut_documents(DOCUMENTS, 14, join=False, resolutions=3)
    at_14, at_7 = [[0, 1, 2], [3], [4, 5, 6]], [[0], [1, 2], [3], [4], [5], [6]]
    at_3 = [[0], [1], [2], [3], [4], [5], [6]]  # what is longer is left whole, not out
    assert spans(chunks) == [*at_14, *at_7, *at_3]
    in_order = [11, 2, 12, 4, 7, 2, 9, 2, 1, 4, 4, 3, 2, 9, 2, 1]
    assert chunks.lengths[0].tolist() == in_order
    joined = cut_documents(DOCUMENTS, 14, join=True, resolutions=2)
    assert spans(joined) == [[0, 1, 2, 3], [4, 5, 6], [0], [1, 2], [3], [4], [5], [6]]


@pytest.mark.parametrize("join", [True, False])
def test_each_resolution_has_every_segment_once_and_is_cut_anew(join):
    documents = encode_documents(make_documents(), make_pieces())
    options = {"join": join, "resolutions": 4}
    first, again, other = (
        cut_documents(documents, 256, rng=np.random.default_rng(seed), **options)
        for seed in (0, 0, 1)
    )
    assert spans(first) == spans(again) != spans(other)
    seen = [segment for span in spans(first) for segment in span]
    assert seen == [*first.segments.tolist()] * 4
    assert first.lengths.sum() == 4 * (documents.source.offsets[-1] + documents.target.offsets[-1])
    alone = first.ends - first.starts == 1
    ends = np.flatnonzero(first.ends == len(first.segments))
    for number, (start, end) in enumerate(zip([0, *ends[:-1] + 1], ends + 1, strict=True)):
        longest = first.lengths[:, start:end].max(axis=0)
        assert (longest[~alone[start:end]] <= 256 >> number).all()
        assert longest.max() > 256 >> number + 1


def test_tokens_are_the_segments_ids_with_separators(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path))
    documents, pieces = make_documents(), make_pieces()
    tokens = encode_documents(documents, pieces)
    texts = [segment for document in documents for segment in document.segments]
    for side, number in ((tokens.source, 0), (tokens.target, 1)):
        for index in (0, 17, len(texts) - 1):
            ids = side.ids[side.offsets[index] : side.offsets[index + 1]].tolist()
            assert ids == [*pieces.encode([texts[index][number]])[0], SEP]
    assert tokens.borders[-1] == len(texts) == documents.num_segments


def test_tokens_are_kept_and_a_damaged_file_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path))
    documents, pieces = make_documents(), make_pieces()
    first = encode_documents(documents, pieces)
    files = sorted((tmp_path / "tokens").iterdir())
    assert len(files) == 2
    calls = []
    monkeypatch.setattr(type(pieces), "encode", lambda self, texts: calls.append(len(texts)))
    again = encode_documents(documents, pieces)
    assert calls == []
    assert np.array_equal(again.target.ids, first.target.ids)
    monkeypatch.undo()
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path))
    files[0].write_bytes(files[0].read_bytes()[:100])
    repaired = encode_documents(documents, pieces)
    assert np.array_equal(repaired.source.ids, first.source.ids)
    assert np.array_equal(repaired.target.ids, first.target.ids)


def test_other_pieces_do_not_find_these_tokens(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path))
    other = train_pieces(make_documents(), PiecesConfig(vocabulary_size=350))
    first, second = (encode_documents(make_documents(), p) for p in (make_pieces(), other))
    assert first.source.ids.max() >= 350 > second.source.ids.max()


def test_a_cache_that_cannot_be_written_is_not_needed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "file"))
    documents = Documents("one", [Document("x", "", (("kaeio", "kaubd"),))])
    assert encode_documents(documents, make_pieces()).borders.tolist() == [0, 1]


def test_take_gives_segments_in_any_order():
    side = tokens_of([(3, 1), (2, 1), (4, 1)], [(1, 1)]).source
    taken = side.take(np.array([2, 3, 0, 1, 0]))
    assert taken.ids.tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 0, 1, 2]
    assert taken.offsets.tolist() == [0, 4, 5, 8, 10, 13]
