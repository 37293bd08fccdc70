"""The page of studies in a real browser: drawn, sorted, on a phone, dark, on paper."""

import csv
import dataclasses
import io
import re
from html.parser import HTMLParser

import pytest
from lab.report.run_folders import add_attention, make_run
from lab.report.sample_studies import hostile, make_studies

from flashpoint.lab.report.page import write_page
from flashpoint.lab.report.study_report import report_studies
from flashpoint.lab.runs.run_files import read_runs

DRAWN = "body[aria-busy=false]"
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 360, "height": 780}
PAPER = {"width": 688, "height": 1000}  # of A4 between its margins
WIDTH = "document.documentElement.scrollWidth"
COLORS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
LIGHT = ["rgb(251, 250, 248)", "rgb(27, 31, 36)"]
DARK = ["rgb(20, 22, 26)", "rgb(232, 230, 225)"]
DARKEST = "Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number))"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    sections = [*make_studies(folder), hostile()]
    write_page(report_studies(sections, title="All studies"), folder / "studies.html")
    return folder / "studies.html"


class Events(HTMLParser):
    """Elements, attributes and texts of a page in order."""

    def __init__(self, page):
        super().__init__()
        self.seen = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag.lower(), sorted((key, value or "") for key, value in attrs)))

    def handle_endtag(self, tag):
        self.seen.append(f"/{tag.lower()}")

    def handle_data(self, data):
        self.seen.append(data.strip())


def test_browser_finds_nothing_to_repair(browser, page_file):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    read = Events(page.content()).seen
    context.close()
    written = Events(page_file.read_text(encoding="utf-8")).seen
    assert list(filter(None, read)) == list(filter(None, written))


def count(page, selector):
    return page.evaluate(f"document.querySelectorAll({selector!r}).length")


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    page.wait_for_timeout(100)  # a toggle is told a little later
    page.wait_for_selector(DRAWN)


def test_every_chart_is_drawn_and_folded_ones_when_opened(open_page):
    page = open_page(viewport=DESKTOP)
    assert count(page, ".chart .main-svg") > 0
    assert count(page, ".opening .js-plotly-plot") == 13  # one a study
    assert count(page, ".js-plotly-plot") == 13
    unfold(page)
    hidden = count(page, ".panel[hidden] .chart")
    assert count(page, ".js-plotly-plot") == count(page, ".chart") - hidden
    assert count(page, "#study-length-power .errorbar") > 7 * 8
    assert count(page, "#study-learned-length .fills path.js-fill") == 4


def test_links_lead_to_their_sections(open_page):
    page = open_page(viewport=DESKTOP)
    for name in ("variance", "To repeat it", "speed"):
        page.locator("#contents").get_by_role("link", name=name).click()
        page.wait_for_function(
            "() => document.querySelector(':target').getBoundingClientRect().top < innerHeight / 2"
        )
    page.get_by_role("region", name="claims").get_by_role("link", name="gate").first.click()
    assert page.evaluate("document.querySelector(':target').id") == "study-gate"


def test_markup_in_names_is_shown_as_text(open_page):
    page = open_page(viewport=DESKTOP)
    chart = page.locator("section").nth(13).locator(".chart").first
    names = chart.locator(".legendtext").all_text_contents()
    assert names == ["<b><script>alert(1)</script></b>", "--ink"]
    assert count(page, "section script:not([type])") == 0


def test_claims_are_sorted_and_downloaded(open_page):
    page = open_page(viewport=DESKTOP, accept_downloads=True)
    claims = page.locator(".claims")
    claims.get_by_role("button", name="verdict").click()
    words = claims.locator("tbody .badge").all_text_contents()
    assert words == sorted(words, key=lambda word: word.split()[-1])
    with page.expect_download() as started:
        claims.get_by_role("button", name="Download claims.csv").click()
    rows = list(csv.reader(io.StringIO(started.value.path().read_text(encoding="utf-8"))))
    assert rows[0] == ["study", "claim", "verdict", "found", "interval", "holds if"]
    row = next(row for row in rows if row[1] == "relu loses at most 1 point")
    assert row[0] == "qk-norm"
    assert row[2:4] == ["supports", "0.42"]
    assert [float(end) for end in row[4].split(" to ")] == pytest.approx([0.04, 0.8])


def test_page_fits_a_phone_with_everything_unfolded(open_page):
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True)
    assert page.evaluate(WIDTH) == 360
    unfold(page)
    assert page.evaluate(WIDTH) == 360


def test_names_of_runs_above_their_attention_fit_a_phone(browser, tmp_path):
    names = [f"tokens64-identity-alpha1.{number}-seed0" for number in range(4)]
    runs = read_runs([add_attention(make_run(tmp_path / name)) for name in names])
    section = dataclasses.replace(make_studies(tmp_path)[0], runs=runs, factors=[{}] * 4)
    write_page(report_studies([section], title=""), tmp_path / "page.html")
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector(DRAWN)
    unfold(page)
    assert page.get_by_role("tab", name=names[0]).is_visible()
    assert page.evaluate(WIDTH) == 360
    context.close()


def test_environments_are_stacked_on_a_phone(open_page):
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True)
    unfold(page)
    cells = page.locator(".stacked tbody tr").first.locator("th, td")
    said = "cell => getComputedStyle(cell, '::before').content.replaceAll('\"', '')"
    assert [cell.evaluate(said) for cell in cells.all()] == [
        *("device: ", "trials: ", "studies: ", "first ended: ", "last ended: "),
    ]
    tops = [cell.bounding_box()["y"] for cell in cells.all()]
    assert tops == sorted(set(tops))
    assert all(cell.bounding_box()["width"] > 300 for cell in cells.all())


