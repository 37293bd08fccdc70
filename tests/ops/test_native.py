"""The kernel in C++: exact in every option it serves."""

import itertools
import os
import platform
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from native_kernel import SHAPE, needs_kernel
from numerics import make_inputs, place_qkv
from results import evaluate

from flashpoint import attention
from flashpoint.lab.selfcheck.case import Scored
from flashpoint.lab.selfcheck.draws import Scope, draw_case
from flashpoint.lab.selfcheck.judge import Sample, Sums, share_of
from flashpoint.lab.selfcheck.run import run_case
from flashpoint.ops.activation import find_activation
from flashpoint.ops.cpu.native import build, call
from flashpoint.ops.spec import Terms

NAN, INF = float("nan"), float("inf")
EPS = torch.finfo(torch.float32).eps


def evaluate_on_cpu(function, tensors):
    """The output of a call with gradients, which are made as well."""
    o = function(**{name: x.detach().requires_grad_() for name, x in tensors.items()})
    o.backward(torch.ones_like(o))
    return o.detach()


def evaluate_thrice(function, tensors):
    """By the reference in fp64 and in fp32, and by the kernel."""
    ways = ((torch.float64, "reference"), (torch.float32, "reference"), (torch.float32, "cpu"))
    return [
        evaluate(
            partial(function, impl=impl), **{name: x.to(dtype) for name, x in tensors.items()}
        )
        for dtype, impl in ways
    ]


def served(index):
    """A random case, made one that the kernel mostly serves."""
    case = draw_case(0, index, Scope("cpu", ("cpu",)))
    activation = list(build.CLASSES)[index % len(build.CLASSES)]
    normalize = case.normalize if find_activation(activation).is_nonnegative else "length"
    dtype = case.dtype if index % 3 == 0 and case.dtype != "fp64" else "fp32"
    scored = {
        name: replace(x, dtype="fp32")
        for name in ("bias", "mask")
        if isinstance(x := getattr(case, name), Scored) and x.dtype == "fp64"
    }
    changed = {"dtype": dtype, "activation": activation, **scored}
    # A norm over one number has no gradient: whatever of it is left is chance times 1,000.
    norms = case.norms if case.D > 1 else (None, None)
    gain_dtype = case.gain_dtype if any(norms) else None
    return replace(case, normalize=normalize, norms=norms, gain_dtype=gain_dtype, **changed)


@needs_kernel
@pytest.mark.parametrize("first", range(0, 800, 50))
def test_random_calls_stay_within_the_budget(used, first):
    outcomes = [run_case(served(n), torch.device("cpu")) for n in range(first, first + 50)]
    missed = [f"{outcome.line}: {outcome.detail}" for outcome in outcomes if outcome.is_miss]
    assert not missed, "\n".join(missed)
    assert not any(outcome.is_refused for outcome in outcomes)
    assert min(used.values()) >= 50


@needs_kernel
@pytest.mark.parametrize("activation", build.CLASSES)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (9, 5)}], ids=str)
def test_more_queries_than_are_packed_at_a_time(used, activation, options):
    """Backward packs 4,096 at a time: dk and dv are of two such spans, dq of several shares."""
    tensors = make_inputs((1, 2, 1, 4200, 130, 8, 8))
    function = partial(attention, activation=activation, length=100, **options)
    exact, plain, got = evaluate_thrice(function, {name: tensors[name] for name in "qkv"})
    assert used == {"attend": 1, "differentiate": 1}
    for name, value in exact.items():
        budget = 2 * (plain[name] - value).abs().max()
        assert (got[name] - value).abs().max() <= budget, name


@needs_kernel
@pytest.mark.parametrize("activation", build.CLASSES)
@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("heads", [(3, 3), (6, 2), (20, 2)], ids=str)
@pytest.mark.pairwise
def test_few_queries_meet_their_keys_together(used, activation, queries, heads):
    """As in decoding: all heads of a key head, over windows, lengths, sums and odd head dims."""
    h = find_activation(activation)
    divisions = [{"normalize": "length", "alpha": 0.5}]
    divisions += [{"normalize": "sum"}] if h.is_nonnegative else []
    ranges = ({}, {"causal": True}, {"window": (70, 0)}, {"key_lengths": torch.tensor([130, 0])})
    for division, seen, dims in itertools.product(divisions, ranges, ((64, 64), (33, 70))):
        function = partial(attention, activation=activation, return_sums=True, **division, **seen)
        samples = []
        for seed in range(3):  # one query's errors are few numbers, and some small by chance
            tensors = make_inputs((2, *heads, queries, 150, *dims), seed=seed)
            exact, plain, got = evaluate_thrice(function, {name: tensors[name] for name in "qkv"})
            samples.append(Sample(got, exact, plain))
            for name in ("dq", "dk", "dv"):
                bound = 1e-5 * exact[name].abs().max()
                assert (got[name] - exact[name]).abs().max() <= bound, (name, division, seen, dims)
        shares = [share_of(name, samples, Sums()) for name in ("o", "sums")]
        assert all(share.ratio <= 1 for share in shares), (shares, division, seen, dims)
    assert min(used.values()) == len(divisions) * 24


