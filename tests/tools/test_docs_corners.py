"""Tables of the suite ``corners``, of a made-up result."""

import pytest
from lab.bench.samples import make_gpu_result

from docs_numbers.corners import FIGURE
from docs_numbers.speed import CORNERS_FILE
from docs_numbers.stored import Stored
from docs_numbers.tables import TABLES
from flashpoint.lab.bench.result_file import to_json


@pytest.fixture
def stored(tmp_path):
    file = tmp_path / "benchmarks" / "results" / f"{CORNERS_FILE}.json"
    file.parent.mkdir(parents=True)
    file.write_text(to_json(make_gpu_result("corners")))
    return Stored(tmp_path)


def test_table_has_a_row_a_case_with_rivals_and_misses_in_bold(stored):
    text = TABLES["speed-corners"](stored)
    assert "| gelu, 2k tokens | 1.20 (FlashAttention-4) | 1.20 (FlashAttention-4) |" in text
    assert "| packed, qk-norm, 784 tokens | | **1.20** (FlashAttention-4) |" in text
    assert len(text.splitlines()) == 2 + 29


def test_figure_is_shown_where_it_is_drawn(stored):
    assert FIGURE not in TABLES["speed-corners"](stored)
    figure = stored.root / "docs" / FIGURE
    figure.parent.mkdir(parents=True)
    figure.write_bytes(b"")
    assert TABLES["speed-corners"](stored).endswith(f"]({FIGURE})")


def test_nothing_measured_is_a_sentence(tmp_path):
    assert TABLES["speed-corners"](Stored(tmp_path)) == "These cases have not been measured yet."


def test_limits_are_those_of_the_suite(tmp_path):
    text = TABLES["limits-corners"](Stored(tmp_path))
    assert "| gelu, 2k tokens | 8, 16, 2048, 64 | 0.90 / 1.20 | 0.75 / 1.00 |" in text
    assert "| bias with gradient, 49 tokens | 1024, 6, 49, 64 | | 1.50 |" in text
