"""One file that holds a page, models and a runtime, and asks no server for anything.

A browser that opens a file refuses to fetch others beside it, so all of it is inside: scripts as
they are, binaries as base64 of gzip, which browsers unpack themselves. So it works by a double
click, from a mail or from any static host.
"""

import base64
import gzip
from importlib.resources import files

from flashpoint.files import json_text
from flashpoint.lab.browser.contents import Contents
from flashpoint.lab.browser.runtime import VERSION, Runtime
from flashpoint.lab.report.html import Html, tag
from flashpoint.lab.report.page import frame
from flashpoint.version import __version__

_POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:; connect-src blob:"
)
"""The browser itself refuses to fetch anything but parts of the page, which scripts name blob:."""
_SCRIPTS = (
    *("packed.js", "pixels.js", "digits.js", "network.js", "heat.js", "answers.js", "notes.js"),
    *("pad.js", "page.js"),
)


def build_page(title: str, contents: Contents, runtime: Runtime) -> str:
    """The whole page."""
    facts = {**contents.facts, "title": title, "version": __version__, "runtime": VERSION}
    binaries = {"loader": runtime.loader, "program": runtime.program}
    for number, graphs in enumerate(contents.graphs):
        binaries |= {
            f"logits-{number}": graphs.logits,
            f"maps-{number}": graphs.maps,
            f"tensors-{number}": graphs.tensors,
        }
    parts = [Html(_asset("page.html")), _data("facts", json_text(facts))]
    parts += [_data(name, _packed(content)) for name, content in binaries.items()]
    parts.append(tag("script", Html(runtime.script.decode())))
    parts += [tag("script", Html(_asset(name))) for name in _SCRIPTS]
    body = tag("body", *parts, aria_busy="true")
    return frame(title, _POLICY, _asset("page.css"), body)


def _data(name: str, text: str) -> Html:
    """Text that scripts read and browsers do not run; "<" could end it early."""
    escaped = Html(text.replace("<", "\\u003c"))
    return tag("script", escaped, type="text/plain", id=name)


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _asset(name: str) -> str:
    return (files("flashpoint.lab.browser") / name).read_text(encoding="utf-8")
