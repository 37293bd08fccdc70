"""Pairs: which block of a page is which of its translation, and which pairs are good enough."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from data_preparation.blocks import Block, collapse

Pair = tuple[str, str]
Section = tuple[str, list[Block]]

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


def align_by_key(source: Sequence[Block], target: Sequence[Block]) -> list[Pair]:
    """Blocks with the same key; of a key that occurs again, the same occurrence.

    A key that one page has more often than the other is left out.

    Example:
        >>> page = [Block("p", "One", "1"), Block("p", "Two", "2")]
        >>> align_by_key(page, [Block("p", "Zwei", "2")])
        [('Two', 'Zwei')]
    """
    translations: dict[tuple[str, int], str] = {}
    seen: Counter[str] = Counter()
    for block in target:
        translations[block.key, seen[block.key]] = block.text
        seen[block.key] += 1
    total = Counter(block.key for block in source)
    pairs: list[Pair] = []
    met: Counter[str] = Counter()
    for block in source:
        if block.key and total[block.key] == seen[block.key]:
            pairs.append((block.text, translations[block.key, met[block.key]]))
        met[block.key] += 1
    return pairs


def align_by_order(source: Sequence[Block], target: Sequence[Block]) -> list[Pair]:
    """All blocks in order, if both pages are built alike; else those of sections that are.

    Alike: the same kinds of blocks in the same order, with the same keys and anchors. Sections
    are matched by those of their headings; where a heading has none, by its number, unless the
    levels of the headings say that the pages differ there.

    Example:
        >>> page = [Block("h1", "Top"), Block("p", "A"), Block("h1", "Next"), Block("p", "B")]
        >>> other = [Block("h1", "Kopf"), Block("h1", "Nächstes"), Block("p", "B!")]
        >>> align_by_order(page, other)
        [('Next', 'Nächstes'), ('B', 'B!')]
    """
    if _shape(source) == _shape(target):
        return _texts(source, target)
    sections, others = _sections(source), _sections(target)
    translations = dict(others)
    levels = [[blocks[0].kind for _, blocks in some[1:]] for some in (sections, others)]
    if any(mine != other for mine, other in zip(*levels, strict=False)):
        sections = [section for section in sections if not section[0].isdecimal()]
    pairs: list[Pair] = []
    for name, blocks in sections:
        other = translations.get(name, [])
        if _shape(blocks) == _shape(other):
            pairs += _texts(blocks, other)
    return pairs


def _shape(blocks: Sequence[Block]) -> list[tuple[str, str]]:
    return [(block.kind, block.key or block.anchor) for block in blocks]


def _texts(source: Sequence[Block], target: Sequence[Block]) -> list[Pair]:
    return [(s.text, t.text) for s, t in zip(source, target, strict=True)]


def _sections(blocks: Sequence[Block]) -> list[Section]:
    """The page, cut before every heading."""
    sections: list[Section] = [("0", [])]
    for block in blocks:
        if block.is_heading:
            sections.append((block.key or block.anchor or str(len(sections)), []))
        sections[-1][1].append(block)
    return sections


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
