"""The suite ``corners``: its limits, and that every case computes what it says, in small."""

from dataclasses import replace

import pytest
import torch

import flashpoint
from flashpoint.lab.bench import corners
from flashpoint.lab.bench.accuracy import error_bound, exact_parts, result_error
from flashpoint.lab.bench.calls import by_heads, make_call, make_inputs, prepare
from flashpoint.lab.bench.cases import Case, Shape
from flashpoint.lab.bench.plan import Request, select_items
from flashpoint.lab.bench.providers import flex
from flashpoint.lab.bench.providers.provider import normalize
from flashpoint.lab.bench.providers.registry import PROVIDERS, USUAL
from flashpoint.lab.bench.suites import SUITES

MUSTS = {
    "8, 16, 2048, 64  bf16 gelu": (0.9, 0.75),
    "8, 16, 2048, 64  bf16 softplus": (0.9, 0.75),
    "1, 16, 16384, 64  bf16 gelu": (0.9, 0.75),
    "1, 16, 16384, 64  bf16 softplus": (0.9, 0.75),
    "8, 16, 2048, 64  bf16 sigmoid bias -log n": (1.0, 0.9),
    "8, 16, 2048, 64  bf16 silu": (1.0, 0.9),
    "8, 16, 2048, 128  bf16 sigmoid bias -log n": (1.05, 0.9),
    "8, 16, 2048, 128  bf16 silu": (1.05, 0.9),
    "4, 8, 2048, 32  bf16 causal": (1.5, 1.0),
    "8, 16, 2048, 192  bf16 causal": (1.0, 0.9),
    "8, 16, 2048, 256  bf16 causal": (1.0, 0.9),
    "2, 8, 2048, 64  fp32": (0.9, 0.8),
    "8, 16, 2048, 64  bf16 mask": (1.1, 1.05),
    "8, 16, 2048, 64  bf16 bias": (1.4, 1.05),
    "8, 16, 2048, 64  bf16 learned bias": (3.0, 1.4),
    "1024, 6, 49, 64  bf16 learned bias": (None, 1.5),
    "1024, 6, 65, 64  bf16 packed": (1.6, 1.4),
    "1024, 6, 65, 64  bf16 packed qk-norm": (1.6, 1.4),
    "512, 6, 130, 64  bf16 packed": (1.6, 1.4),
    "512, 6, 130, 64  bf16 packed qk-norm": (1.6, 1.4),
    "512, 6, 145, 64  bf16 packed": (1.6, 1.4),
    "512, 6, 145, 64  bf16 packed qk-norm": (1.6, 1.4),
    "512, 6, 196, 64  bf16 packed qk-norm": (None, 2.1),
    "128, 12, 577, 64  bf16 packed qk-norm": (None, 1.8),
    "128, 6, 784, 64  bf16 packed qk-norm": (None, 1.9),
    "1, 8, 32768, 128  bf16": (None, 1.2),
    "1, 32/4, 16384, 128  bf16": (None, 1.2),
    "64, 6, 197, 64  bf16 launched": (1.5, 1.0),
    "256, 6, 50, 64  bf16 launched": (1.5, 1.0),
}
ON_CPU = ("flashpoint", "sdpa", "sdpa_math", "plain", "flex_softmax")


def select(**options):
    request = Request(device="cuda", suite="corners", dtypes=("bf16",), **options)
    return select_items(request, USUAL["cuda"])


def shrink(case):
    """A case of a few tokens on the CPU, else the same."""
    shape = case.shape
    kv_heads = shape.kv_heads and 2
    heads = 2 * (shape.heads // shape.kv_heads) if shape.kv_heads else 3
    small = Shape(2, heads, min(shape.length, 33), 16, kv_heads=kv_heads)
    return replace(case, shape=small, dtype="fp32", device="cpu")


CASES = {str(item.case): shrink(item.case) for item in select()}


def serving(case):
    """Providers that run here; FlexAttention as it is, without a compiler and forward alone."""
    for name in ON_CPU:
        provider = PROVIDERS[name]
        if name == "flex_softmax":
            provider = replace(provider, bind=flex.bind_softmax)
        if provider.refusal(case) is None:
            yield provider


def whole_in_fp64(case, inputs, function):
    """Output and gradients by the definition, with all matrices in full."""
    wide = [x.detach().double().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
    gains = [gain.detach().double() for gain in inputs.gains]
    q, k = (
        (normalize(x, gain) for x, gain in zip(wide, gains, strict=False)) if gains else wide[:2]
    )
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, wide[2]))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    bias = inputs.bias.detach().double().requires_grad_() if inputs.bias is not None else None
    if bias is not None:
        scores = scores + bias
    seen = torch.ones_like(scores, dtype=torch.bool)
    seen = seen.tril() if case.causal else seen
    seen = seen & inputs.mask if inputs.mask is not None else seen
    if function == "softmax":
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    else:
        number = case.options.get("bias", 0.0)
        h = flashpoint.ops.activation.find_activation(case.activation).forward
        weights = h(scores + number) * seen / seen.sum(-1, keepdim=True)
    o = weights @ v
    leaves = [*wide, *([bias] if case.bias == "learned" else [])]
    return o.detach(), torch.autograd.grad(o, leaves, inputs.do.double())


