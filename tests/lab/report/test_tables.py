"""Tables in a real browser: sorted by a heading, downloaded as CSV."""

import csv
import io
import random

import pytest

from flashpoint.lab.report.page import Section, build_page, write_page
from flashpoint.lab.report.study_report import data_table
from flashpoint.lab.runs.findings import DataTable

ROWS = (
    ("run 10", 0.5, "b", 1e-05, 3),
    ("run 9", -2.0, "=1+1", None, None),
    ("run 2", None, 'say "a, b"', 12.5, 20),
    ("run 1", 10.0, "a\nb", float("inf"), 100),
)
HEAD = ("name", "value", "text", "small, or large", "count")


def write_table(file, head, rows, download="t.csv"):
    """A page with one table; gives the page's file."""
    body = data_table(DataTable(name="t", title="t", head=head, rows=rows), file=download)
    write_page(build_page("t", "", [Section(title="t", anchor="t", body=body)]), file)
    return file


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("tables") / "page.html"
    return write_table(file, HEAD, ROWS, "numbers.csv")


def column(page, index):
    cells = f"[...document.querySelectorAll('tbody tr')].map(r => r.cells[{index}].textContent)"
    return page.evaluate(cells)


def sorts(page):
    return page.evaluate(
        "[...document.querySelectorAll('thead th')].map(h => h.getAttribute('aria-sort'))"
    )


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def test_numbers_are_sorted_as_numbers_and_missing_ones_come_last(open_page):
    page = open_page()
    press(page, "value")
    assert column(page, 1) == ["-2.0", "0.5", "10.0", "-"]
    assert sorts(page) == ["none", "ascending", "none", "none", "none"]
    press(page, "value")
    assert column(page, 1) == ["10.0", "0.5", "-2.0", "-"]
    assert sorts(page) == ["none", "descending", "none", "none", "none"]
    press(page, "small, or large")
    assert column(page, 3) == ["1e-05", "12.50", "inf", "-"]
    press(page, "count")
    assert column(page, 4) == ["3", "20", "100", "-"]
    assert sorts(page)[3:] == ["none", "ascending"]


WORSE_AS_TEXT = {
    "fractions": (0.5, 0.25, 0.125, 0.0625),
    "below zero": (-2, -10, -0.5, -0.25, 3),
    "small": (0.001, 1e-05, 2e-4, 3e-300),
    "large": (9, 10, 1e21, 2.5e3, -1e21, float("inf"), float("-inf")),
}
"""Numbers that another order puts wrong: letter by letter, or by runs of digits."""


def mixed(seed):
    """Rows of all these numbers in any order, with empty cells, and words in the last column."""
    draw = random.Random(seed)
    columns = [[*numbers, None, float("nan")] for numbers in WORSE_AS_TEXT.values()]
    columns.append([0.5, 0.25, -2, -10, 1e-05, None, "learned", "-", "10 heads", "9 heads", ""])
    for column in columns:
        column += [None] * (max(map(len, columns)) - len(column))
        draw.shuffle(column)
    return [(f"row {number}", *row) for number, row in enumerate(zip(*columns, strict=True))]


def rank(value):
    """Numbers, then words as people sort these."""
    words = ("-", "9 heads", "10 heads", "learned")
    return (1, words.index(value)) if isinstance(value, str) else (0, value)


@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_sorted_as_numbers_whatever_is_among_them(browser, tmp_path, seed):
    rows, head = mixed(seed), ("name", *WORSE_AS_TEXT, "mixed")
    page = browser.new_page()
    page.goto(write_table(tmp_path / "page.html", head, rows).as_uri())
    for index, name in enumerate(head[1:], start=1):
        cells = {row[0]: row[index] for row in rows}
        present = [row for row, cell in cells.items() if cell not in (None, "") and cell == cell]
        wanted = sorted(present, key=lambda row: rank(cells[row]))
        for expected in (wanted, wanted[::-1]):
            press(page, name)
            assert column(page, 0)[: len(wanted)] == expected, name
    page.close()


def test_rows_stay_whole(open_page):
    page = open_page()
    press(page, "value")
    assert column(page, 0) == ["run 9", "run 10", "run 1", "run 2"]


def test_text_is_sorted_as_people_do(open_page):
    page = open_page()
    press(page, "name")
    assert column(page, 0) == ["run 1", "run 2", "run 9", "run 10"]


def test_headings_are_reached_and_pressed_by_keyboard(open_page):
    page = open_page()
    page.get_by_role("button", name="name", exact=True).focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert sorts(page)[1] == "ascending"


