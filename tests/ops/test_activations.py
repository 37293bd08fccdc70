"""Every h is its textbook formula with its textbook derivative, and users' own are honoured."""

import copy
import pickle
from contextlib import suppress
from functools import partial

import pytest
import textbook
import torch
import torch.nn.functional as F
from implementations import IMPLEMENTATIONS, IN_PYTHON, device_of, on_gpu, widest_dtype
from results import assert_same, evaluate
from torch import nn

from flashpoint import Activation, InputError, UnsupportedError, attention
from flashpoint.ops.activation import ACTIVATIONS, BUILTIN
from flashpoint.ops.spec import Terms

implementations = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
in_python = pytest.mark.parametrize("impl", IN_PYTHON)
every_builtin = pytest.mark.parametrize("name", BUILTIN)
SCORES = (-100, -45, -20, -6, -3, -1, -1e-3, 0, 1e-3, 1, 3, 6, 6.5, 20, 39, 41, 100)
KINKS = {name: [0.0, -0.0] for name in ("relu", "relu2", "relu3", "relu4")}
KINKS["relu6"] = [0.0, -0.0, 6.0]


def weights_and_slopes(impl, scores, activation, *, by="keys", dtype=None):
    """h and h' at given scores, read off a real call: v is the unit matrix, one query."""
    dtype = widest_dtype(impl) if dtype is None else dtype
    scores = torch.tensor(scores, dtype=dtype, device=device_of(impl))
    q = scores.new_ones(1, 1, 1, 1) if by == "keys" else scores.new_zeros(1, 1, 1, 1)
    source = scores.view(1, 1, *((-1, 1) if by == "keys" else (1, -1))).requires_grad_()
    k, bias = (source, None) if by == "keys" else (scores.new_ones(1, 1, len(scores), 1), source)
    v = torch.eye(len(scores), dtype=dtype, device=scores.device).expand(1, 1, -1, -1)
    o = attention(q, k, v, activation=activation, alpha=0, scale=1, bias=bias, impl=impl)
    (slopes,) = torch.autograd.grad(o.sum(), source)
    return o.flatten().cpu(), slopes.flatten().cpu()


def make_qkv(impl):
    generator = torch.Generator().manual_seed(0)
    sizes = {"q": (2, 4, 5, 3), "k": (2, 2, 7, 3), "v": (2, 2, 7, 4)}
    return {
        name: torch.randn(size, generator=generator, dtype=torch.float64).to(
            device_of(impl), widest_dtype(impl)
        )
        for name, size in sizes.items()
    }


@pytest.mark.parametrize("by", ["keys", "bias"])
@every_builtin
@in_python
def test_builtin_is_its_textbook_formula(impl, name, by):
    weights, slopes = weights_and_slopes(impl, SCORES, name, by=by)
    # 1 + erf(s) and sigmoid * (1 - sigmoid) cancel in a tail
    atol = {"gelu": 2e-14, "sigmoid": 1e-16}.get(name, 0.0)
    for got, formula in ((weights, textbook.ACTIVATIONS), (slopes, textbook.DERIVATIVES)):
        expected = torch.tensor([formula[name](s) for s in SCORES], dtype=torch.float64)
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=atol)


