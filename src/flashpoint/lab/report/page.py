"""One self-contained page from sections: styles, script and plotly inside, nothing fetched."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from flashpoint.errors import InputError, require
from flashpoint.lab.report.html import Child, Html, join, tag

_POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'"
)
"""The browser itself refuses to fetch anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of a page.

    Attributes:
        title: what its heading says.
        anchor: its address within the page.
        link: what the contents call it; empty: the title.
        is_folded: its heading alone is shown until a click, or a link to it; printed all the same.
    """

    title: str
    anchor: str
    body: Html
    link: Child = ""
    is_folded: bool = False


def build_page(title: str, summary: Child, sections: Sequence[Section]) -> str:
    """The whole page. ``summary`` stands below the title; sections follow in order."""
    links = [tag("a", part.link or part.title, href=f"#{part.anchor}") for part in sections]
    nav = tag(
        "nav",
        tag("button", "Contents", type="button", popovertarget="contents", class_="opener"),
        tag("button", "Light or dark", type="button", id="theme"),
        tag("div", *links, id="contents", popover=True),
        aria_label="contents",
    )
    header = tag("header", tag("h1", title), tag("div", summary, class_="summary"))
    body = [tag("section", _shown(section), id=section.anchor) for section in sections]
    codes = (_plotly(), asset("page.js"), asset("tables.js"))
    scripts = [tag("script", Html(code)) for code in codes]
    content = tag("body", nav, header, tag("main", *body), *scripts)
    return frame(title, _POLICY, asset("page.css"), content)


def frame(title: str, policy: str, style: str, body: Html) -> str:
    """A whole document in our colors: what it may load, its own style, its body."""
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", title),
            tag("style", Html(asset("theme.css") + style)),
        ]
    )
    page = tag("html", tag("head", head), body, lang="en")
    return f"<!doctype html>\n{page}\n"


def _shown(section: Section) -> Html:
    heading = tag("h2", section.title)
    return fold(heading, section.body) if section.is_folded else join([heading, section.body])


def fold(title: Child, body: Html, *, is_printed: bool = True) -> Html:
    """A part that a click opens; on paper it is open if ``is_printed``, else left out."""
    return tag("details", tag("summary", title), body, class_=is_printed and "printed")


def write_page(page: str, file: Path) -> None:
    """Put a page into a file, whose folder is made if need be."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the page {file}: {error.strerror}.") from error


def asset(name: str) -> str:
    """A style or script of this folder."""
    return (files("flashpoint.lab.report") / name).read_text(encoding="utf-8")


def _plotly() -> str:
    """plotly's own script, as its Python package carries it."""
    return require("plotly.offline", "the report page").get_plotlyjs()
