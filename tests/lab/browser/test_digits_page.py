"""The page of twins on digits in a real browser: drawn, answered, mapped, counted and timed."""

import math

import numpy as np
import pytest
from lab.browser.pages import digit_runs, make_page, wait_for_texts

from flashpoint.lab.data.image_kinds import open_source

ZERO = ([(0.5 + 0.28 * math.sin(t / 4), 0.5 - 0.4 * math.cos(t / 4)) for t in range(26)],)
ONE = ([(0.52, 0.1), (0.5, 0.9)],)
SEVEN = ([(0.25, 0.15), (0.75, 0.15), (0.45, 0.9)],)
EIGHT = (
    [(0.5 + 0.2 * math.sin(t / 3), 0.3 - 0.2 * math.cos(t / 3)) for t in range(20)],
    [(0.5 + 0.24 * math.sin(t / 3), 0.71 - 0.2 * math.cos(t / 3)) for t in range(20)],
)
DRAWN = {"0": ZERO, "1": ONE, "7": SEVEN, "8": EIGHT}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_page(digit_runs(), tmp_path_factory.mktemp("digits") / "page.html")


@pytest.fixture(scope="module")
def page_file(made):
    return made.file


def draw(page, lines):
    """With the mouse, in shares of the pad."""
    box = page.locator("#pad").bounding_box()
    for line in lines:
        points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in line]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point, steps=3)
        page.mouse.up()


def pixels_of(page, lines):
    """uint8 [1, 8, 8] that the page makes of lines."""
    found = page.evaluate("lines => [...Digits.fromLines(lines)]", [list(line) for line in lines])
    return np.array(found, np.uint8).reshape(1, 8, 8)


def share_text(weights):
    zeros, count = int((weights == 0).sum()), weights.size
    return {0: "0%", count: "100%"}.get(zeros, f"{100 * zeros / count:.1f}%")


def texts(page, selector):
    return page.locator(selector).all_inner_texts()


def test_answers_maps_and_zeros_are_those_of_the_models(open_page, made):
    page = open_page(viewport={"width": 1280, "height": 900})
    assert page.title() == "<Twins>"
    relu, softmax = made.expected(made.sample(0))
    assert texts(page, ".answer") == [relu[0], softmax[0]]
    assert texts(page, ".zeros .value") == [share_text(relu[1]), "0%"]
    assert share_text(relu[1]) != "0%"
    heads = [share_text(head) for _, weights in (relu, softmax) for head in weights.reshape(4, -1)]
    assert texts(page, ".head .zero") == heads
    assert texts(page, ".panel .name") == ["relu_10", "softmax_10"]
    page.get_by_role("button", name="A picture of class 3").click()
    wanted = [weights for _, weights in made.expected(made.sample(3))]
    wait_for_texts(page, ".zeros .value", [share_text(weights) for weights in wanted])


def test_drawn_digit_is_answered(open_page, made):
    page = open_page()
    draw(page, SEVEN)
    page.locator("#samples [aria-pressed=true]").wait_for(state="detached")
    box = page.evaluate("(({width, height}) => [width, height])(document.getElementById('pad'))")
    points = [[(x * box[0], y * box[1]) for x, y in line] for line in SEVEN]
    wanted = [answer for answer, _ in made.expected(pixels_of(page, points))]
    wait_for_texts(page, ".answer", wanted)
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#pad-hint").is_visible()


def test_lines_become_images_like_those_of_the_data(open_page):
    """Blocks are counted, and the nearest images of the data are of the digit that was drawn."""
    page = open_page()
    bitmap = np.random.default_rng(0).integers(0, 2, (32, 32))
    found = page.evaluate("bits => [...Digits.fromBitmap(bits)]", bitmap.reshape(-1).tolist())
    counts = bitmap.reshape(8, 4, 8, 4).sum((1, 3))
    assert found == np.rint(counts * 255 / 16).astype(int).reshape(-1).tolist()
    data = open_source("digits", "train")
    known = data.images.reshape(len(data.labels), -1).astype(float)
    for digit, lines in DRAWN.items():
        pixels = pixels_of(page, lines)
        assert abs(pixels.sum() * 16 / 255 - 313) < 80, digit
        nearest = np.argsort(((known - pixels.reshape(-1)) ** 2).sum(1))[:5]
        assert np.bincount(data.labels[nearest]).argmax() == int(digit), data.labels[nearest]


def test_patch_is_chosen_by_keys_and_by_clicks(open_page):
    page = open_page()
    drawing = "document.querySelector('.head canvas').toDataURL()"
    assert "row 3, column 3" in page.locator("#query-says").inner_text()
    page.get_by_role("button", name="All queries").click()
    before = page.evaluate(drawing)
    page.locator("#seen").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "row 2, column 1" in page.locator("#query-says").inner_text()
    assert page.evaluate(drawing) != before
    page.locator(".head canvas").first.click(position={"x": 4, "y": 4})
    assert "row 1, column 1" in page.locator("#query-says").inner_text()
    page.get_by_role("button", name="All queries").click()
    assert page.evaluate(drawing) == before


def test_time_is_measured_for_both(open_page):
    page = open_page()
    page.wait_for_selector("body[data-timing=done]")
    times = [float(text.removesuffix(" ms")) for text in texts(page, ".time .value")]
    assert len(times) == 2
    assert all(0 < time < 1000 for time in times)
    page.get_by_role("button", name="Measure again").click()
    page.wait_for_selector("body[data-timing=done]")


def test_page_fits_every_screen_in_both_modes(open_page):
    page = open_page(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(232, 230, 225)"
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    for width in (1280, 768, 360):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