def test_limits_are_those_that_are_stated():
    found = {}
    for item in select():
        name = str(item.case).rpartition(" ")[0]
        (limit,) = item.limits.speed
        found.setdefault(name, {})[item.case.mode.replace("recording", "forward")] = limit.must
    assert found == {
        name: {
            mode: must
            for mode, must in zip(("forward", "backward"), musts, strict=True)
            if must is not None
        }
        for name, musts in MUSTS.items()
    }


def test_rivals_are_all_that_may_be_the_best_and_are_measured():
    for item in select():
        (limit,) = item.limits.speed
        assert {"sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "fa4"} <= set(item.providers)
        assert set(item.providers) <= {"flashpoint", *limit.rivals}
        assert ("flex_softmax" in item.providers) == item.case.has_matrix
        assert ("sdpa" in item.providers) == item.case.launched


def test_quick_runs_leave_out_what_compiles_for_long():
    assert all("flex_softmax" not in item.providers for item in select(is_quick=True))


def test_one_case_is_in_fp32_whatever_the_dtype():
    assert [str(i.case) for i in select() if i.case.dtype == "fp32"] == [
        "2, 8, 2048, 64  fp32 forward",
        "2, 8, 2048, 64  fp32 backward",
    ]


def test_no_other_suite_has_such_a_case():
    others = [
        entry for name in ("vit", "long", "decode", "sums") for entry in SUITES[name].entries
    ]
    cases = {item.case for item in select()}
    assert not cases & {entry.case("bf16", "cuda") for entry in others}
    assert not any(case.is_usual for case in cases)
    assert len(cases) == len(corners.ENTRIES)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_everybody_computes_the_definition(case):
    inputs = make_inputs(case)
    names = []
    for provider in serving(case):
        names.append(provider.name)
        result = by_heads(provider, case, make_call(provider, case, inputs)())
        o, gradients = whole_in_fp64(case, inputs, provider.function)
        expected = (o,) if isinstance(result, torch.Tensor) else gradients
        got = (result,) if isinstance(result, torch.Tensor) else result
        for mine, exact in zip(got, expected, strict=True):
            torch.testing.assert_close(mine.detach().double(), exact, rtol=2e-4, atol=2e-5)
        parts = list(exact_parts(case, inputs, provider.function))
        assert result_error(parts, result) < error_bound(case)
    assert {"flashpoint", "sdpa", "sdpa_math", "plain"} <= set(names)
    assert ("flex_softmax" in names) == (case.mode == "forward")


@pytest.mark.parametrize("name", ["flashpoint", "sdpa"])
def test_fault_in_the_gradient_of_a_bias_shows(name):
    case = CASES["8, 16, 2048, 64  bf16 learned bias backward"]
    inputs, provider = make_inputs(case), PROVIDERS[name]
    *right, dbias = make_call(provider, case, inputs)()
    parts = list(exact_parts(case, inputs, provider.function))
    assert result_error(parts, (*right, dbias)) < error_bound(case)
    assert result_error(parts, (*right, 1.02 * dbias)) > error_bound(case)


def test_layouts_are_those_of_linear_layers():
    tokens = make_inputs(CASES["8, 16, 2048, 64  bf16 gelu forward"])
    assert all(
        x.transpose(1, 2).is_contiguous() for x in (tokens.q, tokens.k, tokens.v, tokens.do)
    )
    case = CASES["1024, 6, 65, 64  bf16 packed backward"]
    packed = make_inputs(case)
    assert len({x.untyped_storage().data_ptr() for x in (packed.q, packed.k, packed.v)}) == 1
    ours = prepare(PROVIDERS["flashpoint"], case, packed)
    assert [list(leaf.shape) for leaf in ours.leaves] == [[2, 33, 3, 3, 16]]
    assert ours.forward().shape == ours.do.shape == (2, 33, 3, 16)


def test_mask_hides_half_and_every_query_sees_a_key():
    mask = make_inputs(CASES["8, 16, 2048, 64  bf16 mask forward"]).mask
    assert mask.shape == (2, 1, 33, 33)
    assert 0.4 < mask.float().mean() < 0.6
    assert mask.any(-1).all()


def test_forward_with_a_learned_bias_records_its_graph():
    case = CASES["8, 16, 2048, 64  bf16 learned bias recording"]
    assert make_call(PROVIDERS["flashpoint"], case, make_inputs(case))().requires_grad


def test_bytes_of_masks_and_biases_count():
    plain = Case(shape=Shape(2, 4, 10, 8), dtype="bf16", mode="forward")
    assert replace(plain, mask="bool").bytes_moved == plain.bytes_moved + 2 * 100
    assert replace(plain, bias="fixed").bytes_moved == plain.bytes_moved + 2 * 4 * 100
    backward = replace(plain, mode="backward")
    learned = replace(backward, bias="learned")
    assert learned.bytes_moved == backward.bytes_moved + 2 * 2 * 4 * 100
