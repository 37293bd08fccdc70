"""The numbers of a call, from 0 to more than a dtype holds: right results or one-line errors."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from implementations import FAST, IMPLEMENTATIONS, device_of, interpreted, on_gpu
from numerics import assert_exact, make_inputs

from flashpoint import InputError, attention, attention_qkvpacked, attention_varlen
from flashpoint.ops.activation import BUILTIN

VANISHING = (0.0, -0.0, 1e-46, -1e-46, 1e-300, 1e-30)  # nothing in fp32, and very little
CUT = {  # B, Hq, Hkv, Lq, Lk, D, Dv: into one tile, stacked rows, several tiles on the CPU
    "one tile": ((2, 2, 2, 9, 33, 16, 24), {}),
    "rows with normalizers": ((1, 4, 2, 17, 40, 8, 8), {"causal": True, "alpha": 0.5}),
    "several tiles": ((1, 2, 1, 300, 1100, 16, 16), {"window": (900, 0)}),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("shape", "options"), CUT.values(), ids=CUT)
@pytest.mark.parametrize("activation", BUILTIN)
@pytest.mark.parametrize("impl", FAST)
@interpreted(lambda activation, options: activation == "sigmoid" and "window" not in options)
@on_gpu(lambda activation, options: activation == "sigmoid" and "window" not in options)
@pytest.mark.pairwise
def test_scale_that_vanishes_leaves_no_memory_unwritten(impl, activation, shape, options, dtype):
    inputs = make_inputs(shape)
    for scale in VANISHING[:2] if "window" in options else VANISHING:
        assert_exact(impl, dtype, inputs, activation=activation, scale=scale, **options)


# Numbers given as scale, bias, alpha or length

NO_NUMBERS = (
    *(
        math.nan,
        math.inf,
        -math.inf,
        10**400,
        np.float16("inf"),
        np.longdouble("1e400"),
        "1",
        True,
    ),
    *(np.bool_(True), np.complex64(1), 1j, np.array(2.0), Decimal(2), Fraction(1, 2), [1.0]),
)
BEYOND_FP32 = (1e39, -1e39, 1e308, 10**39, np.float64(1e39), np.longdouble("1e39"))
NUMBERS = (
    *(0, -0.0, 5e-324, 1e-46, 1e-30, -1.5, 7, 1e30, 3e38, 2**70, np.float16(0.5)),
    *(np.float32(-0.25), np.float64(2.0), np.longdouble(0.5), np.int64(3), np.uint8(3)),
)
NAMES = ("scale", "bias", "alpha", "length")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def calls(impl, dtype):
    """A small call of each public function, which takes options: ordinary values, all positive."""
    x = torch.linspace(0.25, 1.5, 48).view(1, 2, 3, 8).to(device_of(impl), dtype)
    tokens, ends = x[0].transpose(0, 1), torch.tensor([0, 1, 3], device=x.device)
    qkv = x.transpose(1, 2).unsqueeze(2).expand(1, 3, 3, 2, 8)
    return {
        "batch": lambda **options: attention(x, x, x, impl=impl, **options),
        "packed": lambda **options: attention_varlen(
            tokens, tokens, tokens, ends, ends, 2, 2, impl=impl, **options
        ),
        "joined": lambda **options: attention_qkvpacked(qkv, impl=impl, **options),
    }


every_function = pytest.mark.parametrize("function", ["batch", "packed", "joined"])
every_name = pytest.mark.parametrize("name", NAMES)
every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def refuse(call, **options):
    with pytest.raises(InputError) as caught:
        call(**options)
    message = str(caught.value)
    assert next(iter(options)) in message
    assert "\n" not in message
    return message


@every_name
@every_function
@every_impl
def test_what_is_no_finite_real_number_is_refused(impl, function, name):
    call = calls(impl, torch.float32)[function]
    for value in NO_NUMBERS:
        if not (name == "length" and isinstance(value, str)):
            refuse(call, **{name: value})
    for value in (0, -0.0, -1e39) if name == "length" else ():
        refuse(call, **{name: value})


@every_dtype
@pytest.mark.parametrize("name", ["scale", "bias"])
@every_function
@every_impl
def test_number_of_scores_beyond_float32_is_refused_or_computed_in_float64(
    impl, function, name, dtype
):
    for value in BEYOND_FP32:
        message = refuse(calls(impl, dtype)[function], **{name: value})
        assert f"{name}={float(value):g} is beyond float32" in message
        assert str(dtype).removeprefix("torch.") in message
        if impl != "triton":
            got = calls(impl, torch.float64)[function](**{name: value})
            assert not got.isnan().any()
            assert got.any() == (value > 0)


@every_dtype
@every_name
@every_function
@pytest.mark.parametrize("impl", FAST)
@on_gpu(lambda dtype, function: dtype == torch.bfloat16 and function == "batch")
@pytest.mark.pairwise
def test_any_number_gives_what_the_reference_gives(impl, function, name, dtype):
    more = BEYOND_FP32 if name in ("alpha", "length") else ()
    for value in (*NUMBERS, *more):
        if name == "length" and value <= 0:
            continue
        options = {name: value, "activation": "relu" if name == "scale" else "softplus"}
        got, plain = (calls(kind, dtype)[function](**options) for kind in (impl, "reference"))
        plain = plain.to(got.device)
        assert torch.equal(got.isfinite(), plain.isfinite()), (value, got, plain)
        if dtype != torch.float16:  # whose weights overflow before their sums, in kernels
            assert torch.equal(got.isnan(), plain.isnan()), (value, got, plain)
        finite = got.isfinite()
        relative = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            got[finite], plain[finite], rtol=relative, atol=0.0, msg=str(value)
        )


@pytest.mark.parametrize(
    "longest", [10**6, 10**18, 2**63, 10**400], ids=lambda n: f"1e{len(str(n)) - 1}"
)
@every_impl
def test_longest_sequence_may_be_any_number_beyond_the_tokens(impl, longest):
    x = torch.linspace(-1, 1, 96, device=device_of(impl)).view(6, 2, 8)
    ends = torch.tensor([0, 2, 6], device=x.device)
    tight = attention_varlen(x, x, x, ends, ends, 4, 4, causal=True, impl=impl)
    roomy = attention_varlen(x, x, x, ends, ends, longest, longest, causal=True, impl=impl)
    assert torch.equal(roomy, tight)
    if longest == 10**6:
        bias = torch.linspace(-1, 1, 10**6, device=x.device).requires_grad_()
        short = bias[:4]
        tight = attention_varlen(x, x, x, ends, ends, 4, 4, bias=short, impl=impl)
        roomy = attention_varlen(x, x, x, ends, ends, longest, longest, bias=bias, impl=impl)
        assert torch.equal(roomy, tight)
        (dbias,) = torch.autograd.grad(roomy.sum(), bias)
        assert dbias[:4].all()
        assert not dbias[4:].any()
