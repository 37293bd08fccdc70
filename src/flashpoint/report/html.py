"""HTML whose text is escaped unless it was made here.

A plain string is text and is escaped; an ``Html`` is markup and stays: no section can
forget it.
"""

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

_VOID = frozenset({"img", "input", "meta"})


class Html(str):
    """Markup that is safe to put into a page."""

    __slots__ = ()


Child: TypeAlias = str | int | float


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


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], *, label: str) -> Html:
    """A table that scrolls sideways by itself where the screen is narrow.

    The first cell of a row names it; ``label`` says to screen readers what the table holds.
    """
    body = [
        tag("tr", *(tag("td" if i else "th", cell) for i, cell in enumerate(row))) for row in rows
    ]
    heading = tag("tr", *(tag("th", cell) for cell in head))
    inner = tag("table", tag("thead", heading), tag("tbody", *body))
    return tag("div", inner, class_="scroll", role="region", aria_label=label, tabindex=0)
