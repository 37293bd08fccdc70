"""The figure of a plan: what it is, what it rests on, and which is best."""

import pytest
from lab.scaling.simple import make_setting

from flashpoint.lab.bench import plot as bench_plot
from flashpoint.lab.scaling.plot import draw
from flashpoint.lab.scaling.survey import survey

pytestmark = pytest.mark.skipif(
    bench_plot.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


def text_of(found, folder):
    draw(found, folder / "figure.svg")
    return (folder / "figure.svg").read_text()


def test_figure_says_that_it_is_an_estimate_and_of_what(tmp_path):
    text = text_of(survey(make_setting()), tmp_path)
    for part in (
        *("toy, 1,024 tokens, 8 GPUs: estimate", "Nothing of this was run", "best: "),
        *("toy.json", "100 GB/s inside nodes of 8 GPUs", "ulysses", "4 x 2", "90% of 1 GB"),
    ):
        assert part in text


def test_figure_without_a_best_is_drawn(tmp_path):
    assert "best: " not in text_of(survey(make_setting(memory_bytes=1e4)), tmp_path)
