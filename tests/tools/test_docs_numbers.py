"""``python -m docs_numbers``: what stands between markers is written and compared."""

import json
import re
import shutil
from pathlib import Path

import pytest

from docs_numbers.__main__ import PLACES, main
from docs_numbers.markers import BEGIN, find_parts
from docs_numbers.tables import TABLES

ROOT = Path(__file__).parents[2]
PAGE = """# Title

before
<!-- numbers: {} -->
<!-- end -->

after
"""


@pytest.fixture
def repository(tmp_path):
    """A README with a table of its own, and the files that it comes from."""
    for place in ("benchmarks/checks", "benchmarks/results"):
        (tmp_path / place).mkdir(parents=True)
    for place in ("benchmarks/checks/h200.json", "benchmarks/results/h200_long.json"):
        shutil.copy(ROOT / place, tmp_path / place)
    (tmp_path / "README.md").write_text(PAGE.format("checks") + PAGE.format("speed-long"))
    return tmp_path


ROW = r"(\| forward, head dim 64 \| )\d\.\d\d \|"


def run(repository, *options):
    return main([*options, "--root", str(repository)])


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_tables_are_written_once_and_stay(repository, capsys):
    assert run(repository) == 0
    page = repository / "README.md"
    first = page.read_text()
    assert re.search(ROW, first)
    assert first.count("before\n<!-- numbers: ") == 2
    assert first.endswith("<!-- end -->\n\nafter\n")
    assert "README.md is written anew" in capsys.readouterr().out
    assert run(repository) == 0
    assert run(repository, "--check") == 0
    assert page.read_text() == first
    assert capsys.readouterr().out == ""


def test_check_writes_nothing(repository):
    before = (repository / "README.md").read_text()
    assert run(repository, "--check") == 1
    assert (repository / "README.md").read_text() == before


def test_changed_stored_number_is_named_with_its_file_and_table(repository, capsys):
    run(repository)
    capsys.readouterr()
    file = repository / "benchmarks" / "checks" / "h200.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"judged": 123}))
    assert run(repository, "--check") == 1
    first, was, now, advice = lines(capsys)
    assert re.fullmatch(r"README.md:\d+: numbers 'checks' differ from the stored files", first)
    assert f"| {content['judged']} |" in was
    assert "| 123 |" in now
    assert "make docs-numbers" in advice


def test_changed_number_in_a_document_is_found(repository, capsys):
    run(repository)
    page = repository / "README.md"
    page.write_text(re.sub(ROW, r"\g<1>9.99 |", page.read_text()))
    assert run(repository, "--check") == 1
    assert "numbers 'speed-long' differ" in lines(capsys)[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PAGE.format("speed-lomg"), "README.md:4: numbers 'speed-lomg' are unknown. Did you mean"),
        (PAGE.format(""), "README.md:4: numbers '' are unknown."),
        ("a\n<!-- numbers: checks -->\nb\n", "README.md:2: numbers 'checks' are not closed."),
        ("a\n<!-- end -->\n", "README.md:2: <!-- end --> closes nothing."),
        (PAGE.format("speed-cpu"), "README.md:4: numbers 'speed-cpu': "),
        (PAGE.format("quality"), "README.md:4: numbers 'quality': "),
        (PAGE.format("gate"), "README.md:4: numbers 'gate': "),
    ],
)
def test_what_cannot_be_made_is_one_line_and_stays(repository, capsys, text, message):
    page = repository / "README.md"
    page.write_text(text)
    assert run(repository) == 1
    (line,) = lines(capsys)
    assert line.startswith(message)
    assert page.read_text() == text


def test_second_marker_before_an_end_leaves_the_first_unclosed(repository, capsys):
    (repository / "README.md").write_text("<!-- numbers: checks -->\n" + PAGE.format("checks"))
    assert run(repository) == 1
    assert lines(capsys) == [
        "README.md:1: numbers 'checks' are not closed. End them by a line <!-- end -->."
    ]


def test_markers_in_blocks_of_code_are_text(repository):
    text = "```\n<!-- numbers: nothing -->\n```\n"
    (repository / "README.md").write_text(text)
    assert run(repository) == 0
    assert (repository / "README.md").read_text() == text


def test_table_in_a_list_keeps_the_list_s_indent(repository):
    text = "- item\n\n  <!-- numbers: checks -->\n  <!-- end -->\n"
    (repository / "README.md").write_text(text)
    assert run(repository) == 0
    page = (repository / "README.md").read_text().splitlines()
    assert all(line.startswith("  ") for line in page[2:])


def test_every_table_stands_in_a_document_and_every_marker_is_known():
    used = set()
    for path in (file for place in PLACES for file in ROOT.glob(place)):
        parts, problems = find_parts(path.name, path.read_text("utf-8"))
        assert not problems
        used |= {part.name for part in parts}
    assert used == set(TABLES)
    assert BEGIN.fullmatch("<!-- numbers: speed-long -->")
