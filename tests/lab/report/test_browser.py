"""The page in a real browser: figures are drawn, nothing complains, nothing is fetched."""

import pytest
from lab.report.run_folders import add_attention, make_run

from flashpoint.lab.report.page import write_page
from flashpoint.lab.report.run_report import report_runs

INK = "getComputedStyle(document.body).color"
TEXT = "getComputedStyle(document.querySelector('.xtick text')).fill"
DRAWN = "body[aria-busy=false]"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    relu = add_attention(make_run(folder / "relu"))
    softmax = make_run(folder / "softmax", attention="softmax", seed=1)
    write_page(report_runs([relu, softmax], title="<Twins>"), folder / "report.html")
    return folder / "report.html"


def count(page, selector):
    return page.evaluate(f"document.querySelectorAll({selector!r}).length")


def test_every_visible_figure_is_drawn(open_page):
    page = open_page(viewport={"width": 1280, "height": 900})
    assert page.title() == "<Twins>"
    assert count(page, ".panel:not([hidden]) .chart") == 8  # 3 curves, 5 heat maps
    assert count(page, ".panel:not([hidden]) .plot.js-plotly-plot") == 8
    assert count(page, ".scatterlayer .trace") >= 6
    assert count(page, ".heatmaplayer .hm") == 5
    assert page.evaluate("document.querySelector('img').naturalWidth") == 1


def test_panels_change_by_a_click_and_are_drawn_then(open_page):
    page = open_page()
    assert count(page, ".panel[hidden] .js-plotly-plot") == 0
    page.get_by_role("tab", name="by time").click()
    page.wait_for_selector(DRAWN)
    page.wait_for_function(
        "[...document.querySelectorAll('.xtitle')].some(e => e.textContent === 'seconds')"
    )
    assert count(page, "#curves .panel:not([hidden]) .js-plotly-plot") == 3
    assert page.get_by_role("tab", name="by step").get_attribute("aria-selected") == "false"


def test_colors_follow_the_system_and_the_button(open_page):
    page = open_page(color_scheme="dark")
    dark = page.evaluate(f"[{INK}, {TEXT}]")
    assert dark[0] == dark[1] == "rgb(232, 230, 225)"
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_selector(DRAWN)
    light = page.evaluate(f"[{INK}, {TEXT}]")
    assert light[0] == light[1] == "rgb(27, 31, 36)"
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_selector(DRAWN)
    assert page.evaluate(f"[{INK}, {TEXT}]") == dark


def test_page_fits_every_screen(open_page):
    page = open_page(has_touch=True)
    widest = "Math.max(...[...document.querySelectorAll('.plot')].map(p => p.scrollWidth))"
    for width in (1280, 768, 360):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(200)  # plotly waits for the window to rest
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(widest) <= width


def test_page_prints_in_light_colors(open_page):
    page = open_page(color_scheme="dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate(INK) == "rgb(27, 31, 36)"
    page.emulate_media(media="screen")
    page.wait_for_selector(DRAWN)
    assert page.evaluate(f"[{INK}, {TEXT}]") == ["rgb(232, 230, 225)"] * 2
