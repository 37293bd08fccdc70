"""The page of twins on colored pictures in a real browser: files are seen as in validation."""

from itertools import product

import numpy as np
import pytest
from lab.browser.pages import color_runs, make_page, wait_for_texts
from lab.data.pictures import encoded, noise

from flashpoint.lab.data.transforms import Viewer

AS_LIST = """([bytes, width, height, facts]) => {
  const image = { data: Uint8Array.from(bytes), width, height };
  return [...Pixels.fromPicture(image, facts)];
}"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("colors")
    return make_page(color_runs(folder), folder / "page.html")


@pytest.fixture(scope="module")
def page_file(made):
    return made.file


def answers(page):
    return page.locator(".answer").all_inner_texts()


def test_chosen_file_is_answered_as_in_validation(open_page, made):
    page = open_page()
    assert answers(page) == [answer for answer, _ in made.expected(made.sample(0))]
    assert page.locator(".head canvas").count() == 2 * 1 * 2
    image = noise((61, 47), seed=3)
    pixels = Viewer(made.contents.facts["view"], 16, 3)(image, 0)
    content = {"name": "mine.png", "mimeType": "image/png", "buffer": encoded(image)}
    page.locator("#file").set_input_files(content)
    page.locator("#samples [aria-pressed=true]").wait_for(state="detached")
    wanted = [answer for answer, _ in made.expected(pixels)]
    wait_for_texts(page, ".answer", wanted)


def test_pictures_are_resized_as_by_pillow(open_page):
    page = open_page()
    sizes = ((61, 47, 3), (9, 30, 1), (16, 16, 3))
    for view, (width, height, channels) in product(("crop", "squash", "whole"), sizes):
        image = noise((width, height), seed=1)
        rgba = np.asarray(image.convert("RGBA")).reshape(-1).tolist()
        facts = {"view": view, "image_size": 16, "channels": channels}
        found = page.evaluate(AS_LIST, [rgba, width, height, facts])
        wanted = Viewer(view, 16, channels)(image, 0).astype(int).reshape(-1)
        assert np.abs(np.array(found) - wanted).max() <= 1, (view, width, height)


def test_class_token_asks_first_and_a_broken_file_is_named(open_page):
    page = open_page()
    assert "the class token" in page.locator("#query-says").inner_text()
    content = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no picture"}
    page.locator("#file").set_input_files(content)
    said = "notes.txt is no picture that this browser reads"
    wait_for_texts(page, "#input-title", [said])
