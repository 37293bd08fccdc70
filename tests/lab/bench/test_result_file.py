"""Results go to JSON and back, old ones too."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import broken_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.bench.samples import make_gpu_result, make_result, make_row
from limits import answer

from flashpoint.errors import InputError
from flashpoint.lab.bench.result import Result
from flashpoint.lab.bench.result_file import from_json, read, to_json
from flashpoint.lab.study.measures import stored_benchmarks

STORED = Path(__file__).parents[3] / "benchmarks" / "results"


def test_round_trip_keeps_everything():
    wrong = make_row(error=float("inf"))
    result = make_result(make_row(), replace(make_row(), is_overhead=True), wrong)
    assert from_json(to_json(result)) == result
    assert from_json(to_json(make_gpu_result())) == make_gpu_result()


def test_file_says_what_follows_from_the_medians():
    row = json.loads(to_json(make_gpu_result("decode")))["rows"][0]
    ours = row["measurements"][0]
    assert row["speedup"] == pytest.approx(1.5)
    assert ours["gbytes_per_s"] == pytest.approx(4000)
    assert ours["matrix_share"] == pytest.approx(ours["tflops_per_s"] / 750)
    assert ours["timing"]["method"] == "graph"


def test_other_format_is_refused():
    data = json.loads(to_json(make_result(make_row()))) | {"format": 99}
    with pytest.raises(InputError, match="format is 99, this version reads 1 and 2"):
        from_json(json.dumps(data))


@pytest.mark.parametrize("file", sorted(STORED.glob("*.json")), ids=lambda file: file.stem)
def test_stored_results_are_read(file):
    result = read(file)
    assert result.environment.commit
    assert all(row.speedup(row.rivals) for row in result.rows)
    assert any(
        [*(row.limits.speed for row in result.rows), *(row.limits for row in result.models)]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "the file's format is None"),
        ("[1]", "must hold a section"),
        ('{"format": 2}', r"environment is missing\. Measure again with `flashpoint bench --json"),
        ("nothing", "cannot be read: Expecting value in line 1, column 1"),
        (to_json(make_result()), "holds no rows"),
        ("[" * broken_files.DEEP, "is nested more than 50 deep"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, text, message):
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as refusal:
        read(file)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read: No such file or directory"):
        read(tmp_path / "nothing.json")


RESULTS = [json.loads(to_json(result)) for result in (make_result(make_row()), make_gpu_result())]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(RESULTS).flatmap(broken_files.broken))
def test_broken_file_is_read_or_one_line(tmp_path, content):
    file = tmp_path / "file.json"
    file.write_bytes(content)
    result, said = answer(partial(read, file))
    assert said.startswith(str(file)) if result is None else isinstance(result, Result)


@pytest.mark.parametrize("put", broken_files.NO_FILES, ids=lambda put: put.__name__)
def test_what_is_no_plain_file_is_one_line(tmp_path, put):
    file = tmp_path / "file.json"
    file.touch()
    put(file)
    assert str(file) in answer(partial(read, file))[1]
    assert str(file) in answer(partial(stored_benchmarks.measure, {"folder": str(tmp_path)}))[1]
