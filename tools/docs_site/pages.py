"""Pages of the repository as pages of the site: where they lie there, and their Markdown.

All pages are written for GitHub, where links are paths in the repository. On the site ``docs/`` is
the root, README is the front page, and files outside ``docs/`` that pages link to come along.
"""

import posixpath
import re
from collections.abc import Iterator

DOCS = "docs/"
FENCE = "```"
FRONT = {"README.md": "index.md"}
"""Pages that have another name on the site."""
BROUGHT = (
    *("README.md", "CHANGES.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff"),
    *("benchmarks/README.md", "benchmarks/results/*.json", "benchmarks/checks/*.json"),
    *(
        f"benchmarks/results/{folder}/*.json"
        for folder in ("fa4", "launched", "one_pass", "sequence", "sums", "triton_3_9")
    ),
    *("configs/*.yaml", "examples/*.py", "examples/*.ipynb"),
)
"""Files outside docs/ that are on the site."""
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")
_CODE = re.compile(r"`[^`]+`")
_MARKER = re.compile(r"<!-- .* -->")
_ITEM = re.compile(r" *(?:[-*]|\d+\.) ")


def site_path(path: str) -> str:
    """Where a file of the repository lies on the site.

    Example:
        >>> site_path("docs/data.md"), site_path("README.md"), site_path("examples/a.py")
        ('data.md', 'index.md', 'examples/a.py')
    """
    return FRONT.get(path, path.removeprefix(DOCS))


def repository_path(path: str) -> str:
    """Where a file of the site lies in the repository; the way back.

    Example:
        >>> repository_path("api/layers.md"), repository_path("benchmarks/README.md")
        ('docs/api/layers.md', 'benchmarks/README.md')
    """
    back = {site: file for file, site in FRONT.items()}
    outside = {pattern.rpartition("/")[0] for pattern in BROUGHT if "/" in pattern}
    if path in back:
        return back[path]
    is_outside = path in BROUGHT or posixpath.dirname(path) in outside
    return path if is_outside else DOCS + path


def for_site(text: str, path: str) -> str:
    """A page's Markdown for mkdocs.

    Args:
        text: as GitHub reads it.
        path: of the page in the repository.

    Example:
        >>> for_site("See [it](../README.md#use):\\n- one", "docs/data.md").splitlines()
        ['See [it](index.md#use):', '', '- one']
    """
    lines: list[str] = []
    is_tight = False
    for line, is_code in _lines(text):
        if is_code:
            lines.append(line)
            continue
        before = lines[-1].strip() if lines else ""
        is_item = bool(_ITEM.match(line))
        begins_table = line.lstrip().startswith("|") and not before.startswith("|")
        if before and (begins_table or (is_item and not is_tight)):
            lines.append("")  # Python-Markdown begins no list, item or table inside a paragraph
        is_tight = is_item or (is_tight and line.startswith(" "))
        lines.append("" if _MARKER.fullmatch(line.strip()) else _indented(_moved(line, path)))
    return "\n".join(lines) + "\n"


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Lines, and whether they are part of a block of code."""
    is_code = False
    for line in text.splitlines():
        is_fence = line.strip().startswith(FENCE)
        yield line, is_code or is_fence
        is_code ^= is_fence


def _indented(line: str) -> str:
    """What belongs to an item has four spaces there; GitHub asks for two or three."""
    width = len(line) - len(line.lstrip(" "))
    return "    " + line.lstrip(" ") if 0 < width < 4 else line


def _moved(line: str, path: str) -> str:
    """A line whose links lead to where files lie on the site."""
    here = posixpath.dirname(site_path(path))

    def target(link: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
        return posixpath.relpath(site_path(file), here or ".")

    parts = _CODE.split(line)
    codes = [*_CODE.findall(line), ""]
    return "".join(_LINK.sub(target, a) + b for a, b in zip(parts, codes, strict=True))
