"""Pages of HTML to blocks."""

from data_preparation.blocks import LISTING
from data_preparation.html_blocks import read_html


def texts(page):
    return [block.text for block in read_html(page)]


def test_navigation_contents_scripts_and_heads_are_left_out():
    page = """<html><head><title>T</title><style>p {}</style></head><body>
    <div class="navheader"><p>Prev</p></div><ul class="docnav top"><li>Home</li></ul>
    <p id="title">Product</p><div id="banner">Get it</div>
    <div class="toc"><p>Contents</p><dl><dt>1. One</dt></dl></div>
    <script>x = "<p>no</p>"</script><h2>One</h2><p>Text</p>
    <div class="list-of-tables"><p>Tables</p></div><div class="navfooter">Next</div></body>"""
    assert texts(page) == ["One", "Text"]


def test_inline_markup_is_joined_and_white_space_collapsed():
    page = (
        "<p>\n  See&nbsp;<a class='link' href='x'>the <em>first</em></a>,<br/>"
        "“<span class='quote'>two</span>” &amp; Er\u00adgeb\u00adnis<img src='i.png'>.</p>"
    )
    assert texts(page) == ["See the first, “two” & Ergebnis."]


def test_kinds_tell_where_a_block_stands():
    page = "<div><ul><li>a<p>b</p>c</li></ul><table><tr><td>d</td></tr></table></div>"
    assert [(block.kind, block.text) for block in read_html(page)] == [
        ("div/ul/li", "a"),
        ("div/ul/li/p", "b"),
        ("div/ul/li", "c"),
        ("div/table/tr/td", "d"),
    ]


def test_listings_mark_their_place_without_text():
    blocks = read_html("<p>a</p><pre class='screen'>ls <b>-l</b>\n<p>x</p></pre><p>b</p>")
    assert [(block.kind, block.text) for block in blocks] == [
        ("p", "a"),
        (LISTING, ""),
        ("p", "b"),
    ]


def test_ids_are_keys_and_names_are_anchors_unless_made_up():
    page = """<div id="area"><h1 id="hd_1"><a name="start"></a>A</h1><p>B</p>
    <a id="idm12583" class="indexterm"></a>
    <h2><a id="id-1.9.17"></a><a id="second"></a>C</h2></div>"""
    assert [(block.key, block.anchor) for block in read_html(page)] == [
        ("hd_1", "start"),
        ("", ""),
        ("", "second"),
    ]


def switch(*alternatives):
    inside = "".join(f'<span hidden="true" {given}>{text}</span>' for given, text in alternatives)
    return f'<p>Press <span id="s" class="switchinline">{inside}</span>+A.</p>'


def test_a_switch_gives_its_default_or_the_first_that_is_not_for_a_mac():
    mac = ('id="M1" class="MAC"', "<b>Command</b>")
    default = ('id="default1"', "<b>Ctrl</b>")
    writer, calc = ('class="WRITER"', "W"), ('class="CALC"', "C")
    assert texts(switch(mac, default)) == ["Press Ctrl+A."]
    assert texts(switch(default, mac)) == ["Press Ctrl+A."]
    assert texts(switch(writer, calc, default)) == ["Press Ctrl+A."]
    assert texts(switch(mac, writer, calc)) == ["Press W+A."]


def test_open_and_stray_tags_do_no_harm():
    assert texts("<ul><li>a<li>b</ul></p></div><p>c<p>d") == ["a", "b", "c", "d"]
    assert texts("<div class='toc'><p>x<br></div><p>y</p>") == ["y"]
