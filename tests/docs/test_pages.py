"""README and docs: links lead somewhere, figures are shown, quotes are what they quote."""

import re
from pathlib import Path

import pytest
import yaml

import flashpoint
from docs_numbers.documents import pair_scores
from docs_numbers.images import TOKENS, cifar_top1
from docs_numbers.stored import Stored

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
STORED = Stored(ROOT)
README_LINES = 100
FIRST_CODE_LINES = 25


def anchors(page):
    """Of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    file = ROOT / page
    for link in re.findall(r"\]\(([^)\s]+)\)", file.read_text("utf-8")):
        if link.startswith("https://"):
            continue
        place, _, anchor = link.partition("#")
        target = file.parent / place if place else file
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_figure_is_there_and_shown():
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    shown = set(re.findall(r"\(figures/([^)]*)\)", page))
    assert shown == {file.name for file in (ROOT / "docs" / "figures").glob("*.svg")}
    for study in sorted(folder.name for folder in (ROOT / "results").iterdir()):
        assert any(figure.startswith(study) for figure in shown), study


def test_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert str(citation["version"]) == flashpoint.__version__


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES


def test_readme_shows_code_at_once():
    head = (ROOT / "README.md").read_text("utf-8").splitlines()[:FIRST_CODE_LINES]
    code = "\n".join(head).partition("```python\n")[2]
    assert "```" in code


@pytest.mark.parametrize(("twin", "name"), [("softmax", "softmax"), ("relu", "ReLUFormer")])
def test_samples_are_what_was_translated(twin, name):
    file = ROOT / "benchmarks" / "results" / "en_de_docs" / f"sample-{twin}.txt"
    translated = file.read_text("utf-8")
    page = (ROOT / "docs" / "samples.md").read_text("utf-8").splitlines()
    quoted = [line.split(" | ")[1].removesuffix(" |") for line in page if f"| {name} | " in line]
    assert len(quoted) == 6
    assert all(text in translated for text in quoted), quoted


def head_of(config):
    """The comments of a shipped config as one line."""
    text = (ROOT / "configs" / config).read_text("utf-8")
    return " ".join(" ".join(re.findall(r"^#(.*)$", text, re.MULTILINE)).split())


def test_heads_of_configs_quote_the_stored_runs():
    for patch in TOKENS:
        for twin in ("softmax", "relu"):
            mean = cifar_top1(STORED, patch, twin).mean()
            assert f"{mean:.1f}%" in head_of("cifar10.yaml")
    softmax, relu = (pair_scores(STORED, twin)["all"]["bleu"] for twin in ("softmax", "relu"))
    assert f"{relu:.1f} BLEU and softmax {softmax:.1f}" in head_of("en_de_docs.yaml")
