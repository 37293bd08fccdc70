"""A page taken apart, as far as tests ask."""

import json
from html.parser import HTMLParser


class Page(HTMLParser):
    """Text of every element by tag, and all addresses."""

    def __init__(self, page):
        super().__init__()
        self.stack, self.texts, self.addresses, self.figures = [], [], [], []
        self.feed(page)
        assert not self.stack, f"left open: {self.stack}"

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.addresses += [attributes[key] for key in ("src", "href") if key in attributes]
        if tag not in ("meta", "img", "wbr"):
            self.stack.append((tag, attributes.get("type")))

    def handle_endtag(self, tag):
        assert self.stack.pop()[0] == tag

    def handle_data(self, data):
        if ("script", "application/json") in self.stack:
            self.figures.append(json.loads(data))
        elif self.stack and self.stack[-1][0] not in ("script", "style") and data.strip():
            self.texts.append((self.stack[-1][0], data.strip()))

    def of(self, *tags):
        return [text for tag, text in self.texts if tag in tags]
