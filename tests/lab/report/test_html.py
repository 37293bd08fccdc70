"""Markup escapes by construction."""

import math

import pytest

from flashpoint.lab.report.html import Cell, Html, join, table, tag, text


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
    "made", [tag("p"), text("a"), join(["a"]), table(["a"], [["b"]], label="", file="")]
)
def test_everything_made_is_markup(made):
    assert isinstance(made, Html)


def test_joining_escapes_what_is_between():
    assert join(["a", "b"], " < ") == "a &lt; b"


def test_table_names_its_rows():
    got = table(["run", "top-1"], [["relu", 0.5]], label="runs", file="runs.csv")
    assert '<th class="text">relu</th><td>0.5</td>' in got
    assert 'aria-label="runs"' in got
    assert 'data-file="runs.csv"' in got


def test_table_without_rows_has_its_headings():
    got = table(["a", "b"], [], label="", file="")
    assert '<th scope="col">a</th><th scope="col">b</th>' in got


def test_headings_may_be_broken_behind_points_and_underscores():
    got = table(["learned.alpha_0", "E[h]", "end."], [], label="", file="")
    assert ">learned.<wbr>alpha_<wbr>0</th>" in got
    assert ">E[h]</th>" in got
    assert ">end.</th>" in got


@pytest.mark.parametrize(("columns", "is_wide"), [(8, False), (9, True)])
def test_table_of_many_columns_is_wide(columns, is_wide):
    got = table(["a"] * columns, [], label="", file="")
    assert ('class="table wide"' in got) is is_wide


@pytest.mark.parametrize(
    ("value", "stored"),
    [(None, ""), (0.1, "0.1"), (3, "3"), (math.inf, "Infinity"), (math.nan, "NaN"), ("<", "&lt;")],
)
def test_cell_stores_what_it_is_beside_what_it_shows(value, stored):
    got = table(["a", "b"], [["x", Cell("shown", value)]], label="", file="")
    assert f'data-value="{stored}"' in got
    assert ">shown</td>" in got
