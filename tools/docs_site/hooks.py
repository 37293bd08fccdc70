"""What mkdocs calls while it builds the site; mkdocs.yml names this file."""

import re
from html import unescape
from pathlib import Path
from typing import Any

from docs_site.pages import BROUGHT, for_site, repository_path, site_path

ROOT = Path(__file__).parents[2]
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the files that lie outside docs/."""
    from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

    for pattern in BROUGHT:
        for path in sorted(ROOT.glob(pattern)):
            place = site_path(path.relative_to(ROOT).as_posix())
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page as mkdocs reads Markdown."""
    return for_site(markdown, repository_path(page.file.src_uri))


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers show without a script."""
    from latex2mathml.converter import convert  # pyright: ignore[reportMissingImports]

    def formula(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(unescape(found[2]), display=display)

    return _FORMULA.sub(formula, html)
