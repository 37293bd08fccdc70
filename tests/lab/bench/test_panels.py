"""A figure's panels, groups and bars."""

from dataclasses import replace

import pytest
from lab.bench.samples import ENVIRONMENT, make_gpu_result, make_row

from flashpoint.lab.bench.panels import Bar, arrange
from flashpoint.lab.bench.result import Result


def titles(result):
    return [[panel.title for panel in line] for line in arrange(result)]


def test_modes_stand_below_each_other_and_head_dims_abreast():
    assert titles(make_gpu_result("long")) == [
        ["Forward, head dim 64, bf16", "Forward, head dim 128, bf16"],
        ["Backward, head dim 64, bf16", "Backward, head dim 128, bf16"],
    ]


def test_modes_of_one_head_dim_stand_abreast():
    assert titles(make_gpu_result())[2:] == [
        [
            "Forward, short sequences, head dim 64, bf16",
            "Backward, short sequences, head dim 64, bf16",
        ],
        [
            "Forward with norms of q and k, head dim 64, bf16",
            "Backward with norms of q and k, head dim 64, bf16",
        ],
        ["Decoding, head dim 128, bf16"],
    ]


def test_groups_are_named_by_what_tells_them_apart():
    forward = arrange(make_gpu_result("long"))[0][0]
    labels = [group.label.split() for group in forward.groups]
    assert labels == [
        *(["1k"], ["4k"], ["4k", "causal"], ["4k", "relu2"], ["4k", "sigmoid"], ["4k", "silu"]),
        ["16k"],
    ]
    decode = arrange(make_gpu_result("decode"))[0][0]
    assert [group.label for group in decode.groups][1:3] == ["128k\nB 1", "32k\nB 16"]


def test_bars_are_rates_in_the_unit_of_the_panel():
    forward = arrange(make_gpu_result("long"))[0][0]
    assert (forward.unit, forward.most) == ("TFLOP/s", 750)
    first = forward.groups[0]
    assert [bar.provider for bar in first.bars] == ["flashpoint", "sdpa_cudnn", "sdpa_flash"]
    assert first.bars[0].rate == pytest.approx(600)
    assert first.speedup == pytest.approx(1.5)
    decode = arrange(make_gpu_result("decode"))[0][0]
    assert (decode.unit, decode.most) == ("GB/s", None)
    assert decode.groups[0].bars[0] == Bar("flashpoint", pytest.approx(4000))


def test_overhead_and_wrong_results_are_not_drawn():
    rows = (replace(make_row(), is_overhead=True), make_row(error=1.0))
    assert arrange(Result(environment=ENVIRONMENT, rows=rows)) == []
