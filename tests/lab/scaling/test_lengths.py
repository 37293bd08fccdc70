"""Longer sequences than the suites have: estimates at 65k and 1M tokens beside measurements."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from lab.scaling.simple import LINKS, LOAD, make_result, make_row, make_setting

from flashpoint.errors import InputError
from flashpoint.lab.bench.result import Result
from flashpoint.lab.bench.result_file import read, to_json
from flashpoint.lab.scaling.estimate import Choice, attention_seconds
from flashpoint.lab.scaling.lengths import result_of
from flashpoint.lab.scaling.rates import rates_of, read_rates, stored_rates

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
FILE = RESULTS / "sequence" / "h200.json"
STORED = json.loads(FILE.read_text())
MEASURED = {
    **{
        (row["mode"], row["length"], row["dim"]): row["times"]["one call"]["median_s"]
        for row in STORED["chunks"]
    },
    **{
        (mode, row["length"], row["dim"]): row[f"{mode}_s"]
        for row in STORED["long"]
        for mode in ("forward", "backward")
    },
}
"""Seconds of a call with 8 heads."""
EXACT = 0.01
FROM_OTHERS = (0.8, 1.15)
"""An estimate over what was measured at a length that the rates were not given."""
OF_CHUNKS = (0.88, 1.0)
"""The same of a ring's blocks. Launches, sums and divisions are left out."""


def estimated(mode, length, dim, rates, choice=("alone", 1)):
    """Seconds of a layer with 8 heads on one rank."""
    load = replace(LOAD, width=8 * dim, num_heads=8, num_kv_heads=8)
    setting = make_setting(load=load, tokens=length, rates=rates, links=LINKS)
    strategy, ranks = choice
    made = Choice(data=1, sequence=ranks, strategy=strategy, recomputes=False)
    return dict(zip(("forward", "backward"), attention_seconds(setting, made), strict=True))[mode]


def suites():
    return [read(RESULTS / f"h200_{name}.json") for name in ("long", "vit", "decode")]


def test_65k_and_1m_tokens_are_among_the_measured_lengths():
    lengths = {(length, dim) for _, length, dim in MEASURED}
    assert lengths == {(65536, 64), (65536, 128), (2**20, 64)}
    assert (stored_rates().longest(64), stored_rates().longest(128)) == (2**20, 65536)


@pytest.mark.parametrize(("mode", "length", "dim"), MEASURED)
def test_estimate_is_what_was_measured(mode, length, dim):
    found = estimated(mode, length, dim, stored_rates())
    assert found == pytest.approx(MEASURED[mode, length, dim], rel=EXACT)


@pytest.mark.parametrize(("mode", "length", "dim"), [key for key in MEASURED if key[2] == 64])
def test_estimate_from_other_lengths_is_near_what_was_measured(mode, length, dim):
    """65k tokens by 16k and 1M, and 1M taken as 65k: backward is slower there by a sixth."""
    longer = result_of(STORED, "h200.json")
    rest = tuple(row for row in longer.rows if row.case.shape.length != length)
    found = estimated(mode, length, dim, rates_of([*suites(), replace(longer, rows=rest)], ["x"]))
    low, high = FROM_OTHERS
    assert low < found / MEASURED[mode, length, dim] < high


@pytest.mark.parametrize("row", STORED["chunks"], ids=lambda row: f"{row['mode']}{row['dim']}")
def test_blocks_of_a_ring_are_near_measured_chunks(row):
    """8 chunks of 8k keys for 64k queries on one GPU are what 8 ranks of a ring compute."""
    ranks = row["chunks"]
    rank = estimated(row["mode"], row["length"], row["dim"], stored_rates(), ("ring", ranks))
    low, high = OF_CHUNKS
    assert low < ranks * rank / row["times"]["chunks"]["median_s"] < high


def test_file_of_a_user_adds_lengths(tmp_path):
    short = tmp_path / "mine.json"
    rows = (make_row(mode, 1024, 9e14, dim=64) for mode in ("forward", "backward"))
    short.write_text(to_json(make_result(*rows)))
    found = read_rates([short, FILE])
    assert found.sources == ("mine.json", "h200.json")
    assert (found.longest(64), found.longest(128)) == (2**20, 65536)


def test_wrong_results_do_not_count():
    long = {**STORED["long"][0], "errors": {"o": 0.5}}
    found = result_of({**STORED, "long": [long]}, "h200.json")
    assert rates_of([*suites(), found], ["x"]).longest(64) == 65536


def test_parts_that_failed_are_left_out():
    data = {name: value for name, value in STORED.items() if name != "long"}
    assert isinstance(result_of(data, "h200.json"), Result)
    assert {row.case.shape.length for row in result_of(data, "h200.json").rows} == {65536}


def test_file_that_is_none_is_refused_in_one_line(tmp_path):
    file = tmp_path / "broken.json"
    file.write_text(json.dumps({**STORED, "chunks": 3}))
    with pytest.raises(InputError, match=r"broken\.json.*chunks") as error:
        read_rates([file])
    assert "\n" not in str(error.value)
