"""Random cases are plain data, the same everywhere, and cover what they should."""

from dataclasses import replace

import pytest
import torch

from flashpoint.lab.selfcheck.case import Case, Scored
from flashpoint.lab.selfcheck.draws import LIMITS, Scope, draw_case
from flashpoint.lab.selfcheck.run import run_case
from flashpoint.lab.selfcheck.values import (
    KINDS,
    OWN,
    activation_of,
    draw,
    is_nonnegative,
    lay,
    layouts_of,
)
from flashpoint.ops.activation import BUILTIN

CPU = Scope("cpu", ("cpu", "reference"))
LINE = (
    "case 1: cpu attention fp64 B=1 H=8/1 L=7:758 D=80:128 activation=relu2 length=keys "
    "scale=-1.0 mask=bool[1,1,1,758] key_lengths=(511,) values=hundred "
    "layouts=dense/dense/dense/dense/dense"
)
SCOPES = [CPU, Scope("cpu", ("triton",)), Scope("cuda", ("triton", "reference"))]


@pytest.fixture(scope="module")
def cases():
    """Six hundred cases of the CPU."""
    return [draw_case(0, index, CPU) for index in range(600)]


@pytest.mark.parametrize("scope", SCOPES)
def test_case_depends_on_seed_and_number_alone(scope):
    drawn = [str(draw_case(3, index, scope)) for index in range(40)]
    assert drawn == [str(draw_case(3, index, scope)) for index in range(40)]
    assert len(set(drawn)) == 40
    assert str(draw_case(4, 0, scope)) != drawn[0]


@pytest.mark.parametrize("scope", [*SCOPES, Scope("cpu", ("cpu", "triton", "reference"))])
def test_case_is_the_same_for_its_own_implementation_alone(scope):
    for index in range(0, 2000, 8):
        case = draw_case(3, index, scope)
        assert draw_case(3, index, Scope(scope.device, (case.impl,))) == case


def test_line_of_a_case_is_known():
    """It is what users send, so that it must not change unnoticed with Python or torch."""
    assert str(draw_case(0, 1, CPU)) == LINE


def test_cases_cover_options(cases):
    seen = {
        name: {getattr(case, name) for case in cases}
        for name in ("function", "dtype", "activation", "values", "impl", "causal", "alpha")
    }
    assert seen["function"] == {"attention", "varlen", "qkvpacked"}
    assert seen["dtype"] == {"fp64", "fp32", "fp16", "bf16"}
    assert seen["activation"] == {*BUILTIN, *OWN}
    assert seen["values"] == set(KINDS)
    assert seen["impl"] == {"cpu", "reference"}
    assert seen["causal"] == {True, False}
    assert {0.0, 0.5, 1.0, 1.7, -0.5} <= seen["alpha"]
    assert {case.layouts[0][0] for case in cases} >= {"dense", "swapped", "padded", "offset"}


def test_cases_cover_sums(cases):
    divided = [case for case in cases if case.normalize == "sum"]
    given = [case for case in cases if case.return_sums]
    wanted = {name for name in (*BUILTIN, *OWN) if is_nonnegative(name)}
    assert {"relu4", "exp", "square", "soft"} <= {case.activation for case in divided} == wanted
    assert {case.floor for case in divided} >= {0.0, 1e-3, 0.5}
    assert {case.alpha for case in divided} == {1.0}
    for some in (divided, given):
        assert {case.function for case in some} == {"attention", "varlen", "qkvpacked"}
        assert {case.dtype for case in some} == {"fp64", "fp32", "fp16", "bf16"}
    assert {(case.normalize, case.return_sums) for case in cases} == {
        *((word, flag) for word in ("length", "sum") for flag in (False, True))
    }


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_large_scores_reach_a_hundred(dtype):
    """There relu4 is 1e8, far beyond fp16; exp stays within fp32."""
    sizes = {"B": 1, "Hq": 1, "Hkv": 1, "Lq": 200, "Lk": 200, "D": 64, "Dv": 8}
    case = Case(
        seed=0, index=0, impl="cpu", function="attention", dtype=dtype, **sizes,
        activation="relu4", normalize="sum", values="hundred",
    )  # fmt: skip
    for activation, least, most in (("relu4", 90, 200), ("exp", 40, 80)):
        values = draw(replace(case, activation=activation), 0, torch.device("cpu"))
        largest = (values["q"] @ values["k"].mT / 8).abs().max()
        assert least < largest < most


