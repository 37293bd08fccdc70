"""Documents through a translator: cutting, mapping of segments, order, and scores."""

import math

import pytest
import sacrebleu
import torch
from lab.data.text.corpora import make_documents, make_pieces

from flashpoint.errors import InputError
from flashpoint.lab.data.text.documents import Document, Documents
from flashpoint.lab.data.text.pieces import EOS, SEP
from flashpoint.lab.evaluation.search import Search
from flashpoint.lab.evaluation.translation import Translated, Translator
from flashpoint.lab.evaluation.translation_scores import score
from flashpoint.models.registry import create_model

LENGTH = 64


class Shouting(Translator):
    """Answers with the source in capitals; ``spoil`` changes the segments of a part."""

    def __init__(self, spoil=lambda segments: segments, batch_size=3, **options):
        super().__init__(None, make_pieces(), LENGTH, Search(batch_size=batch_size), **options)
        self.spoil = spoil
        self.seen = []

    def _generate(self, sources):
        self.seen += sources
        return [
            self.spoil([text.upper() for text in self.pieces.decode_segments(source)])
            for source in sources
        ]


def real_translator(**search):
    torch.manual_seed(0)
    model = create_model("reluformer_tiny", vocabulary_size=make_pieces().size, width=32)
    with torch.no_grad():
        model.embed.weight[EOS] *= 1.5  # so that some end early
    return Translator(model, make_pieces(), LENGTH, Search(**search))


def some_documents(number=12):
    return [[source for source, _ in document.segments] for document in make_documents()[:number]]


def shouted(documents):
    return [[text.upper() for text in document] for document in documents]


def segments_of(results):
    return [result.segments for result in results]


def test_model_of_segments_sees_one_at_a_time():
    translator, documents = Shouting(by_segment=True), some_documents()
    results = translator.translate(documents)
    assert segments_of(results) == shouted(documents)
    assert not any(SEP in source for source in translator.seen)
    assert len(translator.seen) >= sum(map(len, documents))


def test_documents_are_cut_between_segments_and_put_together_in_order():
    translator, documents = Shouting(), some_documents()
    counts = []
    results = translator.translate(documents, lambda done, total: counts.append((done, total)))
    assert segments_of(results) == shouted(documents)
    assert [result.text for result in results] == [" ".join(each) for each in shouted(documents)]
    assert not any(result.num_repeated for result in results)
    lengths = [len(source) for source in translator.seen]
    assert max(lengths) <= 0.75 * LENGTH
    assert min(lengths) < max(lengths)
    assert all(source[-1] == EOS for source in translator.seen)
    assert any(SEP in source for source in translator.seen)
    total = sum(map(len, documents)) + 1  # one is too long and counts twice
    assert counts[-1] == (total, total)


def test_long_segment_is_cut_and_joined_and_others_keep_their_place():
    long = " ".join(["winter"] * 100)
    translator = Shouting()
    [result] = translator.translate([["one", long, "", "two"]])
    assert [result.segments[n] for n in (0, 2, 3)] == ["ONE", "", "TWO"]
    assert result.segments[1] == long.upper()
    [result] = translator.translate([["a" * 1000]])
    assert result.segments[0].replace(" ", "") == "A" * 1000


def test_nothing_gives_nothing():
    assert Shouting().translate([]) == []
    assert segments_of(Shouting().translate([[], ["", " "]])) == [[], ["", ""]]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda segments: segments[:-1] if len(segments) > 2 else segments,
        lambda segments: [*segments, "MORE"] if len(segments) > 1 else segments,
        lambda segments: [" ".join(segments)],
    ],
    ids=["fewer", "more", "one"],
)
def test_wrong_number_of_segments_is_mended_by_halves(spoil):
    documents = some_documents(6)
    results = Shouting(spoil).translate(documents)
    assert segments_of(results) == shouted(documents)
    assert sum(result.num_repeated for result in results) > 0


def test_text_is_what_came_first():
    documents = [["one", "two", "three"]]
    [result] = Shouting(lambda s: ["ALL"] if len(s) == 3 else s).translate(documents)
    assert result == Translated(["ONE", "TWO", "THREE"], "ALL", 3)


def test_single_segment_that_comes_back_in_several_is_joined():
    [result] = Shouting(lambda segments: ["A", "", "B\nC"]).translate([["one"]])
    assert result.segments == ["A B C"]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_batches_give_what_one_by_one_gives(beam_size):
    documents = [["one two"], ["three", "four five six"], ["seven"], ["time house water"] * 3]
    wanted = [
        real_translator(beam_size=beam_size, batch_size=1).translate([each])[0]
        for each in documents
    ]
    assert real_translator(beam_size=beam_size, batch_size=8).translate(documents) == wanted
    assert len({result.text for result in wanted}) > 1


def test_any_characters_are_translated():
    documents = [["\u6f22\u5b57 \U0001f600", "\ufffd\x00\u2028x", "<sep> </s>", "\u2581"]]
    [result] = Shouting().translate(documents)
    assert result.segments[0] == "\u6f22\u5b57 \U0001f600"
    assert result.segments[2] == "<SEP> </S>"
    [result] = real_translator(beam_size=1, is_bf16=True).translate(documents)
    assert len(result.segments) == 4
    assert not any("\n" in text for text in result.segments)


def test_wrong_search_is_refused():
    with pytest.raises(InputError, match=r"beam_size=0 .*from 1 to 1,024"):
        Search(beam_size=0)


def test_scores_are_sacrebleu_s_and_by_length():
    documents = Documents(
        "two",
        [
            Document("a", "", (("x", "the cat sat on the mat"), ("y", "it was a warm day"))),
            Document("b", "", (("z", "nobody knows where the river goes"),)),
        ],
    )
    translated = [
        Translated(["the cat sat on a mat", "it was warm"], "the cat sat on the mat it is", 2),
        Translated(["nobody knows where the river goes"], "nobody knows where the river goes", 0),
    ]
    result = score(documents, translated, [300, 100])
    found = [text for each in translated for text in each.segments]
    wanted = [target for document in documents for _, target in document.segments]
    assert result.all.bleu == sacrebleu.corpus_bleu(found, [wanted]).score
    assert result.all.chrf == sacrebleu.corpus_chrf(found, [wanted]).score
    joined = ["the cat sat on the mat it was a warm day", wanted[2]]
    texts = [each.text for each in translated]
    assert result.all.document_bleu == sacrebleu.corpus_bleu(texts, [joined]).score
    assert (result.all.num_documents, result.all.num_segments) == (2, 3)
    assert result.all.exact == pytest.approx(1 / 3)
    assert [scores.exact for scores in result.by_length.values()] == [1.0, 0.0]
    assert list(result.by_length) == ["1-128", "257-512"]
    assert result.by_length["1-128"].bleu == pytest.approx(100)
    assert result.by_length["257-512"].bleu < result.all.bleu < 100
    assert result.repeated_share == pytest.approx(2 / 3)
    assert "tok:13a" in result.signatures["bleu"]
    assert result.signatures["chrf"].endswith(f"version:{sacrebleu.__version__}")


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"beam_size": 100_000}, "beam_size=100000 must be a whole number from 1 to 1,024."),
        ({"length_penalty": math.nan}, "length_penalty=nan must be a number from -100 to 100."),
        ({"beam_size": 1024, "batch_size": 128}, "a beam of 1024 over 128 parts at a time are 13"),
    ],
)
def test_search_without_end_is_refused(search, message):
    with pytest.raises(InputError) as error:
        Search(**search)
    assert str(error.value).startswith(message)
