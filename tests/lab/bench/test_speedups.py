"""Lines of a figure of speed-ups: a case each, with both directions and what is promised."""

from dataclasses import replace

from lab.bench.samples import make_gpu_result

from flashpoint.lab.bench.result import Result
from flashpoint.lab.bench.speedups import arrange_lines

CORNERS = make_gpu_result("corners")


def with_error(row, provider, error):
    changed = tuple(
        replace(found, relative_error=error) if found.provider == provider else found
        for found in row.measurements
    )
    return replace(row, measurements=changed)


def only(*rows):
    return Result(environment=CORNERS.environment, rows=rows, suite="corners")


def test_every_case_is_a_line_under_a_name_of_its_own():
    lines = arrange_lines(CORNERS)
    labels = [line.label for line in lines]
    assert len(labels) == len(set(labels)) == 29
    assert labels[:2] == ["gelu, 2k tokens", "softplus, 2k tokens"]
    assert {
        *("sigmoid, bias -log n, head dim 128, 2k tokens", "fp32, 2k tokens"),
        *("causal, head dim 256, 2k tokens", "bool mask, 2k tokens"),
        *("bias without gradient, 2k tokens", "bias with gradient, 49 tokens"),
        *("packed, qk-norm, 65 tokens", "launched one by one, 197 tokens"),
        *("head dim 128, 32k tokens", "head dim 128, GQA 8, 16k tokens"),
    } < set(labels)


def test_line_has_both_directions_where_both_are_measured():
    lines = {line.label: line for line in arrange_lines(CORNERS)}
    gelu = lines["gelu, 2k tokens"]
    assert (gelu.forward.must, gelu.backward.must) == (0.9, 0.75)
    assert (gelu.forward.rival, round(gelu.forward.value, 2)) == ("fa4", 1.2)
    assert lines["bias with gradient, 2k tokens"].forward.must == 3.0
    assert lines["packed, qk-norm, 784 tokens"].forward is None


def test_limit_is_kept_or_not():
    lines = {line.label: line for line in arrange_lines(CORNERS)}
    assert lines["gelu, 2k tokens"].forward.is_kept
    assert not lines["bias with gradient, 2k tokens"].forward.is_kept


def test_wrong_results_are_no_speed_up():
    forward, backward = CORNERS.rows[:2]
    (line,) = arrange_lines(only(with_error(forward, "flashpoint", 0.1), backward))
    assert line.forward is None
    (line,) = arrange_lines(only(with_error(forward, "fa4", 0.1), backward))
    assert line.forward.rival == "sdpa_cudnn"