@needs_kernel
def test_bits_of_few_queries_do_not_depend_on_threads_or_neighbors(used, threads):
    q, k, v = place_qkv("cpu", (1, 12, 3, 1, 700, 64, 40), torch.float32).values()
    expected = attention(q, k, v, window=(300, 0))
    for count in (1, 2, 3, 4):
        threads(count)
        assert torch.equal(attention(q, k, v, window=(300, 0)), expected)
    alone = attention(q[:, 4:5], k[:, 1:2], v[:, 1:2], window=(300, 0))
    assert torch.equal(alone, expected[:, 4:5])


@needs_kernel
@pytest.mark.parametrize("window", [(None, 0), (100, 0), (33, 21)])
def test_bits_do_not_depend_on_who_takes_which_piece(used, threads, window):
    tensors = place_qkv("cpu", (1, 2, 1, 500, 700, 64, 64), torch.float32)
    outputs = []
    for count in (1, 2, 4):
        threads(count)
        results = [evaluate(partial(attention, window=window), **tensors) for _ in range(3)]
        for again in results[1:]:
            assert all(torch.equal(results[0][name], x) for name, x in again.items())
        outputs.append(results[0])
    for name in ("o", "dk", "dv"):  # dq is a sum of shares, whose number goes by the threads
        assert torch.equal(outputs[0][name], outputs[1][name])
        assert torch.equal(outputs[0][name], outputs[2][name])


@needs_kernel
@pytest.mark.parametrize("activation", build.CLASSES)
def test_nan_in_a_query_stays_in_its_row(used, activation):
    tensors = place_qkv("cpu", SHAPE, torch.float32)
    tensors["q"][1, 2, 7, 3] = NAN
    o = attention(**tensors, activation=activation)
    hit = torch.zeros_like(o, dtype=torch.bool)
    hit[1, 2, 7] = True
    assert torch.equal(o.isnan(), hit)
    assert used["attend"] == 1


@needs_kernel
@pytest.mark.parametrize("activation", build.CLASSES)
def test_infinite_scores_are_weighed_as_in_the_reference(used, activation):
    q = torch.tensor([INF, -INF, 1.0, -1.0]).repeat(5)[:, None].expand(1, 1, 20, 1)
    k, v = torch.ones(1, 1, 30, 1), torch.ones(1, 1, 30, 1)
    found = attention(q, k, v, activation=activation)
    assert used["attend"] == 1
    tensors = (x.double() for x in (q, k, v))  # in fp32 PyTorch's gelu of infinity is NaN
    expected = attention(*tensors, activation=activation, impl="reference")
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0, equal_nan=True)


@needs_kernel
@pytest.mark.parametrize("activation", build.CLASSES)
@pytest.mark.parametrize("most", [1, 7, 30, 120])
def test_weights_and_slopes_are_as_exact_as_those_of_pytorch(used, activation, most):
    """A key of one number: outputs are h(s) then, and gradients its slopes."""
    scores = torch.linspace(-most, most, 20_001, dtype=torch.float64).float()
    one = torch.ones(1, 1, 1, 1)
    function = partial(attention, activation=activation, scale=1.0, alpha=0.0)
    tensors = {"q": scores.view(1, 1, -1, 1), "k": one, "v": one}
    exact, plain, got = evaluate_thrice(function, tensors)
    assert used == {"attend": 1, "differentiate": 1}
    for name in ("o", "dq"):
        value = exact[name]
        seen = value.abs() < torch.finfo(torch.float32).max
        errors = [(x[name] - value)[seen].abs().max() for x in (got, plain)]
        assert errors[0] <= 2 * errors[1] + EPS * value[seen].abs().max(), name
        assert got[name][~seen].isinf().all()


