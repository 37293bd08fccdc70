"""Pages of the repository become pages of the site."""

import pytest

from docs_site.pages import for_site, repository_path, site_path


@pytest.mark.parametrize(
    "path",
    ["README.md", "CHANGES.md", "docs/log.md", "docs/api/layers.md", "benchmarks/README.md"],
)
def test_way_to_the_site_and_back(path):
    assert repository_path(site_path(path)) == path


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("README.md", "docs/log.md#gpu", "log.md#gpu"),
        ("docs/log.md", "../README.md", "index.md"),
        ("docs/log.md", "figures/a.svg", "figures/a.svg"),
        ("docs/api/layers.md", "../scaling.md", "../scaling.md"),
        ("docs/support.md", "../benchmarks/checks/a.json", "benchmarks/checks/a.json"),
        ("benchmarks/README.md", "../docs/log.md", "../log.md"),
        ("benchmarks/README.md", "results/a.json", "results/a.json"),
        ("docs/log.md", "#below", "#below"),
        ("docs/log.md", "https://arxiv.org/abs/1", "https://arxiv.org/abs/1"),
    ],
)
def test_links_lead_to_where_files_lie_on_the_site(page, link, moved):
    assert for_site(f"a [b]({link}) c", page) == f"a [b]({moved}) c\n"


def test_code_stays_as_it_is():
    text = "```\n[a](../README.md)\n  two\n- item\n```\n`x[i](../y)`\n"
    assert for_site(text, "docs/log.md") == text


def test_lists_and_what_is_inside_them_are_as_python_markdown_wants_them():
    text = "Words:\n- one\n  more\n  - two\n\n1. a\n   b\n\n    code\n"
    expected = "Words:\n\n- one\n    more\n    - two\n\n1. a\n    b\n\n    code\n"
    assert for_site(text, "docs/log.md") == expected


def test_items_behind_a_paragraph_of_an_item_stay_items():
    text = "- one:\n\n  <!-- numbers: x -->\n  | a |\n  |---|\n  <!-- end -->\n\n  more\n- two\n"
    expected = "- one:\n\n\n    | a |\n    |---|\n\n\n    more\n\n- two\n"
    assert for_site(text, "docs/log.md") == expected


def test_table_behind_a_line_of_words_is_a_table():
    text = "Words\n| a |\n|---|\n| b |\n"
    assert for_site(text, "docs/log.md") == "Words\n\n| a |\n|---|\n| b |\n"
