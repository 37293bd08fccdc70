"""HTML whose text is escaped unless it was made here.

A plain string is text and is escaped; an ``Html`` is markup and stays: no section can
forget it.
"""

import math
import re
from collections.abc import Collection, Iterable
from html import escape
from typing import NamedTuple, TypeAlias

_VOID = frozenset({"img", "input", "meta", "wbr"})
MOST_COLUMNS = 8
"""So many stand beside each other on paper; more need small type."""


class Html(str):
    """Markup that is safe to put into a page."""

    __slots__ = ()


Child: TypeAlias = str | int | float


class Cell(NamedTuple):
    """A cell of a table that shows one thing and is sorted and downloaded as another.

    Attributes:
        shown: what stands in the page.
        value: what it is; None is missing, and comes last in every order.
    """

    shown: Child
    value: Child | None


def text(value: Child) -> Html:
    """A value as markup; what is markup already is not touched.

    Example:
        >>> text("a < b"), text(Html("<b>"))
        ('a &lt; b', '<b>')
    """
    return value if isinstance(value, Html) else Html(escape(str(value)))


def join(children: Iterable[Child], between: Child = "") -> Html:
    """Children one after another."""
    return Html(text(between).join(text(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: Child | bool) -> Html:
    """An element. ``class_`` is class, ``data_x`` is data-x; True is a bare attribute, False none.

    Example:
        >>> tag("p", "1 < 2", class_="note")
        '<p class="note">1 &lt; 2</p>'
    """
    words = [name]
    for key, value in attributes.items():
        label = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(label)
        elif value is not False:
            words.append(f'{label}="{escape(str(value))}"')
    opening = Html(f"<{' '.join(words)}>")
    return opening if name in _VOID else Html(f"{opening}{join(children)}</{name}>")


def table(
    head: Iterable[Child],
    rows: Iterable[Iterable[Child | Cell]],
    *,
    label: str,
    file: str,
    hidden: Collection[int] = (),
) -> Html:
    """A table that scrolls sideways by itself where the screen is narrow.

    The page's script lets readers sort it by a heading and download it.

    Args:
        head: a heading for each column.
        rows: the first cell of a row names it.
        label: says to screen readers what the table holds.
        file: what the download is called, as "runs.csv".
        hidden: columns that only the download has.
    """
    lines = [list(row) for row in rows]
    texts = [any(map(_is_text, column)) for column in zip(*lines, strict=True)]
    headings = list(head)
    texts += [False] * (len(headings) - len(texts))  # without rows
    titles = [
        tag("th", _breakable(cell), scope="col", hidden=i in hidden, **_align(is_text))
        for i, (cell, is_text) in enumerate(zip(headings, texts, strict=True))
    ]
    body = [
        tag("tr", *(_cell(cell, i, texts[i], i in hidden) for i, cell in enumerate(line)))
        for line in lines
    ]
    inner = tag("table", tag("thead", tag("tr", *titles)), tag("tbody", *body), data_file=file)
    scroll = tag("div", inner, class_="scroll", role="region", aria_label=label, tabindex=0)
    is_wide = len(headings) - len(hidden) > MOST_COLUMNS
    return tag("div", scroll, class_="table wide" if is_wide else "table")


def _breakable(heading: Child) -> Html:
    """A heading that may go on in the next line behind "." and "_", as names of numbers must."""
    if isinstance(heading, Html):
        return heading
    return join(re.split(r"(?<=[._])(?=.)", str(heading)), between=tag("wbr"))


def _is_text(cell: Child | Cell) -> bool:
    return isinstance(cell.value if isinstance(cell, Cell) else cell, str)


def _align(is_text: bool) -> dict[str, str]:
    return {"class_": "text"} if is_text else {}


def _cell(cell: Child | Cell, column: int, is_text: bool, is_hidden: bool) -> Html:
    """A cell; its value stands beside what it shows where the two differ."""
    name = "td" if column else "th"
    if not isinstance(cell, Cell):
        return tag(name, cell, hidden=is_hidden, **_align(is_text))
    value = _exact(cell.value)
    return tag(name, cell.shown, data_value=value, hidden=is_hidden, **_align(is_text))


def _exact(value: Child | None) -> str:
    """A value with all its digits, as JavaScript reads it; nothing for a missing one."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return "" if value is None else str(value)