@needs_kernel
@pytest.mark.parametrize("activation", ["relu", "relu2", "relu3", "relu4", "relu6"])
def test_an_infinite_gradient_dies_where_the_activation_is_flat(used, activation):
    q = torch.full((1, 1, 20, 8), -1.0, requires_grad=True)
    k, v = torch.ones(1, 1, 30, 8), torch.ones(1, 1, 30, 8)
    attention(q, k, v, activation=activation).backward(torch.full((1, 1, 20, 8), INF))
    assert used["differentiate"] == 1
    assert torch.equal(q.grad, torch.zeros_like(q))


@needs_kernel
def test_keys_that_do_not_exist_are_not_read(used):
    tensors = place_qkv("cpu", SHAPE, torch.float32)
    lengths = torch.tensor([0, 33])
    clean = evaluate(lambda **t: attention(**t, key_lengths=lengths), **tensors)
    for name in "kv":
        tensors[name][0] = NAN
        tensors[name][1, :, 33:] = INF
    poisoned = evaluate(lambda **t: attention(**t, key_lengths=lengths), **tensors)
    assert all(torch.equal(clean[name], x) for name, x in poisoned.items())
    assert used == {"attend": 2, "differentiate": 2}
    assert not clean["o"][0].any()
    assert not clean["dk"][1, :, 33:].any()


@needs_kernel
def test_views_are_read_as_they_are(used):
    tensors = place_qkv("cpu", SHAPE, torch.float32)
    expected = attention(**tensors)
    turned = {name: x.mT.contiguous().mT for name, x in tensors.items()}
    assert torch.equal(attention(**turned), expected)
    negated = {name: torch._neg_view(-x) for name, x in tensors.items()}
    assert torch.equal(attention(**negated), expected)
    beside = {
        name: torch.cat([x, torch.full_like(x, NAN)], -1)[..., : x.shape[-1]]
        for name, x in tensors.items()
    }
    assert torch.equal(attention(**beside), expected)
    assert used["attend"] == 4


@needs_kernel
def test_a_second_call_goes_by_the_first_ones_plan(used, threads, monkeypatch):
    """One like it does, whatever its numbers; one that differs in anything does not."""
    again = []
    usual = call.repeat
    monkeypatch.setattr(call, "repeat", lambda *x: again.append(usual(*x)) or again[-1])
    monkeypatch.setattr(call, "FEWEST_KEYS", 256)  # backward in one share of them

    def goes_by_a_plan(*tensors, **options):
        """Whether forward and backward do; they must agree, and be right."""
        again.clear()
        named = dict(zip("qkv", tensors, strict=True))
        got = evaluate(partial(attention, **options), **named)
        reference = partial(attention, **options, impl="reference")
        exact = evaluate(reference, **{name: x.double() for name, x in named.items()})
        for name, value in exact.items():
            torch.testing.assert_close(got[name].double(), value, rtol=1e-4, atol=1e-4)
        forward, backward = (x is not None for x in again)
        assert forward == backward
        return forward

    q, k, v = place_qkv("cpu", SHAPE, torch.float32).values()
    assert not goes_by_a_plan(q, k, v)
    assert goes_by_a_plan(*place_qkv("cpu", SHAPE, torch.float32, seed=1).values())
    assert goes_by_a_plan(q, k, v)
    turned = k.mT.contiguous().mT  # read by a copy
    for is_second in (False, True):
        assert goes_by_a_plan(q, k, v, scale=0.3, causal=True) == is_second
        assert goes_by_a_plan(q, k, v[:, :, :, 3:]) == is_second
        assert not goes_by_a_plan(q, turned, v)
        assert not goes_by_a_plan(torch._neg_view(q), k, v)
    v_zero = torch._efficientzerotensor(v.shape)
    assert not attention(q, k, v_zero).any()
    assert again[-1] is None
    threads(3)
    assert not goes_by_a_plan(q, k, v)
    monkeypatch.setattr(build, "_found", {})
    assert not goes_by_a_plan(q, k, v)


