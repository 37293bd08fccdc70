"""The operators that give sums, inside PyTorch: opcheck, compile, export, autocast and more."""

from functools import partial

import pytest
import torch
from implementations import (
    FAST,
    IMPLEMENTATIONS,
    compiler_of,
    device_of,
    interpreted,
    opcheck_backward,
    operator,
    serves,
)
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from flashpoint import (
    HeadNorm,
    UnsupportedError,
    attention,
    attention_qkvpacked,
    attention_varlen,
)
from flashpoint.ops.spec import NormTerms, Terms

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_fast = pytest.mark.parametrize("impl", FAST)
every_division = pytest.mark.parametrize("normalize", ["length", "sum"])
NORMS = NormTerms("layer", 1e-6, "rms", 1e-5)


def terms(normalize, activation="relu4", **options):
    """What a call's options come to."""
    alpha, floor = (-1.0, 1e-3) if normalize == "sum" else (1.0, 0.0)
    return Terms(activation, alpha, normalize=normalize, floor=floor, **options)


def rand(impl, *size, grad=True):
    x = torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))
    return x.to(device_of(impl)).requires_grad_(grad)


def dense(impl, B=2, H=2, L=9, D=8, grad=True):
    """q, k, v as a linear layer leaves them."""
    x = rand(impl, 3, B, L, H, D, grad=False).transpose(2, 3)
    return [t.detach().requires_grad_(grad) for t in x.unbind()]


def joined(impl, B=2, H=2, L=9, D=8, grad=True):
    """qkv and the gains of q and k."""
    return [rand(impl, *size, grad=grad) for size in ((B, L, 3, H, D), (D,), (D,))]


def rows(impl, B=2, H=2, L=9, D=8, grad=True):
    """B sequences of L tokens in a row."""
    x = rand(impl, 3, B * L, H, D, grad=False)
    return [t.detach().requires_grad_(grad) for t in x.unbind()]


def attend_joined(qkv, q_gain, k_gain, **options):
    norms = {"q_norm": HeadNorm("layer", q_gain), "k_norm": HeadNorm("rms", k_gain, 1e-5)}
    return attention_qkvpacked(qkv, **norms, **options)


def attend_rows(q, k, v, B=2, **options):
    longest = q.shape[0] // B
    ends = longest * torch.arange(B + 1, device=q.device)
    return attention_varlen(q, k, v, ends, ends, longest, longest, **options)


FORMS = {
    "dense": (dense, attention),
    "varlen": (rows, attend_rows),
    "packed": (joined, attend_joined),
}
every_form = pytest.mark.parametrize(("make", "attend"), FORMS.values(), ids=FORMS)


def call_of(attend, impl, normalize, **options):
    """A function of tensors that gives o and sums."""
    given = {"normalize": normalize, "activation": "relu4", "return_sums": True, "impl": impl}
    return partial(attend, **given, **options)


@every_fast
@every_division
@pytest.mark.parametrize("case", ["plain", "bias-mask", "bool-mask", "lengths"])
@pytest.mark.pairwise
@pytest.mark.long_interpreted
def test_operator_passes_opcheck(impl, normalize, case):
    q, k, v = dense(impl)
    bias, mask = rand(impl, 1, 2, 9, 9), rand(impl, 2, 1, 1, 9, grad=False).abs()
    lengths = torch.tensor([3, 9], device=q.device)
    tensors = {
        "plain": (None, None, None),
        "bias-mask": (bias, mask.requires_grad_(), None),
        "bool-mask": (None, mask.detach() > 0.5, None),
        "lengths": (None, None, lengths),
    }[case]
    args = (q, k, v, *tensors, *terms(normalize, "softplus", right=0))
    torch.library.opcheck(operator(impl, "attention_sums").default, args)


