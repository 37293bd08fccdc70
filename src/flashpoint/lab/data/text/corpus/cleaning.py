"""Pairs that are good enough to learn from."""

import re
import unicodedata
from collections.abc import Iterable

from flashpoint.lab.data.text.corpus.alignment import Pair
from flashpoint.lab.data.text.corpus.blocks import collapse

MIN_RATIO, MAX_RATIO = 0.3, 4.0
ENGLISH = (
    "the of and to is that for it with are this be on by not or you can from if which have has "
    "when these your at then but other there its they does"
)
GERMAN = (
    "der die das und ist den von zu mit für sie nicht ein eine auf im es dem des sich werden "
    "wird oder wenn kann dass aus zum zur bei nach einen einer wie sind diese dieser"
)
_ENGLISH_WORDS, _GERMAN_WORDS = frozenset(ENGLISH.split()), frozenset(GERMAN.split())
_WORD = re.compile(r"[^\W\d_]+")
_LETTERS = re.compile(r"[^\W\d_]")
_NO_LETTERS = re.compile(r"[\W\d_]+")


def clean_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    """Pairs with letters, that differ, and whose lengths are comparable.

    A pair goes if a side has no letter, if both sides are the same, if the target's length over
    the source's, in characters, is not in [0.3, 4], or if the target is English still: with
    references that programs translate ("See Abschnitt 2") it need not be the same.

    Example:
        >>> clean_pairs([(" Open  the file", "Die Datei öffnen"), ("open", "open"), ("1.", "2.")])
        [('Open the file', 'Die Datei öffnen')]
    """
    tidy = ((tidy_text(source), tidy_text(target)) for source, target in pairs)
    return [pair for pair in tidy if is_good(*pair)]


def tidy_text(text: str) -> str:
    """Composed characters, single spaces."""
    return collapse(unicodedata.normalize("NFC", text))


def is_good(source: str, target: str) -> bool:
    """Whether a pair is kept."""
    if not _LETTERS.search(source) or not _LETTERS.search(target):
        return False
    if source == target or not MIN_RATIO <= len(target) / len(source) <= MAX_RATIO:
        return False
    return not is_english(target)


def is_english(text: str) -> bool:
    """Whether a text has two or more of English's small words, and fewer of German's.

    Example:
        >>> is_english("These options are described in Abschnitt 2, „Funktionen“.")
        True
    """
    words = _WORD.findall(text.lower())
    num_english = sum(word in _ENGLISH_WORDS for word in words)
    return num_english >= 2 and num_english > sum(word in _GERMAN_WORDS for word in words)


def fingerprint(text: str) -> str:
    """What two texts share that differ only in case, numbers and punctuation.

    Example:
        >>> fingerprint("Figure 3.2. Open, now") == fingerprint("figure 14.1: open now!")
        True
    """
    return _NO_LETTERS.sub(" ", text).casefold().strip()
