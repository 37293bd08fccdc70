"""The suites carry the limits that Flashpoint states."""

import pytest

from flashpoint.lab.bench.cases import Case, Shape, parse_shape
from flashpoint.lab.bench.entry import BEST_SDPA, RIVALS, Limits, SpeedLimit
from flashpoint.lab.bench.suites import SUITES, VIT_LIMITS, stated_limits

LONGEST = Shape(1, 8, 16384, 64)

GPU_LIMITS = [
    ("16,16,1024,64", "forward", 1.15, 1.4),
    ("4,16,4096,64", "forward", 1.40, 1.6),
    ("1,16,16384,64", "forward", 1.40, 1.6),
    ("16,8,1024,128", "forward", 1.0, 1.15),
    ("4,8,4096,128", "forward", 1.10, 1.25),
    ("1,8,16384,128", "forward", 1.15, 1.25),
    ("4,16,4096,64", "causal forward", 1.30, 1.5),
    ("4,8,4096,128", "causal forward", 1.08, 1.2),
    ("16,16,1024,64", "backward", 1.05, 1.2),
    ("4,16,4096,64", "backward", 1.10, 1.35),
    ("1,16,16384,64", "backward", 1.10, 1.35),
    ("4,8,4096,128", "backward", 1.0, 1.15),
    ("1,8,16384,128", "backward", 1.0, 1.2),
    ("4,16,4096,64", "causal backward", 1.0, 1.3),
    ("4,8,4096,128", "causal backward", 1.0, 1.15),
    ("1,32/8,1:32768,128", "forward", 1.1, 1.4),
    ("1,32/8,1:131072,128", "forward", 1.1, 1.4),
    ("16,32/8,1:32768,128", "forward", 1.1, 1.4),
    ("16,32/8,1:131072,128", "forward", 1.1, 1.4),
    ("4,16,4096,64", "relu2 forward", 1.2, 1.4),
    ("4,16,4096,64", "sigmoid forward", 1.2, 1.4),
    ("4,16,4096,64", "silu forward", 1.2, 1.4),
]
SUMS_LIMITS = [
    (shape, f"relu4/sum {mode}", must, aim)
    for mode, at_64, at_128 in (
        ("forward", (1.35, 1.6), (1.1, None)),
        ("backward", (1.05, 1.2), (1.0, None)),
    )
    for shape, (must, aim) in (
        *(("4,16,4096,64", at_64), ("1,16,16384,64", at_64)),
        *(("4,8,4096,128", at_128), ("1,8,16384,128", at_128)),
    )
]


def gpu_case(shape, work, dtype="bf16"):
    *words, mode = work.split()
    activation = next((word for word in words if word != "causal"), "relu")
    return Case(
        shape=parse_shape(shape),
        dtype=dtype,
        mode=mode,
        causal="causal" in words,
        activation=activation,
        device="cuda",
    )


def test_cpu_suite_states_its_limits():
    for entry in SUITES["cpu"].entries:
        if entry.overhead_dtype:
            continue
        ratios = {dtype: 1 / limits.speed[0].must for dtype, limits in entry.limits.items()}
        assert ratios == pytest.approx({"bf16": 0.65, "fp32": 1.0})
        slack = 64 * 10**6 if entry.shape == LONGEST else None
        assert entry.limits["bf16"].memory_slack_bytes == slack
    overhead = [entry for entry in SUITES["cpu"].entries if entry.overhead_dtype]
    assert [(entry.mode, len(entry.limits)) for entry in overhead] == [
        ("forward", 1),
        ("recording", 0),
    ]
    assert overhead[0].limits["fp32"].speed[0].must == pytest.approx(1 / 3)


@pytest.mark.parametrize(("shape", "work", "must", "aim"), GPU_LIMITS + SUMS_LIMITS)
def test_gpu_suites_state_their_limits(shape, work, must, aim):
    case = gpu_case(shape, work)
    limits = stated_limits(case)
    assert limits.speed[0] == SpeedLimit(rivals=RIVALS["cuda"], must=must, aim=aim)
    is_relu_over_rows = case.activation == "relu" and case.shape.queries is None
    flex = [SpeedLimit(rivals=("flex_log",), must=4, aim=5)] if is_relu_over_rows else []
    assert list(limits.speed[1:]) == flex
    keeps_inputs = case.mode == "backward" and not case.by_sum
    assert limits.kept_share == (0.78 if keeps_inputs else None)
    assert stated_limits(gpu_case(shape, work, "fp16")) == Limits()


def test_no_other_gpu_case_has_a_limit():
    stated = [
        entry for name in ("long", "decode") for entry in SUITES[name].entries if entry.limits
    ]
    assert len(stated) == len(GPU_LIMITS)
    summed = [e for e in SUITES["sums"].entries if e.limits and e.qk_norm == "none"]
    assert len(summed) == len(SUMS_LIMITS)


def test_sums_suite_has_images_with_norms():
    found = [e for e in SUITES["sums"].entries if e.qk_norm == "layer"]
    musts = {"forward": 1.5, "backward": 1.3}
    assert len(found) == 2 * len(VIT_LIMITS)
    assert all(e.limits["bf16"].speed[0].must == musts[e.mode] for e in found)


def test_vit_suite_measures_and_limits_norms_too():
    found = {
        (str(entry.shape), entry.qk_norm, entry.mode): entry
        for entry in SUITES["vit"].entries
        if entry.overhead_dtype is None
    }
    assert len(found) == 20
    for (norm, mode), must, aim in (
        (("none", "forward"), 1.9, 2.5),
        (("none", "backward"), 1.5, 2.0),
        (("layer", "forward"), 3.0, 4.0),
        (("layer", "backward"), 1.3, 2.0),
    ):
        entry = found["1024, 6, 49, 64", norm, mode]
        limit = SpeedLimit(rivals=BEST_SDPA["cuda"], must=must, aim=aim)
        assert entry.limits == {"bf16": Limits(speed=(limit,))}
        assert entry.providers == ("sdpa_efficient",)


def test_vit_suite_measures_calling_too():
    overhead = [entry for entry in SUITES["vit"].entries if entry.overhead_dtype]
    assert [(str(entry.shape), entry.mode) for entry in overhead] == [
        (f"1, 6, {tokens}, 64", mode)
        for tokens in (49, 196)
        for mode in ("forward", "recording", "backward")
    ]
    assert {(e.overhead_dtype, e.providers, len(e.limits)) for e in overhead} == {
        ("bf16", ("sdpa",), 0)
    }


def test_all_is_the_other_gpu_suites():
    names = ("vit", "long", "decode", "sums")
    parts = [entry for name in names for entry in SUITES[name].entries]
    assert list(SUITES["all"].entries) == parts
    assert {str(e.shape) for e in SUITES["vit"].entries if e.overhead_dtype is None} == {
        "1024, 6, 49, 64",
        "512, 6, 196, 64",
        "256, 12, 197, 64",
        "128, 12, 577, 64",
        "128, 6, 784, 64",
    }
    assert SUITES["vit"].modes == SUITES["long"].modes == ("forward", "backward")
    assert SUITES["decode"].modes == ("forward",)
