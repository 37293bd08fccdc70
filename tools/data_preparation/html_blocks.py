"""Blocks of an HTML page: text between block-level tags, without navigation and listings."""

import re
from html.parser import HTMLParser

from data_preparation.blocks import LISTING, Block, collapse

BLOCKS = (
    "html body p h1 h2 h3 h4 h5 h6 ul ol li dl dt dd table thead tbody tfoot tr td th div pre "
    "blockquote caption header footer nav aside"
)
VOIDS = "area base br col hr img input link meta wbr"
LEFT_OUT = "head script style nav header footer aside button pre"
NAVIGATION = (
    "navheader navfooter toc list-of-figures list-of-tables list-of-examples docnav indexdiv"
)
BLOCK_TAGS, VOID_TAGS = frozenset(BLOCKS.split()), frozenset(VOIDS.split())
LEFT_OUT_TAGS, LEFT_OUT_CLASSES = frozenset(LEFT_OUT.split()), frozenset(NAVIGATION.split())
LEFT_OUT_IDS = frozenset(("banner", "title"))  # the handbook's head of a page
_AUTOMATIC = re.compile(r"id[a-z]{0,2}-?[\d.]+|ftn\..*")
_OTHER_SYSTEM = "MAC"


def read_html(page: str) -> list[Block]:
    """The blocks of a page, in order.

    Example:
        >>> heading, item = read_html("<h1><a id='go'></a>Go</h1><ul><li id='i'>A <b>b</b></ul>")
        >>> heading
        Block(kind='h1', text='Go', key='', anchor='go')
        >>> item
        Block(kind='ul/li', text='A b', key='i', anchor='')
    """
    reader = _Reader()
    reader.feed(page)
    reader.close()
    reader.end_block()
    return reader.blocks


class _Reader(HTMLParser):
    """Collects text; a block-level tag, opened or closed, ends a block.

    Where the page holds one text for each operating system or program (``switchinline``), the
    default is taken, or the first that is not for a Mac.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self._open: list[tuple[str, str]] = []  # tag and id
        self._left_out = 0  # open tags of a part that is left out
        self._text: list[str] = []
        self._anchor = ""
        self._switches: list[tuple[int, int]] = []  # open tags and texts when each began

    def end_block(self) -> None:
        """Make a block of the text since the last one."""
        text = collapse("".join(self._text))
        self._text = []
        if text:
            inside = [(tag, name) for tag, name in self._open if tag in BLOCK_TAGS]
            kind = "/".join(tag for tag, _ in inside)
            name = inside[-1][1] if inside else ""
            self.blocks.append(Block(kind, text, name, self._anchor))
            self._anchor = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a tag."""
        if tag == "br":
            self._text.append(" ")
        if tag in VOID_TAGS:
            return
        given = {name: value or "" for name, value in attrs}
        classes = given.get("class", "").split()
        if tag in BLOCK_TAGS and not self._left_out:
            self.end_block()
        if self._left_out or self._is_left_out(tag, classes, given.get("id", "")):
            self._left_out += 1
            if tag == "pre" and self._left_out == 1:
                self.blocks.append(Block(LISTING, ""))
        elif tag == "a":
            self._take_anchor(given.get("id") or given.get("name") or "")
        self._open.append((tag, given.get("id", "")))
        if "switchinline" in classes and not self._left_out:
            self._switches.append((len(self._open), len(self._text)))

    def _is_left_out(self, tag: str, classes: list[str], name: str) -> bool:
        if tag in LEFT_OUT_TAGS or name in LEFT_OUT_IDS or LEFT_OUT_CLASSES & set(classes):
            return True
        if not self._switches or self._switches[-1][0] != len(self._open):
            return False
        start = self._switches[-1][1]
        if name.startswith("default"):
            del self._text[start:]
        return _OTHER_SYSTEM in classes or bool("".join(self._text[start:]).strip())

    def _take_anchor(self, name: str) -> None:
        if name and not self._anchor and not _AUTOMATIC.fullmatch(name):
            self._anchor = name

    def handle_endtag(self, tag: str) -> None:
        """Close a tag, and those in it that were left open; a stray end is nothing."""
        if tag in VOID_TAGS or all(tag != other for other, _ in self._open):
            return
        if tag in BLOCK_TAGS and not self._left_out:
            self.end_block()
        while self._open:
            closed, _ = self._open.pop()
            self._left_out = max(0, self._left_out - 1)
            while self._switches and self._switches[-1][0] > len(self._open):
                self._switches.pop()
            if closed == tag:
                break

    def handle_data(self, data: str) -> None:
        """Keep text, unless it is left out."""
        if not self._left_out:
            self._text.append(data)