@every_builtin
@implementations
def test_builtin_is_its_textbook_formula_in_fp32(impl, name):
    scores = SCORES[:-1] if name == "exp" else SCORES  # the last of these leaves fp32's range
    weights, slopes = weights_and_slopes(impl, scores, name, dtype=torch.float32)
    for got, formula in ((weights, textbook.ACTIVATIONS), (slopes, textbook.DERIVATIVES)):
        exact = torch.tensor([formula[name](s) for s in scores], dtype=torch.float64)
        torch.testing.assert_close(got, exact.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("by", ["keys", "bias"])
@pytest.mark.parametrize(("name", "kinks"), KINKS.items(), ids=KINKS)
@implementations
@on_gpu(lambda by, dtype: by == "keys" and dtype == torch.bfloat16)
@pytest.mark.pairwise
def test_slope_at_a_kink_is_zero(impl, name, kinks, by, dtype):
    weights, slopes = weights_and_slopes(impl, kinks, name, by=by, dtype=dtype)
    assert weights.tolist() == [textbook.ACTIVATIONS[name](s) for s in kinks]
    assert slopes.tolist() == [0.0] * len(kinks)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", KINKS)
@implementations
@on_gpu(lambda dtype: dtype == torch.bfloat16)
def test_orthogonal_queries_and_keys_have_no_gradient(impl, name, dtype):
    tensors = {"q": [[1.0, 1.0]], "k": [[3.0, -3.0], [0.0, 0.0]], "v": [[1.0], [2.0]]}
    tensors = {
        n: torch.tensor(t, dtype=dtype, device=device_of(impl))[None, None]
        for n, t in tensors.items()
    }
    found = evaluate(partial(attention, activation=name, impl=impl), **tensors)
    assert not any(t.any() for t in found.values())


OWN = {
    "leaky relu": (F.leaky_relu, lambda s: torch.where(s > 0, 1.0, 0 * s + 0.01)),
    "cube": (lambda s: s**3, lambda s: 3 * s**2),
    "sine": (torch.sin, torch.cos),
    "scores themselves": (lambda s: s, torch.ones_like),
    "a module": (nn.ELU(), lambda s: torch.where(s > 0, 1.0, s.exp())),
    "in place": (nn.ReLU(inplace=True), lambda s: (s > 0).to(s)),
    "sigmoid in place": (torch.Tensor.sigmoid_, lambda s: s.sigmoid() * (-s).sigmoid()),
}


@pytest.mark.parametrize("options", [{}, {"causal": True, "bias": 0.3}], ids=["all", "causal"])
@pytest.mark.parametrize(("function", "derivative"), OWN.values(), ids=OWN)
@in_python
def test_own_activation_needs_no_derivative(impl, function, derivative, options):
    tensors = make_qkv(impl)
    call = partial(attention, impl=impl, **options)
    stated = Activation("stated", function, derivative)
    found = Activation("found", function)

    def plain(q, k, v):  # the definition once more, for heads that share keys
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        scores = q @ k.mT * q.shape[-1] ** -0.5 + options.get("bias", 0)
        seen = torch.ones_like(scores, dtype=torch.bool)
        if options:
            seen = seen.tril(k.shape[2] - q.shape[2])
        weights = function(scores) * seen
        return weights @ v / seen.sum(-1, keepdim=True)

    expected = evaluate(plain, **tensors)
    assert_same(evaluate(partial(call, activation=found), **tensors), expected)
    assert_same(evaluate(partial(call, activation=stated), **tensors), expected)


@in_python
def test_stated_derivative_is_honoured(impl):
    straight_through = Activation("step", lambda s: (s > 0).to(s), lambda s: 0.5 + 0 * s)
    for by in ("keys", "bias"):
        weights, slopes = weights_and_slopes(impl, [-1.0, 0.0, 2.0], straight_through, by=by)
        assert weights.tolist() == [0.0, 0.0, 1.0]
        assert slopes.tolist() == [0.5, 0.5, 0.5]


@in_python
def test_parameter_inside_an_activation_is_learned_or_refused(impl):
    slope = torch.tensor([0.2], dtype=torch.float64, device=device_of(impl), requires_grad=True)
    learned = Activation("prelu", lambda s: F.prelu(s, slope))
    call = partial(attention, **make_qkv(impl), activation=learned)
    with torch.no_grad():
        assert_same({"o": call(impl=impl)}, {"o": call(impl="reference")})
    (expected,) = torch.autograd.grad(call(impl="reference").sum(), slope)
    with suppress(UnsupportedError):
        (found,) = torch.autograd.grad(call(impl=impl).sum(), slope)
        assert_same({"dslope": found}, {"dslope": expected})


CONSTANTS = {
    "ones": torch.ones_like,
    "expanded": lambda s: s.new_ones(()).expand_as(s),
    "other dtype": lambda s: torch.ones(s.shape, dtype=torch.float16, device=s.device),
    "booleans": lambda s: s == s,
    "detached": lambda s: s.detach() * 0 + 1,
}


@pytest.mark.parametrize("derivative", [None, torch.zeros_like], ids=["found", "stated"])
@pytest.mark.parametrize("function", CONSTANTS.values(), ids=CONSTANTS)
@in_python
def test_constant_activation_averages_the_values(impl, function, derivative):
    constant = Activation("constant", function, derivative)
    tensors = make_qkv(impl)
    tensors["bias"] = tensors["q"][..., :1]
    for options in ({}, {"causal": True}):
        found = evaluate(partial(attention, activation=constant, impl=impl, **options), **tensors)
        assert not any(found[name].any() for name in ("dq", "dk", "dbias"))
        assert found["dv"].all()
        mean = tensors["v"].mean(2).repeat_interleave(2, dim=1)
        torch.testing.assert_close(found["o"][:, :, -1], mean)


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch's own
@pytest.mark.parametrize("derivative", [None, torch.cos], ids=["found", "stated"])
@in_python
def test_own_activation_compiles_without_graph_break(impl, derivative):
    torch._dynamo.reset()
    sine = Activation("sine", torch.sin, derivative)
    call = partial(attention, activation=sine, causal=True, impl=impl)
    compiled = torch.compile(lambda q, k, v: call(q, k, v), fullgraph=True, backend="aot_eager")
    tensors = make_qkv(impl)
    assert_same(evaluate(compiled, **tensors), evaluate(call, **tensors))


@in_python
def test_compiled_function_follows_a_change_of_activation(impl):
    torch._dynamo.reset()
    tensors = make_qkv(impl)
    compiled = torch.compile(partial(attention, impl=impl), fullgraph=True, backend="aot_eager")
    for activation in (Activation("same", torch.sin), Activation("same", torch.tanh), "relu"):
        got = compiled(**tensors, activation=activation)
        expected = attention(**tensors, activation=activation, impl=impl)
        assert_same({"o": got}, {"o": expected})


@in_python
def test_equal_names_do_not_collide(impl):
    first, second = Activation("mine", torch.sin), Activation("mine", torch.cos)
    for activation, function in ((first, torch.sin), (second, torch.cos), (first, torch.sin)):
        weights, _ = weights_and_slopes(impl, [0.5, 2.0], activation)
        torch.testing.assert_close(weights, function(torch.tensor([0.5, 2.0]).double()))


@every_builtin
@in_python
def test_builtin_name_of_a_users_activation_replaces_nothing(impl, name):
    before = weights_and_slopes(impl, [-2.0, 3.0], name)
    doubled = Activation(name, lambda s: 2 * s)
    assert weights_and_slopes(impl, [-2.0, 3.0], doubled)[0].tolist() == [-4.0, 6.0]
    after = weights_and_slopes(impl, [-2.0, 3.0], name)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


HOMOGENEOUS = {
    "relu": (F.relu, 1),
    "relu2": (lambda s: F.relu(s) ** 2, 2),
    "relu3": (lambda s: F.relu(s) ** 3, 3),
    "sign": (torch.sign, 0),
    "leaky": (F.leaky_relu, 1),
}


@pytest.mark.parametrize("scale", [None, 0.3, 4, 1.0, 0, -0.7])
@pytest.mark.parametrize(("function", "degree"), HOMOGENEOUS.values(), ids=HOMOGENEOUS)
@in_python
def test_degree_changes_no_result(impl, function, degree, scale):
    tensors = make_qkv(impl)
    with_degree = Activation("with", function, degree=degree)
    without = Activation("without", function)
    for options in ({}, {"causal": True}, {"bias": 0.4}, {"length": 9, "alpha": 0.5}):
        call = partial(attention, scale=scale, impl=impl, **options)
        got, expected = (
            evaluate(partial(call, activation=activation), **tensors)
            for activation in (with_degree, without)
        )
        assert_same(got, expected)
    if degree > 0:  # a bias of numbers lets no scale pass
        tensors["bias"] = tensors["q"][..., :1]
        got, expected = (
            evaluate(partial(attention, scale=scale, impl=impl, activation=activation), **tensors)
            for activation in (with_degree, without)
        )
        assert_same(got, expected)


def cubed(scores):
    return scores**3


@in_python
def test_copies_of_an_activation_are_the_same_function(impl, monkeypatch):
    original = Activation("cubed", cubed)
    tensors = make_qkv(impl)
    expected = attention(**tensors, activation=original, impl=impl)
    copied, pickled = copy.deepcopy(original), pickle.dumps(original)
    assert torch.equal(attention(**tensors, activation=copied, impl=impl), expected)
    monkeypatch.delitem(ACTIVATIONS, original.key)  # as in another process
    unpickled = pickle.loads(pickled)
    assert torch.equal(attention(**tensors, activation=unpickled, impl=impl), expected)


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        (("mine", "relu"), ("'mine'", "forward must be callable", "'relu'")),
        (("mine", None), ("'mine'", "forward must be callable", "None")),
        (("mine", F.relu, 1.0), ("'mine'", "derivative must be callable or None", "1.0")),
    ],
)
def test_activation_without_functions_is_refused(arguments, pieces):
    with pytest.raises(InputError) as caught:
        Activation(*arguments)
    for piece in pieces:
        assert piece in str(caught.value)


@in_python
def test_activation_that_changes_the_shape_is_refused(impl):
    summed = Activation("summed", lambda s: s.sum(-1, keepdim=True))
    with pytest.raises(InputError, match="must be pointwise"):
        attention(**make_qkv(impl), activation=summed, impl=impl)


@pytest.mark.parametrize(
    ("degree", "message"), [(1, "degree is not 1"), ("2", "an integer or None")]
)
def test_wrong_degree_is_refused(degree, message):
    with pytest.raises(InputError, match=message):
        Activation("mine", torch.sigmoid, degree=degree)


@in_python
def test_derivative_that_changes_the_shape_is_refused(impl):
    mine = Activation("mine", torch.tanh, lambda s: s.sum())
    tensors = {name: t.requires_grad_() for name, t in make_qkv(impl).items()}
    with pytest.raises(InputError, match="must be pointwise"):
        attention(**tensors, activation=mine, impl=impl).sum().backward()


def test_unknown_key_in_a_graph_says_what_to_do():
    q = torch.randn(1, 1, 3, 4)
    with pytest.raises(InputError, match="Make it first, of the same functions"):
        torch.ops.flashpoint.attention(q, q, q, None, None, None, *Terms("gone#7", 1.0, "keys"))