@needs_kernel
@pytest.mark.parametrize(
    "options",
    [
        {"bias": torch.zeros(1, 1, 70, 150, dtype=torch.float64)},
        {"mask": torch.ones(1, 1, 70, 150, dtype=torch.float64)},
        {"scale": 1e-40},
        {"return_sums": "logs"},
    ],
    ids=["bias-fp64", "mask-fp64", "small-scale", "logs"],
)
def test_other_calls_go_by_products(used, options):
    attention(**place_qkv("cpu", SHAPE, torch.float32), **options)
    attention(**place_qkv("cpu", SHAPE, torch.bfloat16))
    assert used["attend"] == 0


def axes_of(shape):
    """Every way in which a bias or mask can have one number for all along an axis."""
    return [
        tuple(size if whole else 1 for size, whole in zip(shape, chosen, strict=True))
        for chosen in itertools.product((False, True), repeat=len(shape))
    ]


@needs_kernel
@pytest.mark.parametrize("shape", axes_of((2, 4, 70, 150)), ids=str)
@pytest.mark.parametrize("kind", ["bias", "mask", "bool"])
@pytest.mark.parametrize("window", [None, (40, 9)], ids=str)
def test_scores_of_every_shape_match_the_reference(used, shape, kind, window):
    """Also their gradients, which are sums along the axes that they lack."""
    tensors = make_inputs(SHAPE)
    generator = torch.Generator().manual_seed(len(shape))
    scores = torch.rand(shape, generator=generator, dtype=torch.float64) - (kind == "bias") / 2
    name = "bias" if kind == "bias" else "mask"
    given = {x: tensors[x] for x in "qkv"}
    hidden = {"mask": scores > 0.3} if kind == "bool" else {}
    if not hidden:
        given[name] = scores
    function = partial(attention, activation="softplus", window=window, **hidden)
    exact, plain, got = evaluate_thrice(function, given)
    assert used == {"attend": 1, "differentiate": 1}
    for result, value in exact.items():
        eps = EPS * value.abs().max()  # a sum of all scores is one number, exact by chance
        budget = 2 * (plain[result] - value).abs().max() + (8 if result == f"d{name}" else 1) * eps
        assert (got[result] - value).abs().max() <= budget, result


@needs_kernel
def test_strides_of_scores_are_read_as_they_are(used):
    tensors = place_qkv("cpu", SHAPE, torch.float32)
    bias, mask = torch.randn(2, 4, 70, 150), torch.rand(2, 4, 70, 150) > 0.4
    expected = attention(**tensors, bias=bias, mask=mask)
    lain = (
        lambda x: x.mT.contiguous().mT,
        lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
        lambda x: torch.stack([x, x], -1)[..., 1],
    )
    for lay in lain:
        assert torch.equal(attention(**tensors, bias=lay(bias), mask=lay(mask)), expected)
    negated = torch._neg_view(-bias)
    assert torch.equal(attention(**tensors, bias=negated, mask=mask), expected)
    bytes_of = torch.full((2, 4, 70, 150), 2, dtype=torch.uint8).where(mask, 0).view(torch.bool)
    assert torch.equal(attention(**tensors, bias=bias, mask=bytes_of), expected)
    assert used["attend"] == 6


