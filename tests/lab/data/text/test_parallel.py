"""Plain parallel text in its usual forms."""

import pytest

from flashpoint.errors import InputError
from flashpoint.lab.data.text.document_kinds import open_documents
from flashpoint.lab.data.text.documents import read_lines


def write(folder, **files):
    """Files by name, "__" for a dot; text or bytes."""
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name.replace("__", ".")).write_bytes(data)


def opened(where, split="train", languages=("en", "de")):
    """Names and segments."""
    return [(d.name, d.segments) for d in open_documents(str(where), split, languages)]


def test_empty_lines_end_documents(tmp_path):
    write(tmp_path, t__en="A\nB\n\n\nC\n", t__de="a\nb\n\n\nc\n")
    assert opened(f"text:{tmp_path}/t") == [("1", (("A", "a"), ("B", "b"))), ("2", (("C", "c"),))]


def test_text_without_any_border_is_one_document(tmp_path):
    write(tmp_path, t__en="A\nB", t__de="a\nb\n")
    assert opened(f"text:{tmp_path}/t") == [("1", (("A", "a"), ("B", "b")))]


def test_segments_with_one_empty_side_are_left_out_and_counted(tmp_path):
    write(tmp_path, t__en="A\n\nC\nD\n", t__de="a\nb\n \nd\n")
    documents = open_documents(f"text:{tmp_path}/t", "train")
    assert documents[0].segments == (("A", "a"), ("D", "d"))
    assert documents.num_left_out == 2


def test_languages_turn_the_direction(tmp_path):
    write(tmp_path, t__en="A", t__de="a")
    assert opened(f"text:{tmp_path}/t", languages=("de", "en")) == [("1", (("a", "A"),))]


def test_two_files_by_name_byte_order_mark_and_windows_line_ends(tmp_path):
    write(tmp_path, x=b"\xef\xbb\xbfA\r\n\r\nB\r\n", y="a\n\nb\n")
    assert opened(f"text:{tmp_path}/x,{tmp_path}/y") == [
        ("1", (("A", "a"),)),
        ("2", (("B", "b"),)),
    ]


def test_europarl_chapters_and_ted_talks_are_documents(tmp_path):
    markup = '<CHAPTER ID="1">\n{}\n<SPEAKER ID="2" NAME="X">\n{}\n<P>\n<CHAPTER ID="2">\n{}\n'
    write(tmp_path, e__en=markup.format(*"ABC"), e__de=markup.format(*"abc"))
    two = [(("A", "a"), ("B", "b")), (("C", "c"),)]
    assert [segments for _, segments in opened(f"text:{tmp_path}/e")] == two
    talk = "<url>http://x</url>\n<talkid>{}</talkid>\n<title>T</title>\n"
    head = [talk.format(n) for n in (1, 2)]
    lines = {"en": f"{head[0]}A\nB\n{head[1]}C\n", "de": f"{head[0]}a\nb\n{head[1]}c\n"}
    write(tmp_path, t__en=lines["en"], t__de=lines["de"])
    assert [segments for _, segments in opened(f"text:{tmp_path}/t")] == two


def test_lines_that_only_look_like_markup_are_text(tmp_path):
    write(tmp_path, t__en="<b>A</b> and B\nx < y\n<i>C</i>\n", t__de="a b\nx < y!\nc\n")
    assert len(opened(f"text:{tmp_path}/t")[0][1]) == 3


@pytest.mark.parametrize(
    "names", ["x\nx\ny\n", "0\n2\n", "1\n3\n"], ids=["names", "from 0", "from 1"]
)
def test_a_third_file_names_documents(tmp_path, names):
    write(tmp_path, t__en="A\nB\nC\n", t__de="a\nb\nc\n", t__docs=names)
    found = [segments for _, segments in opened(f"text:{tmp_path}/t")]
    assert found == [(("A", "a"), ("B", "b")), (("C", "c"),)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("x\ny\n", "t.docs has 2 lines for 3 lines of text"),
        ("0\n7\n", "t.docs: line 7 is past the 3 lines of text"),
        ("2\n1\n", "rising from 0 or 1"),
        ("", "t.docs has 0 lines"),
    ],
)
def test_a_third_file_that_does_not_fit_is_refused(tmp_path, names, message):
    write(tmp_path, t__en="A\nB\nC\n", t__de="a\nb\nc\n", t__docs=names)
    with pytest.raises(InputError, match=message):
        opened(f"text:{tmp_path}/t")


SGM = """<srcset setid="newstest" srclang="any">
<doc sysid="ref" docid="bbc.1" genre="news"><p>
<seg id="1">{} &amp; B</seg>
<seg id="2">
{}
</seg></p></doc>
<doc docid="bbc.2"><seg id="1">{}</seg></doc></srcset>"""


