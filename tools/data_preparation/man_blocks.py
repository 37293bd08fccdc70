"""Blocks of a manual page: headings, tags and paragraphs of roff with the man macros."""

import re
from collections.abc import Callable

from data_preparation.blocks import LISTING, Block, collapse

HEADING_MACROS = ("SH", "SS")
PARAGRAPH_MACROS = ("PP", "P", "LP", "HP", "RS", "RE", "sp")
TAG_MACROS = ("TP", "TQ")
JOINED_MACROS = ("BR", "RB", "IR", "RI", "BI", "IB")
SPACED_MACROS = ("B", "I", "SM", "SB", "R")
DEFINITION = "de"
ENDS_OF_LISTINGS = {"nf": "fi", "EX": "EE", "TS": "TE", "SY": "YS", DEFINITION: "."}
OTHER_MACROS = ("Dd", "Sh")  # pages in mdoc

_CHARACTERS = {
    **{"aq": "'", "dq": '"', "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "Bq": "„", "bq": "‚"},
    **{"Fo": "«", "Fc": "»", "fo": "‹", "fc": "›", "ga": "`", "ha": "^", "ti": "~", "rs": "\\"},
    **{"bu": "•", "em": "—", "en": "–", "hy": "-", "co": "©", "rg": "®", "tm": "™", "de": "°"},
    **{"mu": "×", "+-": "±", "<=": "≤", ">=": "≥", "!=": "≠", "->": "→", "<-": "←", "mc": "µ"},
    **{"ss": "ß", ":a": "ä", ":o": "ö", ":u": "ü", ":A": "Ä", ":O": "Ö", ":U": "Ü", "'e": "é"},
    **{"if": "∞", "sc": "§", "ps": "¶", "Po": "£", "Eu": "€", "12": "½", "14": "¼", "*p": "π"},
    **{"Aq": "'", "Tm": "™", "R": "®", "la": "⟨", "ra": "⟩", "or": "|", "at": "@", "sh": "#"},
}
_ESCAPE = re.compile(
    r"""\\(?:
      f(?:\[[^]]*\]|\(..|.)                 # font
    | s[+-]?\d+ | m\[[^]]*\] | n(?:\(..|\[[^]]*\]|.) | k.
    | [hvwbDlLoZ]'[^']*'                    # motions, drawings
    | \*?\((?P<two>..) | \*?\[(?P<name>[^]]*)\] | \*(?P<one>.)
    | (?P<char>.)
    )""",
    re.VERBOSE,
)
_PLAIN = {**dict.fromkeys(" ~0t", " "), "-": "-", "e": "\\", "\\": "\\", "'": "'", "`": "`"}
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|((?:\\.|[^\s\\])+)')
_COMMENT = re.compile(r'(?<!\\)\\["#].*')


def read_man(page: str) -> list[Block]:
    r"""The blocks of a page, in order; none of a page that only names another.

    Example:
        >>> page = read_man('.SH NAME\nls \\- list\n.TP\n.BI \\-C\\~ n\nIn\n.IR columns .')
        >>> [(block.kind, block.text) for block in page]
        [('SH', 'NAME'), ('p', 'ls - list'), ('tag', '-C n'), ('p', 'In columns.')]
    """
    return _Reader().read(page)


def _unescape(text: str) -> str:
    """Text as it is printed, without fonts and motions."""
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    name = match["two"] or match["name"] or match["one"]
    if name is None:
        return _PLAIN.get(match["char"] or "", "")
    if re.fullmatch(r"u[0-9A-F]{4,6}", name):
        return chr(int(name[1:], 16))
    return _CHARACTERS.get(name, "")


def _arguments(text: str) -> list[str]:
    """What follows a macro; quotes hold spaces, doubled ones stand for one."""
    return [
        plain or quoted.replace('""', '"')
        for quoted, plain in (match.groups(default="") for match in _ARGUMENT.finditer(text))
    ]


class _Reader:
    """Goes through the lines of a page; macros end blocks or add words to them."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._words: list[str] = []
        self._kind = "p"
        self._listing_end = ""
        self._address = ""

    def read(self, page: str) -> list[Block]:
        """All blocks."""
        for line in page.replace("\\\n", "").split("\n"):
            if line.startswith((".", "'")):
                name, _, rest = line[1:].strip().partition(" ")
                if name in OTHER_MACROS:
                    return []
                self._take_macro(name, _COMMENT.sub("", rest))
            elif not self._listing_end:
                self._take_text(_COMMENT.sub("", line))
        self._end_block()
        return self._blocks

    def _take_text(self, line: str) -> None:
        if not line.strip():
            self._end_block()
            return
        self._add(line)
        self._after_line()

    def _add(self, text: str) -> None:
        """Words of the current block; ``\\c`` at the end of a line joins the next one to it."""
        self._words.append(text.removesuffix("\\c") if text.endswith("\\c") else text + " ")

    def _after_line(self) -> None:
        """A heading or a tag is one line."""
        if self._kind != "p" and not (self._words and not self._words[-1].endswith(" ")):
            self._end_block()

    def _end_block(self) -> None:
        text = collapse(_unescape("".join(self._words)))
        if text:
            self._blocks.append(Block(self._kind, text))
        self._words = []
        self._kind = "p"

    def _take_macro(self, name: str, rest: str) -> None:
        if self._listing_end and name in HEADING_MACROS:
            self._listing_end = ""  # a heading ends what nobody ended
        if self._listing_end:
            if name == self._listing_end:
                self._listing_end = ""
        elif name in ENDS_OF_LISTINGS:
            self._end_block()
            if name != DEFINITION:
                self._blocks.append(Block(LISTING, ""))
            self._listing_end = ENDS_OF_LISTINGS[name]
        elif name in JOINED_MACROS or name in SPACED_MACROS:
            self._add(("" if name in JOINED_MACROS else " ").join(_arguments(rest)))
            self._after_line()
        elif act := _ACTS.get(name):
            act(self, rest)

    def _start_heading(self, kind: str, rest: str) -> None:
        self._end_block()
        self._kind = kind
        if rest.strip():
            self._add(" ".join(_arguments(rest)))
            self._end_block()

    def _start_tag(self, rest: str) -> None:
        self._end_block()
        self._kind = "tag"

    def _start_item(self, rest: str) -> None:
        self._end_block()
        if words := _arguments(rest)[:1]:
            self._kind = "tag"
            self._add(words[0])
            self._end_block()

    def _start_paragraph(self, rest: str) -> None:
        self._end_block()

    def _break_line(self, rest: str) -> None:
        self._add("")

    def _start_link(self, rest: str) -> None:
        self._address = rest.strip()
        self._words.append("\\&")  # marks where the link's text begins

    def _end_link(self, rest: str) -> None:
        """A link without a text shows its address; what follows comes without a space."""
        if self._words and self._words[-1] == "\\&":
            self._words.append(f"<{self._address}>")
        elif self._words:
            self._words[-1] = self._words[-1].rstrip(" ")
        self._add("".join(_arguments(rest)))


_ACTS: dict[str, Callable[[_Reader, str], None]] = {
    **dict.fromkeys(PARAGRAPH_MACROS, _Reader._start_paragraph),
    **dict.fromkeys(TAG_MACROS, _Reader._start_tag),
    "SH": lambda reader, rest: reader._start_heading("SH", rest),
    "SS": lambda reader, rest: reader._start_heading("SS", rest),
    "IP": _Reader._start_item,
    "br": _Reader._break_line,
    "UR": _Reader._start_link,
    "MT": _Reader._start_link,
    "UE": _Reader._end_link,
    "ME": _Reader._end_link,
}
