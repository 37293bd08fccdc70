"""Pages of roff to blocks."""

import pytest

from data_preparation.blocks import LISTING
from data_preparation.man_blocks import read_man

PAGE = r""".\" A comment
.TH open 2 2023-02-05 "Linux man-pages"
.SH NAME
open \- open a file
.SH "RETURN VALUE"
The
.BR open ()
call
.RB ( read "(2), " write (2))
uses \fIflags\fP,
.\" hidden
see
.IR "access modes" .
.PP
Second
.B "bold words"
here.

Third.
.TP
.BI \-\-depth= n
Goes so
.I deep
.IP
More of it.
.TQ
.B O_TRUNC
.IP \[bu] 3
An item.
.SS Files
.nf
int x;
.SH no heading in a listing ends it
.TS
a	b
.TE
End.
"""


def test_headings_paragraphs_and_tags():
    assert [(block.kind, block.text) for block in read_man(PAGE)] == [
        ("SH", "NAME"),
        ("p", "open - open a file"),
        ("SH", "RETURN VALUE"),
        ("p", "The open() call (read(2), write(2)) uses flags, see access modes."),
        ("p", "Second bold words here."),
        ("p", "Third."),
        ("tag", "--depth=n"),
        ("p", "Goes so deep"),
        ("p", "More of it."),
        ("tag", "O_TRUNC"),
        ("tag", "•"),
        ("p", "An item."),
        ("SS", "Files"),
        (LISTING, ""),
        ("SH", "no heading in a listing ends it"),
        (LISTING, ""),
        ("p", "End."),
    ]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (r"a\-b \(em c \[lq]d\[rq] \(bue\\f", "a-b — c “d” •e\\f"),
        (r"\f(CWx\fP\f[B]y\fR\s-1Z\s0\&.\c", "xyZ."),
        (r"1\ 2\~3\0\|4\h'2n'5", "1 2 3 45"),
        (r"\*(Aqq\*(Aq \[u00E4] \[unknown]z", "'q' ä z"),
        (r"'\e0' and \(aqx\(aq \" comment", ""),
        (r"C:\ew and \(aqx\(aq \" comment", r"C:\w and 'x'"),
        (r"m\[u00fc] \m[blue]b\m[] \n(.gx", "m b x"),
    ],
)
def test_escapes(line, text):
    assert [block.text for block in read_man(line)] == ([text] if text else [])


def test_lines_are_joined_by_backslashes_and_c():
    assert [block.text for block in read_man("one \\\ntwo th\\c\nree")] == ["one two three"]


def test_links_show_their_text_or_their_address():
    page = ".UR https://example.org\nthe page\n.UE ,\nor\n.MT a@example.org\n.ME .\nMore."
    assert [b.text for b in read_man(page)] == ["the page, or <a@example.org>. More."]


def test_definitions_are_skipped_and_other_formats_give_nothing():
    assert [b.text for b in read_man(".de XX\n.B no\ntext\n..\nyes")] == ["yes"]
    assert read_man(".Dd March 1, 2020\n.Dt X 1\n.Sh NAME\ntext") == []
    assert read_man(".so man2/open.2\n") == []