@pytest.mark.parametrize("suffix", ["sgm", "xml"])
def test_news_and_talks_with_doc_and_seg(tmp_path, suffix):
    for language, letters in (("en", "ACD"), ("de", "acd")):
        (tmp_path / f"dev.{language}.{suffix}").write_text(SGM.format(*letters))
    assert opened(f"text:{tmp_path}/dev") == [
        ("bbc.1", (("A & B", "a & B"), ("C", "c"))),
        ("bbc.2", (("D", "d"),)),
    ]


def test_docs_and_segs_must_match(tmp_path):
    write(tmp_path, t__en__sgm=SGM, t__de__sgm=SGM.replace('<seg id="1">{}</seg></doc>', "</doc>"))
    with pytest.raises(InputError, match=r"document bbc.2 of .*en.sgm has 1 segments, and bbc.2 "):
        opened(f"text:{tmp_path}/t")
    write(tmp_path, t__de__sgm=SGM.rpartition("<doc")[0])
    with pytest.raises(InputError, match=r"t.en.sgm has 2 documents and .*t.de.sgm 1"):
        opened(f"text:{tmp_path}/t")
    write(tmp_path, t__de__sgm="<p>nothing</p>")
    with pytest.raises(InputError, match=r"t.de.sgm has no <doc> with <seg> in it"):
        opened(f"text:{tmp_path}/t")


def test_tabs_separate_sides_and_empty_lines_documents(tmp_path):
    write(tmp_path, t__tsv="A\ta\nB\tb\n\t\nC\tc\n\nD\td\n")
    assert [len(segments) for _, segments in opened(f"text:{tmp_path}/t.tsv")] == [2, 1, 1]
    write(tmp_path, t__tsv="A\ta\nB b\n")
    with pytest.raises(
        InputError, match=r"t.tsv, line 2 has 1 fields, not 2: source, tab, target"
    ):
        opened(f"text:{tmp_path}/t.tsv")


@pytest.mark.parametrize("name", ["valid", "dev", "test"])
def test_folders_have_splits(tmp_path, name):
    write(tmp_path, train__en="A", train__de="a", README="x")
    for language, text in (("en", "B"), ("de", "b")):
        (tmp_path / f"{name}.{language}").write_text(text)
    assert opened(f"text:{tmp_path}") == [("1", (("A", "a"),))]
    assert opened(f"text:{tmp_path}", "validation") == [("1", (("B", "b"),))]
    place = open_documents(f"text:{tmp_path}", "validation").name
    assert opened(place) == [("1", (("B", "b"),))]  # what messages say can be given
    with pytest.raises(InputError, match="no split 'tset'"):
        opened(f"text:{tmp_path}", "tset")


def test_unequal_numbers_of_lines_are_refused_with_both(tmp_path):
    write(tmp_path, t__en="A\nB\n", t__de="a\nb\nc\nd\n")
    with pytest.raises(InputError, match=r"t.en has 2 lines and .*t.de 4: line n must be"):
        opened(f"text:{tmp_path}/t")


def test_only_line_feeds_end_lines(tmp_path):
    write(tmp_path, lines="A\u2028B\r\n\r\nC\rD\x85")
    assert list(read_lines(tmp_path / "lines")) == ["A\u2028B", "", "C\rD\x85"]
    write(tmp_path, t__en="A\u2028B\x0cC\x85D\n\nE\n", t__de="a b c d\n\ne\n")
    assert [len(segments) for _, segments in opened(f"text:{tmp_path}/t")] == [1, 1]


def test_bad_bytes_are_named_with_file_and_line(tmp_path):
    write(tmp_path, t__en=b"A\nGr\xf6\xdfe\n", t__de="a\nb\n")
    with pytest.raises(InputError, match=r"t.en, line 2: byte 3 \(0xf6\) is no UTF-8.*iconv"):
        opened(f"text:{tmp_path}/t")


def test_missing_and_empty_files_are_named(tmp_path):
    write(tmp_path, t__en="A")
    with pytest.raises(InputError, match=r"t.de does not exist"):
        opened(f"text:{tmp_path}/t")
    write(tmp_path, t__de="", u__en="", u__de="")
    with pytest.raises(InputError, match=r"t.de has 0 lines"):
        opened(f"text:{tmp_path}/t")
    with pytest.raises(InputError, match=r"text:.*u holds no documents with text on both sides"):
        opened(f"text:{tmp_path}/u")
    with pytest.raises(InputError, match="'text:' needs a place"):
        opened("text:")
