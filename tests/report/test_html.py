"""Markup escapes by construction."""

import pytest

from flashpoint.report.html import Html, join, table, tag, text


def test_plain_text_is_escaped_and_markup_stays():
    inner = tag("b", "a & b")
    assert inner == "<b>a &amp; b</b>"
    assert tag("p", inner, "<i>") == "<p><b>a &amp; b</b>&lt;i&gt;</p>"
    assert text(3.5) == "3.5"


def test_attributes_are_escaped_and_named():
    got = tag("a", href='"><script>', class_="x", aria_label="y", hidden=True, checked=False)
    assert got == '<a href="&quot;&gt;&lt;script&gt;" class="x" aria-label="y" hidden></a>'


def test_void_elements_do_not_close():
    assert tag("img", src="a") == '<img src="a">'


@pytest.mark.parametrize(
    "made", [tag("p"), text("a"), join(["a"]), table(["a"], [["b"]], label="")]
)
def test_everything_made_is_markup(made):
    assert isinstance(made, Html)


def test_joining_escapes_what_is_between():
    assert join(["a", "b"], " < ") == "a &lt; b"


def test_table_names_its_rows():
    got = table(["run", "top-1"], [["relu", 0.5]], label="runs")
    assert "<th>relu</th><td>0.5</td>" in got
    assert 'aria-label="runs"' in got