@every_fast
@every_division
@interpreted(lambda normalize: normalize == "sum")
@pytest.mark.long_interpreted
def test_operators_of_varlen_and_packed_calls_pass_opcheck(impl, normalize):
    ends = torch.tensor([0, 3, 9], device=device_of(impl))
    args = (*rows(impl, 1), None, None, ends, ends, 6, 6, *terms(normalize))
    torch.library.opcheck(operator(impl, "attention_varlen_sums").default, args)
    args = (*joined(impl), None, None, None, *NORMS, *terms(normalize))
    torch.library.opcheck(operator(impl, "attention_qkvpacked_sums").default, args)


@every_fast
@every_division
@interpreted(lambda normalize: normalize == "sum")
@pytest.mark.long_interpreted
def test_backward_operators_pass_opcheck(impl, normalize):
    kept = normalize == "sum"
    own = terms(normalize)
    q, k, v = dense(impl, grad=False)
    bias, dsums = rand(impl, 1, 2, 1, 9, grad=False), rand(impl, 2, 2, 9, grad=False)
    forward = (q, k, v, bias, None, None, *own)
    o, sums = operator(impl, "attention_sums")(*forward)
    results = (o, sums) if kept else (None, None)
    op = operator(impl, "attention_sums_backward").default
    opcheck_backward(op, (o, dsums, *results, *forward, True, False))
    opcheck_backward(op, (o, None, *results, *forward, False, False))

    ends = torch.tensor([0, 3, 9], device=q.device)
    forward = (*rows(impl, 1, grad=False), None, None, ends, ends, 6, 6, *own)
    o, sums = operator(impl, "attention_varlen_sums")(*forward)
    results = (o, sums) if kept else (None, None)
    op = operator(impl, "attention_varlen_sums_backward").default
    opcheck_backward(op, (o, sums, *results, *forward, False, False))

    forward = (*joined(impl, grad=False), None, None, None, *NORMS, *own)
    o, sums = operator(impl, "attention_qkvpacked_sums")(*forward)
    results = (o, sums) if kept else (None, None)
    op = operator(impl, "attention_qkvpacked_sums_backward").default
    opcheck_backward(op, (o, sums, *results, *forward, False, False))


def loss_of(call, inputs):
    o, sums = call(*inputs)
    return o.square().sum() + sums.sin().sum()


def loss_and_gradients(call, inputs):
    loss = loss_of(call, inputs)
    return [loss, *torch.autograd.grad(loss, inputs)]


@pytest.mark.slow
@every_form
@every_division
@every_fast  # plain PyTorch takes half a minute, and is tested without sums
@pytest.mark.pairwise
def test_compile_takes_the_whole_graph_with_dynamic_shapes(impl, normalize, make, attend):
    torch._dynamo.reset()
    call = call_of(attend, impl, normalize, causal=True)
    compiled = torch.compile(
        lambda *x: call(*x), fullgraph=True, dynamic=True, backend=compiler_of(impl)
    )
    for sizes in ((2, 3, 17, 8), (2, 2, 33, 16)):
        inputs = make(impl, *sizes)
        got, expected = (loss_and_gradients(f, inputs) for f in (compiled, call))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@every_form
