"""Blocks of two pages to pairs, and which pairs are kept."""

import pytest

from data_preparation.alignment import align_by_key, align_by_order, clean_pairs, fingerprint
from data_preparation.blocks import Block


def page(*blocks):
    """Blocks from "kind text" or "kind text #anchor"."""
    found = []
    for given in blocks:
        kind, text, *anchor = given.split()
        found.append(Block(kind, text, anchor=anchor[0][1:] if anchor else ""))
    return found


def test_keys_align_in_the_order_of_the_source():
    source = [Block("p", "One", "1"), Block("p", "none"), Block("p", "Two", "2")]
    target = [Block("p", "Zwei", "2"), Block("div", "Eins", "1"), Block("p", "keins")]
    assert align_by_key(source, target) == [("One", "Eins"), ("Two", "Zwei")]


def test_repeated_keys_align_only_if_they_repeat_alike():
    source = [Block("p", "A", "1"), Block("p", "B", "1"), Block("p", "C", "2")]
    target = [Block("p", "a", "1"), Block("p", "b", "1"), Block("p", "c", "2")]
    assert align_by_key(source, target) == [("A", "a"), ("B", "b"), ("C", "c")]
    assert align_by_key(source, target[1:]) == [("C", "c")]


def test_equal_pages_align_whole():
    source, target = page("h1 A", "p B", "li C"), page("h1 a", "p b", "li c")
    assert align_by_order(source, target) == [("A", "a"), ("B", "b"), ("C", "c")]


def test_reordered_entries_do_not_align():
    source = page("dt Alpha #alpha", "dd A", "dt Beta #beta", "dd B")
    target = page("dt Beta #beta", "dd b", "dt Alpha #alpha", "dd a")
    assert align_by_order(source, target) == []


def test_sections_align_by_anchor_wherever_they_stand():
    source = page("h1 A #a", "p x", "h1 B #b", "p y", "h1 C #c", "p z", "p z2")
    target = page("h1 b #b", "p y1", "h1 c #c", "p z1", "h1 a #a", "p x1")
    assert align_by_order(source, target) == [("A", "a"), ("x", "x1"), ("B", "b"), ("y", "y1")]


def test_sections_without_anchors_align_by_number():
    source = page("p 0", "SH A", "p x", "SH B", "p y", "p y2", "SH C", "p z")
    target = page("p 0!", "SH a", "p x1", "SH b", "p y1", "SH c", "p z1", "SH Translators", "p t")
    assert align_by_order(source, target) == [
        *(("0", "0!"), ("A", "a"), ("x", "x1")),
        *(("C", "c"), ("z", "z1")),
    ]


def test_sections_of_other_levels_do_not_align_by_number():
    source = page("h1 A", "p x", "h2 B", "p y", "h1 C #c", "p z")
    target = page("h1 a", "p x1", "h1 more", "p m", "h2 b", "p y1", "h1 c #c", "p z1")
    assert align_by_order(source, target) == [("C", "c"), ("z", "z1")]


@pytest.mark.parametrize(
    "pair",
    [
        ("Open the file.", "Die Datei öffnen."),
        ("a" * 10, "b" * 40),
        ("a" * 10, "b" * 3),
        ("The use of for and if", "Die Verwendung von for und if, die of und the heißt"),
        ("UTF-8", "UTF-8-Kodierung"),
    ],
)
def test_good_pairs_stay_as_they_are(pair):
    assert clean_pairs([pair]) == [pair]


@pytest.mark.parametrize(
    "pair",
    [
        ("same", "same"),
        ("same", " same "),
        ("12.5 %", "12,5 %"),
        ("word", "—"),
        ("a" * 10, "b" * 41),
        ("a" * 10, "b" * 2),
        ("See the list in Section 2.", "See the list in Abschnitt 2 of it."),
    ],
)
def test_bad_pairs_go(pair):
    assert clean_pairs([pair]) == []


def test_texts_are_tidied():
    pair = ("cafe\u0301  now ", "Cafe\u0301\u00a0jetzt")
    assert clean_pairs([pair]) == [("caf\u00e9 now", "Caf\u00e9 jetzt")]


def test_fingerprints_ignore_case_numbers_and_punctuation_only():
    assert fingerprint("3.2. Größe (Pixel)") == fingerprint("14.1 größe, pixel")
    assert fingerprint("Open file") != fingerprint("Openfile")
    assert fingerprint("Groß") == fingerprint("GROSS")
