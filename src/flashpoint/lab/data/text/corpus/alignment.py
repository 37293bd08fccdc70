"""Which block of a page is which block of its translation."""

from collections import Counter
from collections.abc import Sequence

from flashpoint.lab.data.text.corpus.blocks import Block

Pair = tuple[str, str]
Section = tuple[str, list[Block]]


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