def test_graph_has_no_break_and_serves_other_lengths(make, attend):
    torch._dynamo.reset()
    call = call_of(attend, "cpu", "sum")
    compiled = torch.compile(
        lambda *x: call(*x), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for length in (9, 12):
        inputs = make("cpu", L=length)
        got, expected = (loss_and_gradients(f, inputs) for f in (compiled, call))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@every_impl
@every_division
def test_export_keeps_results_and_sums(impl, normalize):
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return call_of(attention, impl, normalize, causal=True)(q, k, v)

    length = torch.export.Dim("length", min=2, max=512)
    inputs = tuple(dense(impl, grad=False))
    program = torch.export.export(
        Block(), inputs, dynamic_shapes={name: {2: length} for name in "qkv"}
    )
    other = tuple(dense(impl, L=40, grad=False))
    torch.testing.assert_close(program.module()(*other), Block()(*other))


@every_form
@every_division
@every_impl
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.pairwise
def test_checkpointing_keeps_the_gradients(impl, normalize, make, attend, use_reentrant):
    def call(x, *others):
        return call_of(attend, impl, normalize)(x.sin(), *others)

    def gradients(f):
        inputs = make(impl)
        o, sums = f(*inputs)
        (o.square().sum() + sums.sum()).backward()
        return [t.grad for t in inputs]

    got = gradients(lambda *x: checkpoint(call, *x, use_reentrant=use_reentrant))
    torch.testing.assert_close(got, gradients(call))


@every_form
@every_division
@every_impl
@pytest.mark.pairwise
def test_functional_gradients_equal_autograd(impl, normalize, make, attend):
    def loss(*inputs):
        return loss_of(call_of(attend, impl, normalize, window=(4, 0)), inputs)

    inputs = make(impl)
    got = torch.func.grad(loss, argnums=(0, 1, 2))(*[t.detach() for t in inputs])
    torch.testing.assert_close(list(got), list(torch.autograd.grad(loss(*inputs), inputs)))


@every_form
@every_fast
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_rounds_inputs_and_keeps_sums_in_fp32(impl, make, attend, dtype):
    if not serves(impl, dtype):
        pytest.skip("the interpreter multiplies bf16 as raw bits")
    inputs = make(impl)
    with torch.autocast(inputs[0].device.type, dtype):
        o, sums = call_of(attend, impl, "sum")(*inputs)
    assert (o.dtype, sums.dtype) == (dtype, torch.float32)
    grads = torch.autograd.grad(o.float().sum() + sums.sum(), inputs)
    assert {grad.dtype for grad in grads} == {torch.float32}
    rounded = [t.to(dtype) if t.dim() > 1 else t for t in inputs]
    expected = call_of(attend, impl, "sum")(*rounded)
    torch.testing.assert_close((o, sums), expected, rtol=0, atol=0)


@every_form
@every_division
@every_fast
@pytest.mark.pairwise
def test_second_derivatives_are_refused(impl, normalize, make, attend):
    inputs = make(impl)
    o, sums = call_of(attend, impl, normalize)(*inputs)
    first = torch.autograd.grad(o.sum() + sums.sum(), inputs, create_graph=True)
    with pytest.raises(UnsupportedError, match="impl='reference'"):
        torch.autograd.grad(first[0].sum(), inputs[0])


@every_form
@every_fast
def test_flops_are_those_without_sums(impl, make, attend):
    def count(**options):
        inputs = make(impl)
        with FlopCounterMode(display=False) as counter:
            made = attend(*inputs, **options, impl=impl)
        forward = counter.get_total_flops()
        made = made if isinstance(made, tuple) else (made,)
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(made, [torch.ones_like(x) for x in made])
        return forward, counter.get_total_flops()

    plain = count()
    assert plain[0] > 0
    assert count(return_sums=True) == plain
    assert count(return_sums=True, normalize="sum") == plain


@every_form
@every_fast
@pytest.mark.parametrize("return_sums", [False, True])
@every_division
@pytest.mark.pairwise
def test_only_a_division_keeps_results_for_backward(impl, normalize, return_sums, make, attend):
    saved = []
    inputs = make(impl, L=30)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        made = attend(
            *inputs, normalize=normalize, activation="relu4", return_sums=return_sums, impl=impl
        )
    made = made if return_sums else (made,)
    sizes = {t.data_ptr(): t.nbytes for t in saved if t.is_floating_point()}
    given = sum(t.nbytes for t in inputs)
    results = made[0].nbytes + made[0].numel() // made[0].shape[-1] * 4
    assert sum(sizes.values()) == given + (results if normalize == "sum" else 0)


def test_shapes_are_inferred_on_the_meta_device():
    q = torch.empty(2, 4, 7, 8, device="meta", dtype=torch.bfloat16)
    k, v = (torch.empty(2, 2, 9, d, device="meta", dtype=torch.bfloat16) for d in (8, 5))
    o, sums = attention(q, k, v, normalize="sum", return_sums=True)
    assert (o.shape, sums.shape) == ((2, 4, 7, 5), (2, 4, 7))
    assert (o.dtype, sums.dtype) == (torch.bfloat16, torch.float32)
