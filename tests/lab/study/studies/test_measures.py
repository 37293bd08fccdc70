"""Measurements: variance against closed forms, steps in turns, stored benchmarks."""

import json
import math

import numpy as np
import pytest
import torch
from implementations import needs_gpu
from lab.study.studies.outcomes import SMOKE

from flashpoint.errors import InputError
from flashpoint.lab.study.measures import step_time, stored_benchmarks, variance
from flashpoint.lab.study.moments import (
    ACTIVATIONS,
    CLOSED_SQUARES,
    expectation,
    mean_slope,
    mean_square,
    output_variance,
    variance_name,
)
from flashpoint.lab.study.registry import STUDIES
from flashpoint.ops.activation import BUILTIN, registered

OPTIONS = {
    **{"activations": ["softmax", *ACTIVATIONS], "layer_activations": ["relu", "softmax"]},
    **{"alphas": [0.0, 0.5, 1.0], "keys": [64, 1024], "heads": 256},
    **{"width": 128, "draws": 12, "seed": 0},
}


@pytest.fixture(scope="module")
def measured():
    return variance.measure(OPTIONS)


def test_activations_are_those_of_the_operator():
    import torch

    steep = {"relu3", "relu4", "exp"}  # to be divided by their sums: another variance, not drawn
    assert set(ACTIVATIONS) == set(BUILTIN) - steep
    scores = torch.linspace(-9, 9, 101, dtype=torch.float64)
    for name, function in ACTIVATIONS.items():
        expected = registered(name).weights_of(scores).numpy()
        np.testing.assert_allclose(function(scores.numpy()), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("activation", CLOSED_SQUARES)
def test_integrals_give_the_closed_forms(activation):
    integral = expectation(lambda x: ACTIVATIONS[activation](x) ** 2)
    assert integral == pytest.approx(CLOSED_SQUARES[activation], rel=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_moments_are_those_of_normal_samples(activation):
    draws = np.random.default_rng(0).standard_normal(2_000_000)
    values = ACTIVATIONS[activation](draws)
    assert mean_square(activation) == pytest.approx((values**2).mean(), rel=0.01)
    step = 1e-4
    slope = (ACTIVATIONS[activation](draws + step) - values).mean() / step
    assert mean_slope(activation) == pytest.approx(slope, rel=0.01)


@pytest.mark.pairwise
@pytest.mark.parametrize("keys", [64, 1024])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_measured_variance_is_the_closed_form(measured, activation, alpha, keys):
    found = measured[variance_name(activation, alpha, keys)]
    assert found == pytest.approx(output_variance(activation, alpha, keys), rel=0.06)


def test_softmax_reaches_e_over_n_from_below(measured):
    shares = [measured[variance_name("softmax", 0.0, keys)] * keys / math.e for keys in (64, 1024)]
    assert 0.85 < shares[0] < shares[1] < 1.03


@pytest.mark.parametrize("keys", [64, 1024])
@pytest.mark.parametrize(("activation", "alpha"), [("relu", 0.0), ("relu", 0.5), ("relu", 1.0)])
def test_a_layer_s_variance_has_the_term_of_common_tokens(measured, activation, alpha, keys):
    found = measured[variance_name(activation, alpha, keys, is_layer=True)]
    assert found == pytest.approx(output_variance(activation, alpha, keys, 128), rel=0.12)
    if keys == 1024:
        assert found > 3 * output_variance(activation, alpha, keys)


def test_variance_is_the_same_for_the_same_seed_and_another_for_another(measured):
    some = OPTIONS | {"keys": [64], "draws": 1, "heads": 8}
    assert variance.measure(some) == variance.measure(some)
    assert variance.measure(some) != variance.measure(some | {"seed": 1})


def test_steps_of_twins_are_timed_in_turns():
    trial = next(t for t in STUDIES["speed"].plan(SMOKE) if t.factors["measured"] == "step")
    found = step_time.measure(trial.work.options)
    assert set(found) == {"relu_s", "softmax_s"}
    assert all(0 < seconds < 10 for seconds in found.values())


def test_a_step_that_takes_longer_is_measured_longer():
    trial = next(t for t in STUDIES["speed"].plan(SMOKE) if t.factors["measured"] == "step")
    config = trial.work.options["configs"]["relu"]
    deep = config | {"model": config["model"] | {"depth": 12}}
    options = {"configs": {"two": config, "twelve": deep}, "steps": 2, "rounds": 3}
    found = step_time.measure(options)
    assert found["twelve_s"] > 2 * found["two_s"]


@pytest.mark.gpu
@needs_gpu
def test_captured_steps_are_timed_each_on_its_own_weights():
    trial = next(t for t in STUDIES["gate"].plan(SMOKE) if t.factors.get("measured") == "time")
    configs = {
        name: config | {"compile": "graphs_only", "device": "cuda"}
        for name, config in trial.work.options["configs"].items()
    }
    found = step_time.measure({"configs": configs, "steps": 20, "rounds": 3})
    torch.cuda.synchronize()
    assert set(found) == {"without_s", "with_s"}


def test_stored_benchmarks_give_both_times_of_every_case():
    found = stored_benchmarks.measure({})
    ours = {name.removesuffix("|ours_s") for name in found if name.endswith("|ours_s")}
    softmax = {name.removesuffix("|softmax_s") for name in found if name.endswith("|softmax_s")}
    assert ours == softmax
    case = "NVIDIA H200|forward|relu|full|none|bf16|64|4096"
    assert found[f"{case}|softmax_s"] / found[f"{case}|ours_s"] == pytest.approx(1.83, abs=0.3)
    plain, normed = (
        f"NVIDIA H200|forward|relu|full|{norm}|bf16|64|49" for norm in ("none", "layer")
    )
    assert found[f"{plain}|ours_s"] < found[f"{normed}|ours_s"]
    assert not any("|16|16" in name for name in ours)  # the cost of calling is not one of lengths


def test_stored_benchmarks_are_read_by_the_study():
    from flashpoint.lab.study.outcome import Outcome

    numbers = stored_benchmarks.measure({})
    outcome = Outcome(
        name="kernels", factors={"measured": "kernels"}, status="finished", numbers=numbers
    )
    found = STUDIES["speed"].findings([outcome])
    assert len(found.tables[0].rows) == len(numbers) // 2
    names = [chart.name for chart in found.charts]
    assert names == ["speed-kernels-nvidia-h200", "speed-kernels-amd-epyc", "speed-steps"]
    assert {series.name for series in found.charts[0].series} >= {
        "forward, head dim 64",
        "backward, head dim 128",
        "backward, head dim 64, qk-norm",
    }
    lengths = found.charts[0].series[0].x
    assert list(lengths) == sorted(lengths)


def test_a_folder_without_benchmarks_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no \.json files"):
        stored_benchmarks.measure({"folder": str(tmp_path)})
    (tmp_path / "other.json").write_text(json.dumps({"format": 9}))
    with pytest.raises(InputError, match="format"):
        stored_benchmarks.measure({"folder": str(tmp_path)})