@needs_kernel
@pytest.mark.parametrize("activation", ["relu", "gelu", "sigmoid"])
def test_what_a_mask_hides_leaves_no_inf_or_nan(used, activation):
    """Scores beyond fp32 behind a mask of booleans: neither result nor gradients see them."""
    tensors = place_qkv("cpu", SHAPE, torch.float32)
    mask = torch.rand(2, 1, 1, 150) > 0.5
    clean = evaluate(partial(attention, mask=mask, activation=activation), **tensors)
    tensors["k"] = tensors["k"].masked_fill(~mask.transpose(2, 3), 3e38)
    hidden = evaluate(partial(attention, mask=mask, activation=activation), **tensors)
    for name, value in clean.items():
        wanted = value if name != "dq" else hidden["dq"]  # 0 times 3e38 may stay in its sum
        assert torch.equal(hidden[name], wanted), name
    assert hidden["dq"].isfinite().all()
    assert used == {"attend": 2, "differentiate": 2}


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("normalize", ["length", "sum"])
def test_16_bits_are_served_where_products_would_be_of_32(used, dtype, normalize):
    inputs = {name: x for name, x in make_inputs(SHAPE).items() if name in "qkv"}
    inputs["bias"] = torch.randn(4, 70, 150, dtype=torch.float64)
    function = partial(attention, activation="relu4", normalize=normalize)
    rounded = {name: x.to(dtype) for name, x in inputs.items()}
    exact = evaluate(function, **{name: x.double() for name, x in rounded.items()})
    plain = evaluate(partial(function, impl="reference"), **rounded)
    got = evaluate(function, **rounded)
    assert used == {"attend": 1, "differentiate": 1}
    for name, value in exact.items():
        assert got[name].dtype == dtype
        budget = 2 * (plain[name].double() - value).abs().max()
        budget += torch.finfo(dtype).eps * value.abs().max()
        assert (got[name].double() - value).abs().max() <= budget, name


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ and its sanitizers")
@pytest.mark.parametrize(("cpu", "activation"), [("native", "Relu<1>"), ("x86-64-v3", "Gelu")])
def test_no_number_is_read_or_written_beside_its_place(tmp_path, cpu, activation):
    """Vectors of 16 and of 8 numbers, where the CPU has them."""
    if cpu != "native" and platform.machine() != "x86_64":
        pytest.skip("this CPU is no x86-64")
    check, program = Path(__file__).with_name("native_check.cpp"), tmp_path / "check"
    watching = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1")
    own = ("-std=c++17", f"-march={cpu}", "-Wall", "-Wextra", "-Werror")
    sources = f"-I{Path(build.__file__).parent}"
    subprocess.run(
        ["g++", *own, *watching, f"-DACTIVATION={activation}", sources, check, "-o", program],
        check=True,
    )
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_kernel
def test_a_forked_process_of_one_thread_computes(used):
    """As a DataLoader's workers do, after the parent used all its threads."""
    tensors = place_qkv("cpu", SHAPE, torch.float32)
    expected = attention(**tensors)
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            is_same = torch.equal(attention(**tensors), expected)
        finally:
            os._exit(0 if is_same else 1)
    assert os.waitpid(pid, 0)[1] == 0


@needs_kernel
def test_a_default_device_is_not_where_it_looks(used):
    """Another place for new tensors must not reach those that the kernel is handed."""
    tensors = place_qkv("cpu", (1, 1, 1, 300, 600, 16, 16), torch.float32)
    lengths = torch.tensor([33])
    calls = ({}, {"key_lengths": lengths}, {"causal": True}, {"scale": 1e-40})
    expected = [evaluate(partial(attention, **options), **tensors) for options in calls]
    with torch.device("meta"):
        found = [evaluate_on_cpu(partial(attention, **options), tensors) for options in calls]
    for got, wanted in zip(found, expected, strict=True):
        assert torch.equal(got, wanted["o"])


@needs_kernel
def test_operands_that_do_not_fit_are_not_for_it(used):
    """PyTorch's own operator can be called past our checks; then products complain."""
    q, k, v = place_qkv("cpu", (1, 2, 2, 16, 64, 16, 16), torch.float32).values()
    scores = torch.zeros(1, 2, 16, 64)
    rest = (Terms(), torch.float32)
    assert call.find_kernel(q, k, v, scores, scores[..., :1], *rest) is not None
    for wrong in (
        (q, k, v[:, :, :50]),
        (q, k[..., :8], v),
        (q, k.double(), v),
        (torch.cat([q, q[:, :1]], 1), k, v),
        (q.expand(2, -1, -1, -1), k, v),
        (q, k, v[:, :1]),
    ):
        assert call.find_kernel(*wrong, None, None, *rest) is None
    for wrong in (scores[..., :63], scores[0], scores.expand(2, -1, -1, -1)):
        assert call.find_kernel(q, k, v, wrong, None, *rest) is None
        assert call.find_kernel(q, k, v, None, wrong, *rest) is None


@needs_kernel
def test_zeros_without_memory_are_read_as_zeros(used):
    tensors = place_qkv("cpu", SHAPE, torch.float32)
    tensors["v"] = torch._efficientzerotensor(tensors["v"].shape)
    assert not attention(**tensors).any()
    assert used["attend"] == 1


def test_shares_of_the_keys_stay_within_memory(monkeypatch):
    """However many threads there are, backward keeps few gradients of q."""
    kept = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(call, "_run", lambda *args: kept.append(args[2].get("parts")))
    needs = {"need_dbias": False, "need_dmask": False}
    for batch in (1, 8):
        q = torch.empty(batch, 8, 4096, 64)
        call.differentiate(None, dict.fromkeys("qkvg", q), None, Terms(), **needs)
    assert kept[0].nbytes == call.MOST_BYTES
    assert kept[1] is None