def test_names_of_categories_do_not_overlap_where_charts_are_narrow(open_page):
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True)
    labels = page.locator("#study-relu-attention .xtick text")
    assert labels.last.text_content() == "relu, factor and penalty"  # one line
    assert labels.last.locator("tspan").count() == 0
    angle = re.search(r"rotate\((-[\d.]+)", labels.last.get_attribute("transform"))
    assert float(angle.group(1)) == pytest.approx(-30)


def test_columns_of_the_download_stay_hidden_where_tables_are_stacked(open_page):
    page = open_page(viewport=PHONE)
    unfold(page)
    cell = page.locator(".stacked tbody td").first
    assert cell.is_visible()
    cell.evaluate("cell => { cell.hidden = true; }")
    assert not cell.is_visible()


def test_contents_open_on_a_phone_and_close_by_a_link(open_page):
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True)
    link = page.locator("#contents").get_by_role("link", name="retrieval")
    assert not link.is_visible()
    page.get_by_role("button", name="Contents").click()
    assert link.is_visible()
    assert page.evaluate(WIDTH) == 360
    link.click()
    page.wait_for_function("() => !document.querySelector('#contents').matches(':popover-open')")
    top = "document.getElementById('study-retrieval').getBoundingClientRect().top"
    page.wait_for_function(f"() => Math.abs({top}) < 200")


def test_light_and_dark_are_those_of_the_system(open_page):
    assert open_page(viewport=DESKTOP, color_scheme="light").evaluate(COLORS) == LIGHT
    assert open_page(viewport=DESKTOP, color_scheme="dark").evaluate(COLORS) == DARK


def test_series_have_their_color_in_both_themes(open_page):
    page = open_page(viewport=DESKTOP, color_scheme="light")
    stroke = (
        "getComputedStyle(document.querySelector("
        "'#study-document-length .trace:nth-child(2) .js-line')).stroke"
    )
    assert page.evaluate(stroke) == "rgb(53, 103, 181)"
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_selector(DRAWN)
    assert page.evaluate(stroke) == "rgb(126, 170, 240)"


def test_print_is_light_fits_paper_and_leaves_the_screen_as_it_was(open_page):
    page = open_page(viewport=DESKTOP, color_scheme="dark")
    widths = "[...document.querySelectorAll('.grid > .chart .main-svg')].map(s => s.clientWidth)"
    before = page.evaluate(widths)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate(DARKEST) == 255
    assert not page.locator("nav").is_visible()
    assert count(page, ".csv") > 0
    assert not page.locator(".csv").first.is_visible()
    page.emulate_media(media="screen")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_selector(DRAWN)
    page.wait_for_timeout(300)  # plotly waits for the window to rest
    assert page.evaluate(widths) == before
    assert count(page, ".main-svg[viewBox]") == 0
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_folded_parts_are_open_on_paper_and_folded_again(open_page):
    page = open_page(viewport=DESKTOP)
    drawn = "document.querySelectorAll('#study-scaling .main-svg').length"
    before = page.evaluate(drawn)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert count(page, "details.printed:not([open])") == 0
    assert count(page, "details:not(.printed)[open]") == 0
    assert page.evaluate(drawn) == 2 * before  # the second figure
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_selector(DRAWN)
    assert count(page, "details[open]") == 0
    assert page.evaluate(drawn) == before


def test_toolbar_covers_no_legend(open_page):
    page = open_page(viewport=DESKTOP)
    chart = page.locator("#study-length-power .chart").first
    chart.locator(".plot").hover()
    bar = chart.locator(".modebar").bounding_box()
    assert chart.locator(".modebar-btn").count() == 4
    assert bar["y"] + bar["height"] <= chart.locator(".legend").first.bounding_box()["y"]
    title = "caption => { const range = document.createRange(); range.selectNodeContents(caption);"
    title += "return range.getBoundingClientRect().right; }"
    assert chart.locator("figcaption").evaluate(title) <= bar["x"]


def test_link_to_a_folded_section_opens_it(open_page):
    page = open_page(viewport=DESKTOP)
    assert not page.locator("#environment .table").first.is_visible()
    page.locator("#contents").get_by_role("link", name="Environment").click()
    page.locator("#environment .table").first.wait_for(state="visible")


def test_nothing_is_cut_on_paper(open_page):
    page = open_page(viewport=PAPER)
    unfold(page)
    page.evaluate("document.querySelectorAll('.long').forEach(t => t.parentElement.open = false)")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate(WIDTH) <= PAPER["width"]
    right = "cells => Math.max(...cells.map(cell => cell.getBoundingClientRect().right))"
    assert page.locator("th, td").evaluate_all(right) <= PAPER["width"]
    assert page.locator(".claims tbody th").first.evaluate("c => getComputedStyle(c).display") == (
        "table-cell"
    )


def test_charts_are_as_wide_as_their_cards_on_paper(open_page):
    page = open_page(viewport=PAPER)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    room = """[...document.querySelectorAll('.js-plotly-plot')].map(plot => {
        const svg = plot.querySelector('.main-svg').getBoundingClientRect();
        const drawn = plot.querySelector('.main-svg .bglayer, .main-svg .cartesianlayer');
        const box = plot.getBoundingClientRect();
        return [svg.width - box.width, svg.height - box.height,
                drawn.getBoundingClientRect().width / box.width];
    })"""
    for beside, below, share in page.evaluate(room):
        assert abs(beside) < 1
        assert abs(below) < 1
        assert 0.6 < share <= 1
    assert count(page, ".modebar") > 0
    assert not page.locator(".modebar").first.is_visible()