def test_cases_cover_sizes_and_tensors(cases):
    assert {case.D for case in cases} >= {1, 8, 16, 63, 64, 65, 128, 129, 255, 256}
    assert any(case.Dv != case.D for case in cases)
    assert any(case.Lq > case.Lk for case in cases)
    assert any(0 < case.Lq < case.Lk for case in cases)
    assert any(case.Lk == 0 for case in cases)
    assert any(case.Lk > 512 for case in cases)
    assert any(case.key_lengths and 0 in case.key_lengths for case in cases)
    for tensors in ([case.bias for case in cases], [case.mask for case in cases]):
        broadcast = {tuple(n == 1 for n in x.shape) for x in tensors if isinstance(x, Scored)}
        assert len(broadcast) > 10
    assert {case.scale for case in cases} >= {None, 0.0, 1.0, -1.0}


def test_cases_of_a_gpu_share_what_is_compiled():
    scope = SCOPES[2]
    for start in range(0, 480, scope.group):
        group = [draw_case(0, start + number, scope) for number in range(scope.group)]
        for name in ("impl", "function", "dtype", "D", "Dv", "activation", "causal", "layouts"):
            assert len({getattr(case, name) for case in group}) == 1
        assert len({(case.Lq, case.Lk) for case in group}) > 1
        for given in ("bias", "mask"):
            tensors = [(case, getattr(case, given)) for case in group]
            axes = {
                tuple(
                    n == 1 < whole
                    for n, whole in zip(x.shape, (case.B, case.Hq, case.Lq, case.Lk), strict=True)
                )
                for case, x in tensors
                if isinstance(x, Scored) and min(case.B, case.Hq, case.Lq, case.Lk) > 1
            }
            assert len(axes) <= 1


def test_cases_of_a_gpu_reach_every_family_of_kernels():
    """Long dense ones (Hopper's), few queries over many keys, heads in one tile."""
    cases = [draw_case(0, index, SCOPES[2]) for index in range(0, 4000, 8)]
    bare = [
        case
        for case in cases
        if case.function == "attention"
        and case.dtype in ("bf16", "fp16")
        and not (isinstance(case.bias, Scored) or case.mask or case.window or case.key_lengths)
    ]
    assert sum(min(case.Lq, case.Lk) >= 192 and case.D in (64, 128) for case in bare) > 20
    assert any(case.Lq <= 8 and case.Lk >= 512 for case in bare)
    assert any(case.Lq == case.Lk <= 64 and case.D == case.Dv <= 64 for case in bare)


@pytest.mark.parametrize("scope", SCOPES)
def test_sizes_keep_to_their_limits(scope):
    for index in range(0, 2000, 8):
        case = draw_case(0, index, scope)
        limits = LIMITS[scope.place(case.impl)]
        assert case.Lq * case.Lk * case.B * case.Hq <= 8 * limits.scores
        assert case.B * case.Hq <= limits.heads


def test_layouts_keep_values():
    for rank in (3, 4, 5):
        x = torch.randn(*(2, 4, 3, 5, 6)[:rank])
        for layout in ("dense", "swapped", "padded", "offset", "turned"):
            assert torch.equal(lay(x, layout), x)
    assert not lay(torch.ones(2, 3, 4, 5), "swapped").is_contiguous()
    assert lay(torch.ones(2, 3, 4, 5), "padded").stride(2) == 8
    assert lay(torch.ones(2, 3, 4, 5), "expanded").stride(0) == 0


def test_numbers_of_a_call_are_what_its_dtype_holds():
    case = next(c for c in (draw_case(0, i, CPU) for i in range(99)) if c.dtype == "bf16")
    values = draw(case, 0, torch.device("cpu"))
    assert torch.equal(values["do"], values["do"].bfloat16().double())
    assert len(list(layouts_of(case, values, 0))) == len(values)


@pytest.mark.parametrize(("activation", "kinks"), [("relu", [0.0]), ("relu6", [0.0, 6.0])])
def test_no_score_is_within_rounding_of_a_kink(activation, kinks):
    """Of 40,000 scores in fp32 some would be."""
    sizes = {"B": 1, "Hq": 1, "Hkv": 1, "Lq": 200, "Lk": 200, "D": 64, "Dv": 8}
    case = Case(
        seed=0, index=0, impl="cpu", function="attention", dtype="fp32", **sizes,
        activation=activation, scale=1.0,
    )  # fmt: skip
    values = draw(case, 0, torch.device("cpu"))
    s = values["q"] @ values["k"].mT
    sizes = values["q"].abs() @ values["k"].abs().mT
    for kink in kinks:
        assert ((s - kink).abs() > 64 * 2.0**-24 * sizes).all()


def test_refusal_is_not_a_pass():
    case = Case(
        seed=0, index=0, impl="cpu", function="attention", dtype="fp32",
        B=1, Hq=1, Hkv=1, Lq=2, Lk=2, D=4, Dv=4, key_lengths=(3,),
    )  # fmt: skip
    outcome = run_case(case, torch.device("cpu"))
    assert outcome.is_refused
    assert not outcome.is_miss
    assert "key_lengths[0] is 3" in outcome.detail


def test_own_activations_are_made_once():
    for name in OWN:
        assert activation_of(name) is activation_of(name)