def test_download_has_every_value_quoted_and_no_formula(open_page):
    page = open_page(accept_downloads=True)
    with page.expect_download() as started:
        press(page, "Download numbers.csv")
    assert started.value.suggested_filename == "numbers.csv"
    content = started.value.path().read_bytes().decode("utf-8")
    head, *rows = csv.reader(io.StringIO(content, newline=""))
    assert tuple(head) == HEAD
    assert rows[0] == ["run 10", "0.5", "b", "1e-05", "3"]
    assert rows[1] == ["run 9", "-2.0", "'=1+1", "", ""]  # a number may begin with a minus
    assert rows[2] == ["run 2", "", 'say "a, b"', "12.5", "20"]
    assert rows[3] == ["run 1", "10.0", "a\nb", "Infinity", "100"]
    assert content.count("\r\n") == 5


def test_download_follows_the_order_on_the_page(open_page):
    page = open_page(accept_downloads=True)
    press(page, "value")
    with page.expect_download() as started:
        press(page, "Download numbers.csv")
    lines = started.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[1].startswith("run 9,-2.0,'=1+1")


ARMS = [
    ("softmax", 0.7434, 0.0019, 0.9, None),
    ("relu, learned per head", 0.744, 0.0021, 0.8, 0.1),
]
WIDE = tuple(f"seen{n}.top1" for n in range(12))


@pytest.fixture
def arms(browser, tmp_path):
    """A table of arms, with so many columns that it scrolls, on a screen of some width."""
    head = ("attention", "top1", "top1 sd", "loss", "loss sd", *WIDE)
    rows = [(*arm, *(0.5 for _ in WIDE)) for arm in ARMS]
    file = write_table(tmp_path / "page.html", head, rows, "arms.csv")
    pages = []

    def open_with(width):
        page = browser.new_page(viewport={"width": width, "height": 800}, accept_downloads=True)
        pages.append(page)
        page.goto(file.as_uri())
        return page

    yield open_with
    for page in pages:
        page.close()


@pytest.mark.parametrize(
    ("mean", "deviation", "shown"),
    [
        (0.66933, 0.000529, "0.6693 \u00b1 0.0005"),
        (46.92, 3.509, "46.92 \u00b1 3.51"),
        (0.0043391, 3.58e-06, "0.004339 \u00b1 0.000004"),
        (0.66933, 0.0000123, "0.6693 \u00b1 1e-05"),
        (5.957e13, 2.1e9, "5.957e+13 \u00b1 2e+09"),
    ],
)
def test_a_deviation_has_the_places_of_its_mean(mean, deviation, shown):
    table = DataTable(name="t", title="t", head=["n", "n sd"], rows=[[mean, deviation]])
    assert shown in str(data_table(table, file="t.csv"))


def test_deviations_stand_behind_means_and_in_columns_of_the_download(arms):
    page = arms(1360)
    shown = "[...document.querySelectorAll('tr')].map(r => [...r.cells].slice(0, 5)"
    shown += ".filter(c => c.offsetWidth).map(c => c.textContent))"
    assert page.evaluate(shown) == [
        ["attention", "top1", "loss"],
        ["softmax", "0.7434 \u00b1 0.0019", "0.9"],
        ["relu, learned per head", "0.7440 \u00b1 0.0021", "0.8 \u00b1 0.1"],
    ]
    with page.expect_download() as started:
        page.get_by_role("button", name="Download arms.csv").click()
    lines = started.value.path().read_text(encoding="utf-8").splitlines()
    rows = [row[:5] for row in csv.reader(lines)]
    assert rows[0] == ["attention", "top1", "top1 sd", "loss", "loss sd"]
    assert rows[1] == ["softmax", "0.7434", "0.0019", "0.9", ""]
    assert rows[2] == ["relu, learned per head", "0.744", "0.0021", "0.8", "0.1"]


@pytest.mark.parametrize("width", [1360, 360])
def test_names_of_rows_stay_where_a_wide_table_is_scrolled(arms, width):
    page = arms(width)
    place = (
        "[...document.querySelectorAll('tr > th:first-child')].map(c => c.getBoundingClientRect())"
    )
    before = page.evaluate(f"{place}.map(b => b.left)")
    box = page.locator(".scroll")
    assert box.evaluate("box => { box.scrollLeft = 1e6; return box.scrollLeft; }") > 100
    assert page.evaluate(f"{place}.map(b => b.left)") == before
    assert max(page.evaluate(f"{place}.map(b => b.width)")) < 0.5 * width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
