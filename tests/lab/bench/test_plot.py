"""Figures are written in the format of their suffix, or refused before anything is measured."""

from dataclasses import replace

import pytest
from lab.bench.samples import ENVIRONMENT, make_gpu_result, make_row

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.bench import plot
from flashpoint.lab.bench.plot import draw, require_drawable
from flashpoint.lab.bench.plot_style import COLORS, NAMES
from flashpoint.lab.bench.providers.registry import PROVIDERS
from flashpoint.lab.bench.result import Result

has_matplotlib = pytest.mark.skipif(
    plot.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


def test_every_provider_has_a_name_and_a_color():
    assert COLORS.keys() == NAMES.keys() == PROVIDERS.keys()


@has_matplotlib
@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_suffix_gives_the_format(tmp_path, suffix, start):
    file = tmp_path / f"figure{suffix}"
    draw(make_gpu_result("decode"), file)
    assert file.read_bytes().startswith(start)


@has_matplotlib
def test_figure_says_where_it_was_measured_and_what_was_won(tmp_path):
    file = tmp_path / "figure.svg"
    draw(make_gpu_result(), file)
    text = file.read_text()
    for part in (
        *("Attention without softmax on NVIDIA H200", "torch 2.11.0", "3b8627827c00"),
        *("driver 570.86.15", "1.50x", "SDPA cuDNN", "FlexAttention, log trick"),
        *("Backward, head dim 128, bf16", "one matrix product: 750", "TFLOP/s", "GB/s"),
    ):
        assert part in text


@has_matplotlib
def test_corners_are_drawn_by_their_speed_ups(tmp_path):
    file = tmp_path / "figure.svg"
    draw(make_gpu_result("corners"), file)
    text = file.read_text()
    for part in (
        *("Other options, head dims and dtypes on NVIDIA H200", "torch 2.11.0", "promised"),
        *("bias with gradient, 49 tokens", "fp32, 2k tokens", "1.20", "FlashAttention-4"),
    ):
        assert part in text


@has_matplotlib
@pytest.mark.parametrize("suite", [None, "corners"])
def test_nothing_to_draw_is_one_line(tmp_path, suite):
    row = replace(make_row(), is_overhead=True)
    overhead = Result(environment=ENVIRONMENT, rows=(row,), suite=suite)
    with pytest.raises(InputError, match="--plot has nothing to draw"):
        draw(overhead, tmp_path / "figure.png")


@pytest.mark.parametrize("name", ["figure.jpg", "figure"])
def test_unknown_suffix_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"must end in \.png, \.svg or \.pdf, not '"):
        require_drawable(tmp_path / name)


def test_missing_matplotlib_is_one_line_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="needs matplotlib, which is not installed"):
        require_drawable(tmp_path / "figure.png")
